//! The identity of a file, and the version of its contents.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// A file while it is open or not deleted. Two overlay mounts of one file count as two.
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

/// The attributes that change when a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Also changes with attributes, but no copying tool can set it back.
    changed: (i64, i64),
    /// The owner's user id.
    pub(super) owner: u32,
}

impl FileVersion {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            owner: metadata.uid(),
        }
    }

    /// A file that is being written: equal to no real version.
    pub(super) const WRITTEN: Self =
        Self { len: u64::MAX, modified: (i64::MIN, 0), changed: (i64::MIN, 0), owner: 0 };

    /// Returns true if the contents were written, not only an attribute changed.
    pub(super) fn contents_differ(&self, before: &Self) -> bool {
        (self.len, self.modified) != (before.len, before.modified)
    }
}
