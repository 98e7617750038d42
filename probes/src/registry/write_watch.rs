//! Detects writes to files that have probes. The probes must go at once: whoever maps the new contents would get
//! breakpoints of the old ones.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::FileId;

/// A change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// Written or truncated; more may follow.
    Some(FileId),
    /// Closed by a writer.
    Done(FileId),
    /// Events were lost.
    Missed,
}

/// Watches files through their open descriptors, whatever their names or mounts. Writes through a shared mapping are not
/// seen.
pub(super) struct WriteWatch {
    inotify: Inotify,
    files: HashMap<WatchDescriptor, FileId>,
}

impl WriteWatch {
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Self { inotify, files: HashMap::new() })
    }

    /// Watches a file; idempotent.
    pub(super) fn add(&mut self, id: FileId, file: &File) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let writes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
        let watch = self.inotify.add_watch(path.as_str(), writes)?;
        self.files.insert(watch, id);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: FileId) {
        let watch = self.files.iter().find(|(_, watched)| **watched == id).map(|(watch, _)| *watch);
        if let Some(watch) = watch {
            self.files.remove(&watch);
            // Fails only when the file, and with it the watch, is gone.
            let _ = self.inotify.rm_watch(watch);
        }
    }

    /// The changes since the last call, in order.
    pub(super) fn drain(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        // An error means that there are no more events.
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    writes.push(Write::Missed);
                } else if let Some(&id) = self.files.get(&event.wd) {
                    let done = event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE);
                    writes.push(if done { Write::Done(id) } else { Write::Some(id) });
                }
            }
        }
        writes
    }
}

impl AsFd for WriteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn writes_are_reported_and_reads_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("file"), directory.path().join("other"));
        fs::write(&path, "one").unwrap();
        fs::write(&other, "one").unwrap();
        let (id, file) = (FileId { device: 1, inode: 2 }, File::open(&path).unwrap());
        let mut watch = WriteWatch::new().unwrap();
        watch.add(id, &file).unwrap();
        watch.add(id, &file).unwrap();
        fs::read(&path).unwrap();
        fs::write(other, "two").unwrap();
        assert_eq!(watch.drain(), []);
        fs::write(&path, "two").unwrap();
        let writes = watch.drain();
        assert_eq!(
            (writes.first(), writes.last()),
            (Some(&Write::Some(id)), Some(&Write::Done(id)))
        );
        watch.remove(id);
        fs::write(&path, "three").unwrap();
        assert_eq!(watch.drain(), []);
    }

    #[test]
    fn a_file_without_a_name_is_watched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "one").unwrap();
        let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let id = FileId { device: 1, inode: 2 };
        let mut watch = WriteWatch::new().unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        watch.add(id, &file).unwrap();
        writer.set_len(1).unwrap();
        assert_eq!(watch.drain(), [Write::Some(id)]);
    }
}
