//! Spools in folders that hold, are full, are damaged and come back.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::otlp::OtlpCounts;
use crate::otlp::changes::{Change, State};
use crate::otlp::record::{encoded, resource};
use crate::otlp::tests::{chain, uids};

const LIMIT: u64 = 1 << 20;

fn record(id: u64) -> Vec<u8> {
    let (chain, change) = (chain(&id.to_string()), Change { state: State::New, revision: 1 });
    encoded("n", resource("n", &chain, None), &chain, change, 0.0)
}

/// The chains in a batch.
fn ids(batch: &Batch) -> Vec<u64> {
    let id = |uid: String| uid.split('/').nth(1).unwrap().parse().unwrap();
    uids(&batch.body).into_iter().map(id).collect()
}

/// Opens the spool. A program that another test has just started may still have the folder's lock of before.
fn open(dir: &Path, counters: &Arc<Counters>) -> Spool {
    let begin = Instant::now();
    loop {
        match Spool::open(dir, LIMIT, Arc::clone(counters)) {
            Ok(spool) => return spool,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Spooled {
    dir: TempDir,
    spool: Spool,
    counters: Arc<Counters>,
}

impl Spooled {
    fn new() -> Self {
        let (dir, counters) = (tempfile::tempdir().unwrap(), Arc::<Counters>::default());
        let spool = open(&dir.path().join("otlp"), &counters);
        Self { dir, spool, counters }
    }

    /// A daemon that was killed, and the next one.
    fn again(mut self) -> Self {
        self.spool = Spool::in_memory(Arc::default());
        self.counters = Arc::default();
        let dir = self.dir.path().join("otlp");
        self.spool = open(&dir, &self.counters);
        self
    }

    fn counts(&self) -> OtlpCounts {
        self.counters.counts()
    }

    fn lost(&self, reason: Loss) -> u64 {
        self.counts().lost[reason as usize].1
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        let files = fs::read_dir(self.dir.path().join("otlp")).unwrap();
        let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some());
        files.sort();
        files
    }

    /// Sends everything.
    fn drain(&mut self) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(batch) = self.spool.take() {
            sent.extend(ids(&batch));
            self.spool.done(&batch);
        }
        sent
    }
}

#[test]
fn records_outlive_the_daemon_in_order_and_leave_no_file_when_they_are_sent() {
    let mut spooled = Spooled::new();
    (1..=3).for_each(|id| spooled.spool.push(&record(id)));
    let mut spooled = spooled.again();
    assert_eq!(spooled.counts().queued_records, 3);
    spooled.spool.push(&record(4));
    assert_eq!(spooled.drain(), [1, 2, 3, 4]);
    let counts = spooled.counts();
    assert_eq!((counts.queued_records, counts.queued_bytes, spooled.files().len()), (0, 0, 0));
}

#[test]
fn a_batch_stays_until_it_is_done() {
    let mut spooled = Spooled::new();
    spooled.spool.push(&record(1));
    let first = spooled.spool.take().unwrap();
    spooled.spool.push(&record(2));
    assert_eq!(spooled.spool.take().unwrap(), first);
    assert_eq!(spooled.drain(), [1, 2]);
}

#[test]
fn only_the_daemon_reads_the_files_and_only_one_daemon_uses_them() {
    let mut spooled = Spooled::new();
    spooled.spool.push(&record(1));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = spooled.dir.path().join("otlp");
    assert_eq!((mode(&spooled.files()[0]), mode(&dir)), (0o600, 0o700));
    let error = Spool::open(&dir, LIMIT, Arc::default()).unwrap_err();
    assert!(error.to_string().contains("another exporter"), "{error}");
}

#[test]
fn the_oldest_records_make_room_but_for_those_that_are_being_sent() {
    let mut spooled = Spooled::new();
    let size = record(1_000).len() as u64;
    let pushed = LIMIT / size + 200;
    spooled.spool.push(&record(1_000));
    let taken = spooled.spool.take().unwrap();
    (1_001..1_000 + pushed).for_each(|id| spooled.spool.push(&record(id)));
    let counts = spooled.counts();
    assert!(counts.queued_bytes <= LIMIT);
    assert_eq!(counts.queued_records + spooled.lost(Loss::SpoolFull), pushed);
    let on_disk: u64 = spooled.files().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(on_disk, counts.queued_bytes);
    spooled.spool.done(&taken);
    let sent = spooled.drain();
    assert_eq!(sent.len() as u64, counts.queued_records - 1);
    assert_eq!(sent.last(), Some(&(999 + pushed)), "the newest are kept");
}

#[test]
fn a_batch_that_was_put_back_makes_room_as_others_do() {
    let mut spooled = Spooled::new();
    spooled.spool.push(&record(1_000));
    assert!(spooled.spool.take().is_some());
    spooled.spool.put_back();
    let pushed = LIMIT / record(1_000).len() as u64 + 200;
    (1_001..1_000 + pushed).for_each(|id| spooled.spool.push(&record(id)));
    assert!(spooled.drain()[0] > 1_000);
}

#[test]
fn a_record_that_is_always_refused_is_lost_alone() {
    let mut spooled = Spooled::new();
    (1..=300).for_each(|id| spooled.spool.push(&record(id)));
    let (mut sent, mut lost, mut refusals) = (Vec::new(), Vec::new(), 0);
    while let Some(batch) = spooled.spool.take() {
        let own = ids(&batch);
        if !own.contains(&100) {
            sent.extend(own);
        } else if spooled.spool.refused(&batch) {
            refusals += 1;
            assert!(refusals < 100);
            continue;
        } else {
            lost.extend(own);
        }
        spooled.spool.done(&batch);
    }
    assert_eq!(lost, [100]);
    assert_eq!(sent, (1..=300).filter(|&id| id != 100).collect::<Vec<_>>());
    assert_eq!((spooled.counts().queued_records, spooled.files().len()), (0, 0));
}

#[test]
fn what_is_left_of_a_batch_outlives_the_daemon() {
    let mut spooled = Spooled::new();
    (1..=4).for_each(|id| spooled.spool.push(&record(id)));
    let all = spooled.spool.take().unwrap();
    assert!(spooled.spool.halve(&all));
    let half = spooled.spool.take().unwrap();
    spooled.spool.done(&half);
    let left = spooled.counts();
    assert_eq!((ids(&half), left.queued_records), (vec![1, 2], 2));
    assert_eq!(left.queued_bytes, (all.body.len() - half.body.len()) as u64);
    // Records that were sent come again, with the same ids.
    assert_eq!(spooled.again().drain(), [1, 2, 3, 4]);
}

#[test]
fn a_smaller_limit_applies_at_once() {
    let mut spooled = Spooled::new();
    (0..400).for_each(|id| spooled.spool.push(&record(id)));
    spooled.spool.set_limit(300 << 10);
    assert!(spooled.counts().queued_bytes <= 300 << 10);
    assert!(spooled.lost(Loss::SpoolFull) > 0);
}

#[test]
fn what_a_killed_daemon_began_to_write_is_cut_off() {
    let mut spooled = Spooled::new();
    (1..=2).for_each(|id| spooled.spool.push(&record(id)));
    let file = &spooled.files()[0];
    let content = fs::read(file).unwrap();
    fs::write(file, &content[..content.len() - 5]).unwrap();
    let mut spooled = spooled.again();
    assert_eq!(spooled.drain(), [1]);
    assert_eq!(spooled.counts().lost.map(|(_, records)| records), [0; 4]);
}

#[test]
fn damaged_files_and_those_of_others_are_not_sent() {
    let mut spooled = Spooled::new();
    (1..=3).for_each(|id| spooled.spool.push(&record(id)));
    let dir = spooled.dir.path().join("otlp");
    let damaged = |number: u64, content: &[u8]| {
        fs::write(dir.join(format!("{number:020}.otlp")), content).unwrap();
    };
    damaged(90, b"not of a spool");
    damaged(91, &[0x0a, 2, 0xff, 0xff]);
    damaged(92, &vec![0x0a; 5 << 20]);
    damaged(93, b"");
    fs::write(dir.join("1.otlp"), "another name").unwrap();
    std::os::unix::fs::symlink("1.otlp", dir.join(format!("{:020}.otlp", 94))).unwrap();
    let mut spooled = spooled.again();
    // The file of 5 MiB counts as the most records that a file can have.
    assert_eq!(spooled.lost(Loss::Unreadable), 1 + 1 + SEGMENT_RECORDS);
    assert_eq!(spooled.drain(), [1, 2, 3]);
    assert_eq!(spooled.files().len(), 2, "those of others");
}

#[test]
fn a_file_that_vanishes_is_counted() {
    let mut spooled = Spooled::new();
    (1..=2).for_each(|id| spooled.spool.push(&record(id)));
    fs::remove_file(&spooled.files()[0]).unwrap();
    assert_eq!(spooled.spool.take(), None);
    assert_eq!((spooled.lost(Loss::Unreadable), spooled.counts().queued_records), (2, 0));
}

/// A link cannot be opened, by root neither.
#[test]
fn a_file_that_cannot_be_opened_stays_and_is_sent_later() {
    let mut spooled = Spooled::new();
    spooled.spool.push(&record(1));
    let file = spooled.files().remove(0);
    let away = spooled.dir.path().join("away");
    fs::rename(&file, &away).unwrap();
    std::os::unix::fs::symlink(&away, &file).unwrap();
    let folder = spooled.spool.folder.as_ref().unwrap();
    assert_eq!(folder.recover(1), Recovered::Unread);
    assert_eq!(spooled.spool.take(), None);
    assert_eq!((spooled.lost(Loss::Unreadable), spooled.counts().queued_records), (0, 1));
    fs::rename(&away, &file).unwrap();
    assert_eq!(spooled.drain(), [1]);
}

#[test]
fn records_wait_in_memory_while_no_file_can_be_written() {
    let mut spooled = Spooled::new();
    spooled.spool.push(&record(1));
    let dir = spooled.dir.path().join("otlp");
    let moved = spooled.dir.path().join("moved");
    // Files cannot be created where the folder is missing; also root cannot.
    fs::rename(&dir, &moved).unwrap();
    let first = spooled.spool.segments.back_mut().unwrap();
    first.sealed = true;
    (2..=3).for_each(|id| spooled.spool.push(&record(id)));
    fs::rename(&moved, &dir).unwrap();
    spooled.spool.push(&record(4));
    assert_eq!(spooled.files().len(), 2, "files are written again");
    assert_eq!(spooled.drain(), [1, 2, 3, 4]);
}

#[test]
fn memory_has_a_limit_of_its_own() {
    let mut spooled = Spooled::new();
    spooled.spool.set_limit(64 << 20);
    fs::remove_dir_all(spooled.dir.path().join("otlp")).unwrap();
    let pushed = 2 * MEMORY_BYTES / record(1_000).len() as u64;
    (1_000..1_000 + pushed).for_each(|id| spooled.spool.push(&record(id)));
    let counts = spooled.counts();
    assert!(counts.queued_bytes <= MEMORY_BYTES);
    assert_eq!(counts.queued_records + spooled.lost(Loss::SpoolFailed), pushed);
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    /// Take a batch, and send it where true.
    Take(bool),
    /// The daemon ends and begins again.
    Restart,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Each record is sent once and in order, or waits: whatever fails and however often the daemon is killed.
    #[test]
    fn no_record_is_lost_or_sent_twice(
        steps in prop::collection::vec(
            prop_oneof![
                5 => Just(Step::Push),
                3 => any::<bool>().prop_map(Step::Take),
                1 => Just(Step::Restart),
            ],
            1..80,
        ),
    ) {
        let mut spooled = Spooled::new();
        let (mut pushed, mut sent) = (0, Vec::new());
        for step in steps {
            match step {
                Step::Push => {
                    pushed += 1;
                    spooled.spool.push(&record(pushed));
                }
                Step::Take(is_sent) => {
                    if let Some(batch) = spooled.spool.take() && is_sent {
                        prop_assert_eq!(ids(&batch).len() as u64, batch.records);
                        sent.extend(ids(&batch));
                        spooled.spool.done(&batch);
                    }
                }
                Step::Restart => spooled = spooled.again(),
            }
            let counts = spooled.counts();
            prop_assert_eq!(counts.queued_records + sent.len() as u64, pushed);
            prop_assert_eq!(counts.lost.map(|(_, records)| records), [0; 4]);
        }
        sent.extend(spooled.drain());
        prop_assert_eq!(sent, (1..=pushed).collect::<Vec<_>>());
    }
}
