//! Reads configuration files.

use std::fs::{File, metadata};
use std::io::{self, Read as _};
use std::path::Path;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The text of a regular file of at most 1 MiB.
///
/// # Errors
/// When it cannot be read, or is anything else.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    // Checked first: opening a pipe blocks until there is a writer.
    if !metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"))
}
