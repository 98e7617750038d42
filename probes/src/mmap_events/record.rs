//! Parses the records of `perf_event_open(2)`.

use gpucause_abi::{Nanos, Tgid};

use super::MmapEvent;
use crate::mapped::{Device, path_of, split_deleted};

const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_MMAP2: u32 = 10;

/// Bytes between the header and the file name of a mapping record.
const BEFORE_NAME: usize = 64;
/// Bytes of the timestamp that `sample_id_all` appends to each record.
const SAMPLE_ID: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Mmap(MmapEvent),
    /// Number of records that did not fit.
    Lost(u64),
}

/// Parses a record's body; `None` for records of no interest.
pub(super) fn parse(kind: u32, body: &[u8]) -> Option<Record> {
    match kind {
        PERF_RECORD_MMAP2 => mmap(body).map(Record::Mmap),
        // An id, then the number.
        PERF_RECORD_LOST => u64_at(body, 8).map(Record::Lost),
        _ => None,
    }
}

fn mmap(body: &[u8]) -> Option<MmapEvent> {
    let inode = u64_at(body, 40).filter(|inode| *inode != 0)?;
    let (rest, _) = body.split_at_checked(body.len().checked_sub(SAMPLE_ID)?)?;
    let name = rest.get(BEFORE_NAME..)?;
    let name = name.split(|&b| b == 0).next().unwrap_or(name);
    // Anonymous code: most mappings of JIT compilers.
    if !name.starts_with(b"/") || name.starts_with(b"//") {
        return None;
    }
    let (path, deleted) = split_deleted(name);
    Some(MmapEvent {
        // The kernel gives -1 or 0 for a process outside this PID namespace.
        tgid: Tgid(u32_at(body, 0).filter(|tgid| !matches!(*tgid, 0 | u32::MAX))?),
        start: u64_at(body, 8)?,
        len: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        device: Device { major: u32_at(body, 32)?, minor: u32_at(body, 36)? },
        inode,
        path: path_of(path),
        deleted,
        at: Nanos(u64_at(body, rest.len())?),
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mmap_body(tgid: u32, inode: u64, name: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend([tgid.to_ne_bytes(), 77u32.to_ne_bytes()].concat());
        body.extend([0x7f00u64, 0x1000, 0x2000].map(u64::to_ne_bytes).concat());
        body.extend([254u32, 1].map(u32::to_ne_bytes).concat());
        body.extend([inode, 5].map(u64::to_ne_bytes).concat());
        body.extend([5u32, 2].map(u32::to_ne_bytes).concat());
        body.extend(name);
        body.resize((body.len() + 1).next_multiple_of(8), 0);
        body.extend(123_456u64.to_ne_bytes());
        body
    }

    #[test]
    fn a_mapping_record_is_read_whole() {
        let Some(Record::Mmap(event)) = parse(10, &mmap_body(42, 9, b"/a b/lib.so (deleted)"))
        else {
            panic!("no event")
        };
        let expected = MmapEvent {
            tgid: Tgid(42),
            start: 0x7f00,
            len: 0x1000,
            offset: 0x2000,
            device: Device { major: 254, minor: 1 },
            inode: 9,
            path: "/a b/lib.so".into(),
            deleted: true,
            at: Nanos(123_456),
        };
        assert_eq!(event, expected);
    }

    #[test]
    fn names_of_every_length_are_read_whole() {
        for length in 1..40 {
            let name = format!("/{}", "x".repeat(length));
            let Some(Record::Mmap(event)) = parse(10, &mmap_body(1, 1, name.as_bytes())) else {
                panic!("no event for {name}")
            };
            assert_eq!((event.path, event.at), (name.into(), Nanos(123_456)));
        }
    }

    #[test]
    fn mappings_without_a_file_or_a_process_are_left_out() {
        for body in [
            mmap_body(42, 9, b"//anon"),
            mmap_body(42, 9, b"[vdso]"),
            mmap_body(42, 0, b"/x"),
            mmap_body(0, 9, b"/x"),
            mmap_body(u32::MAX, 9, b"/x"),
        ] {
            assert_eq!(parse(10, &body), None);
        }
    }

    #[test]
    fn lost_records_are_counted() {
        let body = [7u64, 31, 0].map(u64::to_ne_bytes).concat();
        assert_eq!(parse(2, &body), Some(Record::Lost(31)));
    }

    proptest! {
        #[test]
        fn any_body_is_read_without_panic(kind in 0u32..12,
                                          body in prop::collection::vec(any::<u8>(), 0..120)) {
            let known = parse(kind, &body).is_some();
            prop_assert!(!known || kind == 2 || kind == 10);
        }
    }
}
