//! Which file it is, and whether it is still what it was.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// A file as it was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl FileVersion {
    /// By what `stat` says of it.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}
