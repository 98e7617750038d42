//! Names stored as bytes in the kernel.

use std::borrow::Cow;

use crate::record::{COMM_LEN, DEVICE_LEN};

/// A task name: at most 15 bytes that the task chose itself, in no particular encoding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Comm(pub [u8; COMM_LEN]);

impl Comm {
    /// Returns the name as text; bytes that are not UTF-8 become U+FFFD and control characters `?`, so that it fits on one line.
    pub fn text(&self) -> Cow<'_, str> {
        one_line(&self.0)
    }

    /// Returns the same text, owned.
    pub fn to_text(self) -> String {
        self.text().into_owned()
    }
}

/// The kernel's name of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName(pub [u8; DEVICE_LEN]);

impl DeviceName {
    /// Returns the name as text on one line, like [`Comm::text`].
    pub fn to_text(self) -> String {
        one_line(&self.0).into_owned()
    }
}

fn one_line(bytes: &[u8]) -> Cow<'_, str> {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    if text.contains(char::is_control) {
        return text.replace(char::is_control, "?").into();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_one_line_of_text() {
        let mut raw = [0; COMM_LEN];
        raw[..6].copy_from_slice(b"a\n\xff\"\\b");
        assert_eq!(Comm(raw).to_text(), "a?\u{fffd}\"\\b");
    }

    #[test]
    fn a_name_without_terminator_is_whole() {
        assert_eq!(Comm([b'x'; COMM_LEN]).to_text(), "x".repeat(16));
    }
}
