//! Reads small text files that a user names.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::path::Path;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The text of a regular file of at most 1 MiB.
///
/// # Errors
/// When it cannot be read, or is anything else.
pub fn read(path: &Path) -> io::Result<String> {
    read_up_to(path, MAX_BYTES)
}

/// The text of a regular file of at most so many bytes.
///
/// # Errors
/// When it cannot be read, or is anything else.
pub fn read_up_to(path: &Path, most: u64) -> io::Result<String> {
    // Checked first: opening a pipe blocks until there is a writer.
    if !metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("larger than {} MiB", most >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_at_once_and_a_file_only_when_it_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(read(&pipe).unwrap_err().to_string(), "not a file");
        let file = folder.path().join("file");
        std::fs::write(&file, "nodes").unwrap();
        assert_eq!(read_up_to(&file, 5).unwrap(), "nodes");
        assert!(read_up_to(&file, 4).unwrap_err().to_string().starts_with("larger than"));
    }
}
