//! What makes two files the same, and what makes a file another than it was.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// A file, as long as it is open or undeleted. Two overlay mounts of one file count as two here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// What a write to a file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Changes with attributes too, but no copying tool can set it back.
    changed: (i64, i64),
    /// The user it belongs to.
    pub(super) owner: u32,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            owner: metadata.uid(),
        }
    }

    /// Of a file that is being written: equal to none that a file has.
    pub(super) const WRITTEN: Self =
        Self { len: u64::MAX, modified: (i64::MIN, 0), changed: (i64::MIN, 0), owner: 0 };

    /// Whether the contents were written, rather than an attribute changed.
    pub(super) fn contents_differ(&self, before: &Self) -> bool {
        (self.len, self.modified) != (before.len, before.modified)
    }
}
