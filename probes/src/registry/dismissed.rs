//! Files that get no probes, so that each is read only once. Bounded: of many, the ones seen least recently are
//! forgotten, which costs no more than another look.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::file::Stamp;
use super::{FileId, LibraryStatus, Verdict};

/// A dismissed file that people should hear of.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) path: PathBuf,
    pub(super) build_id: Option<String>,
    pub(super) verdict: Verdict,
}

impl Report {
    pub(super) fn status(&self, file: FileId) -> LibraryStatus {
        LibraryStatus {
            path: self.path.clone(),
            file,
            build_id: self.build_id.clone(),
            link: None,
            sites: 0,
            ops: 0,
            slow: Vec::new(),
            verdict: self.verdict.clone(),
            gap: None,
            max_gap: None,
        }
    }
}

struct Entry {
    stamp: Stamp,
    report: Option<Report>,
    last_seen: Instant,
}

/// Two generations: a full young one becomes the old one, and what was in the old one and not asked for since is gone.
pub(super) struct Dismissed {
    capacity: usize,
    young: HashMap<FileId, Entry>,
    old: HashMap<FileId, Entry>,
}

impl Dismissed {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn insert(
        &mut self,
        id: FileId,
        stamp: Stamp,
        report: Option<Report>,
        last_seen: Instant,
    ) {
        self.old.remove(&id);
        self.young.insert(id, Entry { stamp, report, last_seen });
        if self.young.len() > self.capacity / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Whether a file is known to get no probes. Not when it was changed, nor when it only lacked `room` that there is
    /// now.
    pub(super) fn holds(&mut self, id: FileId, stamp: Stamp, now: Instant, room: bool) -> bool {
        let Some(entry) = self.young.remove(&id).or_else(|| self.old.remove(&id)) else {
            return false;
        };
        let lacked_room =
            entry.report.as_ref().is_some_and(|report| report.verdict == Verdict::OverLimit);
        if entry.stamp != stamp || (lacked_room && room) {
            return false;
        }
        self.insert(id, stamp, entry.report, now);
        true
    }

    pub(super) fn reports(&self) -> impl Iterator<Item = (FileId, &Report)> {
        let all = self.young.iter().chain(&self.old);
        all.filter_map(|(id, entry)| Some((*id, entry.report.as_ref()?)))
    }

    /// Drops reports of files that nobody has mapped for so long; true when there were any.
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
        let stamp = Stamp::of(&std::fs::metadata("/proc/self/exe").unwrap());
        let now = Instant::now();
        let mut dismissed = Dismissed::new(100);
        for inode in 0..10_000 {
            dismissed.insert(id(inode), stamp, None, now);
            assert!(dismissed.holds(id(7.min(inode)), stamp, now, true), "{inode}");
            assert!(dismissed.young.len() + dismissed.old.len() <= 102);
        }
        assert!(!dismissed.holds(id(8), stamp, now, true));
        assert!(dismissed.holds(id(9_999), stamp, now, true));
    }
}
