//! Detects changed files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// Identity and modification state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl FileVersion {
    /// From `stat` data.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}
