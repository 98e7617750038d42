//! Files that get no probes, so that each is read only once. Bounded: the least recently seen ones are evicted, at the cost
//! of another read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::file::FileVersion;
use super::{FileId, LibraryStatus, LibraryVerdict};

/// An ignored file that is reported.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) path: PathBuf,
    pub(super) build_id: Option<String>,
    pub(super) left_out: Vec<String>,
    pub(super) verdict: LibraryVerdict,
}

impl Report {
    pub(super) fn status(&self, file: FileId) -> LibraryStatus {
        LibraryStatus {
            replaced: Vec::new(),
            path: self.path.clone(),
            file,
            build_id: self.build_id.clone(),
            link: None,
            sites: 0,
            ops: 0,
            slow: Vec::new(),
            left_out: self.left_out.clone(),
            verdict: self.verdict.clone(),
            gap: None,
            max_gap: None,
        }
    }
}

struct Entry {
    version: FileVersion,
    report: Option<Report>,
    last_seen: Instant,
}

/// Two generations: a full young one replaces the old one, which evicts what was not seen since.
pub(super) struct IgnoredFiles {
    capacity: usize,
    young: HashMap<FileId, Entry>,
    old: HashMap<FileId, Entry>,
}

impl IgnoredFiles {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn insert(
        &mut self,
        id: FileId,
        version: FileVersion,
        report: Option<Report>,
        last_seen: Instant,
    ) {
        self.old.remove(&id);
        self.young.insert(id, Entry { version, report, last_seen });
        if self.young.len() > self.capacity / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Returns true if a file is known to get no probes; false when it has changed, or was over the limit and no longer is.
    pub(super) fn contains(
        &mut self,
        id: FileId,
        version: FileVersion,
        now: Instant,
        below_limit: bool,
    ) -> bool {
        let Some(entry) = self.young.remove(&id).or_else(|| self.old.remove(&id)) else {
            return false;
        };
        let was_over_limit =
            entry.report.as_ref().is_some_and(|report| report.verdict == LibraryVerdict::OverLimit);
        if entry.version != version || (was_over_limit && below_limit) {
            return false;
        }
        self.insert(id, version, entry.report, now);
        true
    }

    pub(super) fn reports(&self) -> impl Iterator<Item = (FileId, &Report)> {
        let all = self.young.iter().chain(&self.old);
        all.filter_map(|(id, entry)| Some((*id, entry.report.as_ref()?)))
    }

    /// Drops reports of files not mapped for that long; true if there were any.
    pub(super) fn forget_reports(&mut self, now: Instant, unseen_for: Duration) -> bool {
        let before = self.young.len() + self.old.len();
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|_, entry| {
                entry.report.is_none()
                    || now.saturating_duration_since(entry.last_seen) < unseen_for
            });
        }
        self.young.len() + self.old.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    #[test]
    fn the_least_recently_seen_files_are_forgotten_first() {
        let version = FileVersion::of(&std::fs::metadata("/proc/self/exe").unwrap());
        let now = Instant::now();
        let mut ignored = IgnoredFiles::new(100);
        for inode in 0..10_000 {
            ignored.insert(id(inode), version, None, now);
            assert!(ignored.contains(id(7.min(inode)), version, now, true), "{inode}");
            assert!(ignored.young.len() + ignored.old.len() <= 102);
        }
        assert!(!ignored.contains(id(8), version, now, true));
        assert!(ignored.contains(id(9_999), version, now, true));
    }
}
