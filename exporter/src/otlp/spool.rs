//! Log records that wait to be sent, in files that outlive the daemon, though not a power failure. The oldest are sent first, and lost
//! first where there are too many.
//!
//! A file is a sequence of encoded requests of one record each, which is one request with all of them: it is sent as it is.

mod folder;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::counts::{Counters, Loss};
use folder::{Folder, Recovered, first_records};

/// A segment takes no more records when it has this many bytes or records. Collectors take 20 MiB.
const SEGMENT_BYTES: u64 = 256 << 10;
const SEGMENT_RECORDS: u64 = 512;
/// A record alone that is refused so often is lost.
const MAX_REFUSALS: u32 = 10;
/// Bytes that may wait in memory where they cannot be written to a file.
const MEMORY_BYTES: u64 = 1 << 20;

/// Records that are sent together.
#[derive(Debug)]
struct Segment {
    number: u64,
    /// Bytes at its beginning that are done.
    done: usize,
    /// Bytes that are left of it.
    bytes: u64,
    records: u64,
    content: Content,
    /// True once it takes no more records.
    sealed: bool,
}

#[derive(Debug)]
enum Content {
    File,
    Memory(Vec<u8>),
}

impl Segment {
    const fn is_open(&self) -> bool {
        !self.sealed && self.bytes < SEGMENT_BYTES && self.records < SEGMENT_RECORDS
    }

    const fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.records += 1;
    }

    const fn memory(&self) -> u64 {
        match &self.content {
            Content::File => 0,
            Content::Memory(content) => content.len() as u64,
        }
    }
}

/// The oldest records: of one segment, and after a refusal a part of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    number: u64,
    pub(super) records: u64,
    /// A request.
    pub(super) body: Vec<u8>,
}

/// The records that wait.
#[derive(Debug)]
pub(super) struct Spool {
    /// `None` where records wait in memory alone.
    folder: Option<Folder>,
    /// The oldest first. Records are added to the last one.
    segments: VecDeque<Segment>,
    next: u64,
    limit: u64,
    /// The segment that is being sent: it is not dropped.
    taken: Option<u64>,
    /// Records of a batch at most.
    most: u64,
    /// How often the oldest record was refused alone.
    refusals: u32,
    counters: Arc<Counters>,
}

impl Spool {
    /// In memory alone.
    pub(super) fn in_memory(counters: Arc<Counters>) -> Self {
        let (folder, segments, taken) = (None, VecDeque::new(), None);
        let (limit, most) = (MEMORY_BYTES, SEGMENT_RECORDS);
        Self { folder, segments, next: 1, limit, taken, most, refusals: 0, counters }
    }

    /// In a folder, which is created, with what an earlier daemon left there.
    pub(super) fn open(dir: &Path, limit: u64, counters: Arc<Counters>) -> io::Result<Self> {
        let folder = Folder::open(dir)?;
        let mut spool = Self { folder: None, limit, ..Self::in_memory(counters) };
        for number in folder.numbers()? {
            spool.next = number.saturating_add(1).max(spool.next);
            match folder.recover(number) {
                Recovered::Empty | Recovered::Unread => {}
                Recovered::Whole { bytes, records } => {
                    let content = Content::File;
                    let segment =
                        Segment { number, done: 0, bytes, records, content, sealed: true };
                    spool.segments.push_back(segment);
                }
                Recovered::Damaged { records } => {
                    spool.counters.add_lost(Loss::Unreadable, records);
                }
            }
        }
        spool.folder = Some(folder);
        spool.make_room(0);
        spool.publish();
        Ok(spool)
    }

    /// Sets the size limit.
    pub(super) fn set_limit(&mut self, limit: u64) {
        if self.folder.is_some() {
            self.limit = limit;
            self.make_room(0);
        }
    }

    /// Adds an encoded record.
    pub(super) fn push(&mut self, record: &[u8]) {
        self.make_room(record.len() as u64);
        if !self.append_to_file(record) {
            self.append_to_memory(record);
        }
        self.publish();
    }

    /// The oldest records, which stay until they are [done](Self::done) or [put back](Self::put_back).
    pub(super) fn take(&mut self) -> Option<Batch> {
        loop {
            let segment = self.segments.front_mut()?;
            segment.sealed = true;
            let Segment { number, done, bytes, records, .. } = *segment;
            let body = match (&segment.content, &self.folder) {
                (Content::Memory(content), _) => Ok(content.clone()),
                (Content::File, Some(folder)) => folder.read(number, done as u64 + bytes),
                (Content::File, None) => Err(io::ErrorKind::NotFound.into()),
            };
            match body {
                Ok(mut body) => {
                    self.taken = Some(number);
                    body.drain(..done.min(body.len()));
                    let (bytes, records) = first_records(&body, self.most);
                    body.truncate(bytes);
                    return Some(Batch { number, records, body });
                }
                Err(error) => {
                    tracing::error!(%error, records, "chains of the OTLP spool cannot be read");
                    // Such as too many open files: it can be read later, or makes room for others.
                    if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
                    {
                        return None;
                    }
                    self.lose(0, Loss::Unreadable);
                }
            }
        }
    }

    /// The batch was sent, or refused for good: it is deleted.
    pub(super) fn done(&mut self, batch: &Batch) {
        self.put_back();
        self.refusals = 0;
        self.most = self.most.saturating_mul(2).min(SEGMENT_RECORDS);
        let front = self.segments.front_mut();
        let Some(segment) = front.filter(|own| own.number == batch.number) else { return };
        if segment.records <= batch.records {
            let _ = self.remove(0);
            return;
        }
        segment.done += batch.body.len();
        segment.bytes = segment.bytes.saturating_sub(batch.body.len() as u64);
        segment.records -= batch.records;
        self.publish();
    }

    /// The batch that was taken waits again, and may make room for others.
    pub(super) const fn put_back(&mut self) {
        self.taken = None;
    }

    /// The batch was refused, perhaps for one of its records: the next batch has half of them. False where it cannot be smaller.
    pub(super) const fn halve(&mut self, batch: &Batch) -> bool {
        self.put_back();
        self.most = if batch.records > 1 { batch.records / 2 } else { 1 };
        batch.records > 1
    }

    /// Does the same as [`halve`](Self::halve), but returns false only where a record was refused alone too often.
    pub(super) const fn refused(&mut self, batch: &Batch) -> bool {
        if self.halve(batch) {
            return true;
        }
        self.refusals += 1;
        self.refusals < MAX_REFUSALS
    }

    /// False where that is not possible.
    fn append_to_file(&mut self, record: &[u8]) -> bool {
        let Some(folder) = &mut self.folder else { return false };
        let bytes = record.len() as u64;
        if let Some(segment) = self.segments.back_mut()
            && segment.is_open()
            && matches!(segment.content, Content::File)
        {
            match folder.append(segment.number, segment.bytes, record) {
                Ok(()) => {
                    segment.add(bytes);
                    return true;
                }
                // Its end may have a part of the record now.
                Err(_) => segment.sealed = true,
            }
        }
        let number = self.next;
        self.next = self.next.saturating_add(1);
        if let Err(error) = folder.append(number, 0, record) {
            folder.fail(&error);
            return false;
        }
        let content = Content::File;
        let (done, records, sealed) = (0, 1, false);
        self.segments.push_back(Segment { number, done, bytes, records, content, sealed });
        true
    }

    fn append_to_memory(&mut self, record: &[u8]) {
        let bytes = record.len() as u64;
        // Records of a daemon without a folder make room for each other as those in files do.
        while self.folder.is_some() && self.memory() + bytes > MEMORY_BYTES {
            let in_memory = |own: &Segment| own.memory() > 0 && Some(own.number) != self.taken;
            let Some(oldest) = self.segments.iter().position(in_memory) else { break };
            self.lose(oldest, Loss::SpoolFailed);
        }
        if let Some(segment) = self.segments.back_mut()
            && segment.is_open()
            && let Content::Memory(content) = &mut segment.content
        {
            content.extend_from_slice(record);
            segment.add(bytes);
            return;
        }
        let (number, content) = (self.next, Content::Memory(record.to_vec()));
        self.next = self.next.saturating_add(1);
        let (done, records, sealed) = (0, 1, false);
        self.segments.push_back(Segment { number, done, bytes, records, content, sealed });
    }

    fn make_room(&mut self, bytes: u64) {
        while self.bytes() + bytes > self.limit {
            let is_idle = |own: &Segment| Some(own.number) != self.taken;
            let Some(oldest) = self.segments.iter().position(is_idle) else { break };
            self.lose(oldest, Loss::SpoolFull);
        }
    }

    fn lose(&mut self, index: usize, reason: Loss) {
        let records = self.remove(index);
        self.counters.add_lost(reason, records);
    }

    /// The number of its records.
    fn remove(&mut self, index: usize) -> u64 {
        let Some(segment) = self.segments.remove(index) else { return 0 };
        if let (Content::File, Some(folder)) = (&segment.content, &mut self.folder) {
            folder.remove(segment.number);
        }
        self.publish();
        segment.records
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn memory(&self) -> u64 {
        self.segments.iter().map(Segment::memory).sum()
    }

    fn publish(&self) {
        let records = self.segments.iter().map(|segment| segment.records).sum();
        self.counters.set_queued(records, self.bytes());
    }
}

#[cfg(test)]
mod tests;
