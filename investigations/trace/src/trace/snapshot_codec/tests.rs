//! Decoding returns what was encoded, and damage is an error.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, SLOTS};
use gpucause_abi::measure::Measures;
use gpucause_abi::op::{CopyKind, OPS, OpId};
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, Comm, DeviceName, DispatcherSnapshot, HostUse, LaunchSampling,
    LaunchStep, MapUsage, MemorySnapshot, ProcessSnapshot, RateEstimate, Snapshot, StallSnapshot,
    TimeAccount, Wait,
};
use gpucause_abi::state::{BlockOperation, LockKind, Phase, Reason, Relation, Role};
use gpucause_abi::{Nanos, ProcId, Syscall, Tgid, Tid};
use gpucause_engine::EngineInput;
use proptest::prelude::*;

use super::axis::Axes;
use super::wire::{self, Writer};
use super::{decode, encode};

/// Makes anything of numbers; of zeros when there are no more.
struct Source(std::vec::IntoIter<u64>);

impl Source {
    fn number(&mut self) -> u64 {
        self.0.next().unwrap_or(0)
    }

    fn small(&mut self) -> u32 {
        self.number() as u32
    }

    fn nanos(&mut self) -> Nanos {
        Nanos(self.number())
    }

    fn flag(&mut self) -> bool {
        self.number() % 2 == 1
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| make(self))
    }

    fn some<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.number() % 3).map(|_| make(self)).collect()
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.number() % of.len() as u64) as usize]
    }

    /// Also of no op of the table.
    fn op(&mut self) -> OpId {
        OpId((self.number() % (OPS.len() as u64 + 3)) as u16)
    }

    fn name(&mut self) -> [u8; 16] {
        let (left, right) = (self.number().to_le_bytes(), self.number().to_le_bytes());
        std::array::from_fn(|at| if at < 8 { left[at] } else { right[at - 8] })
    }

    fn histogram(&mut self) -> Histogram {
        let mut slots = [0; SLOTS];
        for _ in 0..self.number() % 4 {
            slots[(self.number() % SLOTS as u64) as usize] = self.number();
        }
        Histogram::from_slots(self.nanos(), self.nanos(), slots)
    }

    fn time(&mut self) -> TimeAccount {
        let mut time = TimeAccount::default();
        time.0.iter_mut().flatten().for_each(|cell| *cell = self.nanos());
        time
    }

    fn dispatcher(&mut self) -> DispatcherSnapshot {
        DispatcherSnapshot {
            tid: Tid(self.small()),
            wall: self.nanos(),
            time: self.time(),
            inflight: self.maybe(|source| (source.op(), source.nanos())),
        }
    }

    fn wait(&mut self) -> Wait {
        Wait {
            tid: self.maybe(|source| Tid(source.small())),
            reason: self.one(Reason::ALL),
            on: Comm(self.name()),
            phase: self.one(Phase::ALL),
            total: self.nanos(),
            held: self.nanos(),
            behind: self.nanos(),
            holder: self.maybe(|source| Tid(source.small())),
            lock: self.maybe(|source| source.one(LockKind::ALL)),
            syscall: self
                .maybe(|source| Syscall::from_number(source.small() as usize % 300))
                .flatten(),
            tgid: self.maybe(|source| Tgid(source.small())),
            relation: self.one(Relation::ALL),
        }
    }

    fn host(&mut self) -> HostUse {
        HostUse {
            block_io: self.some(|source| BlockIo {
                device: DeviceName(source.name()),
                operation: source.one(BlockOperation::ALL),
                time: source.nanos(),
                bytes: source.number(),
                requests: source.number(),
            }),
            page_faults: self.maybe(|source| [source.number(), source.number()]),
        }
    }

    fn measures(&mut self) -> Measures {
        let mut measures = Measures::default();
        measures.amounts_mut().fill_with(|| self.number());
        measures
    }

    fn process(&mut self) -> ProcessSnapshot {
        ProcessSnapshot {
            id: ProcId(self.small()),
            tgid: Tgid(self.small()),
            comm: Comm(self.name()),
            parent: self.maybe(|source| ProcId(source.small())),
            started_boottime: self.nanos(),
            first_seen: self.nanos(),
            dispatches: self.flag(),
            ended: self.maybe(Self::nanos),
            execed: self.flag(),
            measures: self.measures(),
            calls: self.some(|source| CallSnapshot {
                op: source.op(),
                cold: source.flag(),
                nested: source.flag(),
                durations: source.histogram(),
                stalled: source.histogram(),
            }),
            stalls: self.some(|source| StallSnapshot {
                op: source.op(),
                cold: source.flag(),
                nested: source.flag(),
                calls: source.number(),
                offcpu: std::array::from_fn(|_| source.nanos()),
            }),
            launches: LaunchSampling {
                step: match self.small() % 4 {
                    0 => LaunchStep::Full,
                    1 => LaunchStep::DriverOnly,
                    2 => LaunchStep::Sampled { one_in: self.small() },
                    _ => LaunchStep::PartTime { share: 0.25, one_in: self.small() },
                },
                untimed: self.number(),
                unobserved: self.nanos(),
                observed: self.nanos(),
                rate: self.maybe(|source| RateEstimate {
                    per_second: 1.0 + f64::from(source.small()),
                    error: 0.01,
                }),
                without_queries: self.flag(),
                async_one_in: self.small(),
            },
            untimed_calls: self.some(|source| (source.op(), source.number())),
            errors: self.some(|source| (source.op(), source.small(), source.number())),
            kernels: self.some(|source| (source.number(), source.number())),
            launch_times: self.some(|source| (source.number(), source.histogram())),
            copied: std::array::from_fn(|_| self.number()),
            copies: self.some(|source| {
                (source.one(CopyKind::ALL), source.small() as u16, source.histogram())
            }),
            memory: MemorySnapshot { allocated: self.number(), freed: self.number() },
            collectives: self.some(|source| (source.op(), source.number())),
            rank: self.maybe(|source| (source.small(), source.small())),
            dispatcher_time: self.time(),
            dispatchers: self.some(Self::dispatcher),
            worker: self.maybe(Self::dispatcher).map(Box::new),
            launch_gap: self.histogram(),
            waits: self.some(Self::wait),
            offcpu: self.some(|source| {
                (source.one(Role::ALL), source.one(Reason::ALL), source.histogram())
            }),
            runqueue: self.some(|source| (source.one(Role::ALL), source.histogram())),
            switches: std::array::from_fn(|_| std::array::from_fn(|_| self.number())),
            host: self.host(),
        }
    }

    fn input(&mut self) -> EngineInput {
        let snapshot = Snapshot {
            taken_at: self.nanos(),
            processes: self.some(Self::process),
            counters: self.some(|source| (source.one(SelfCounter::ALL), source.number())),
            maps: self.some(|source| MapUsage {
                map: source.one(&["hists", "procs", "a map of a newer gpucause"]),
                entries: source.number(),
                capacity: source.number(),
                refused: source.number(),
            }),
        };
        let mut input = EngineInput::new(Arc::new(snapshot), 1.7e9);
        input.throttled_gpus =
            HashMap::from_iter(self.some(|source| (source.number().to_string(), 0.25)));
        input.throttled_cgroups =
            HashMap::from_iter(self.some(|source| (ProcId(source.small()), source.nanos())));
        input
    }
}

fn any_input() -> impl Strategy<Value = EngineInput> {
    // Large and small numbers alike, so that every length of a number comes by.
    let number = (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift);
    proptest::collection::vec(number, 0..900)
        .prop_map(|numbers| Source(numbers.into_iter()).input())
}

fn assert_same(read: &EngineInput, written: &EngineInput) {
    assert_eq!(read.snapshot, written.snapshot);
    assert_eq!(read.unix_seconds.to_bits(), written.unix_seconds.to_bits());
    assert_eq!(read.throttled_gpus, written.throttled_gpus);
    assert_eq!(read.throttled_cgroups, written.throttled_cgroups);
}

proptest! {
    #[test]
    fn what_is_decoded_is_what_was_encoded(input in any_input()) {
        assert_same(&decode(&encode(&input), input.unix_seconds).unwrap(), &input);
    }

    #[test]
    fn whatever_bytes_there_are_it_ends_in_an_answer(
        input in any_input(),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = super::plain(&input);
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = super::read_message(&bytes, 0.0);
    }
}

#[test]
fn what_a_newer_gpucause_adds_goes_under_other_or_is_passed_over() {
    let mut process =
        ProcessSnapshot::new(ProcId(1), Tgid(42), Comm(*b"python3\0\0\0\0\0\0\0\0\0"));
    process.waits = vec![Wait::host(Reason::Futex, Comm([b'x'; 16]), Nanos(5))];
    process.dispatcher_time.0[0][Reason::Futex as usize + 1] = Nanos(7);
    process.dispatcher_time.0[0][Reason::Other as usize + 1] = Nanos(1);
    process.switches = [[1, 2], [3, 4], [5, 6]];
    process.errors = vec![(OpId(0), 2, 3)];
    let snapshot = Snapshot {
        processes: vec![process],
        counters: vec![(SelfCounter::Truncated, 1), (SelfCounter::Unmatched, 2)],
        ..Snapshot::default()
    };
    let plain = super::plain(&EngineInput::new(Arc::new(snapshot), 0.0));
    let rename = |plain: Vec<u8>, old: &str, new: &str| {
        assert_eq!(old.len(), new.len());
        assert!(plain.windows(old.len()).any(|part| part == old.as_bytes()), "{old}");
        let mut renamed = plain;
        let places = 0..=renamed.len() - old.len();
        for at in places {
            if renamed[at..].starts_with(old.as_bytes()) {
                renamed[at..at + new.len()].copy_from_slice(new.as_bytes());
            }
        }
        renamed
    };
    let op = format!("runtime {}", OPS[0].name);
    let renames = [("futex", "fut.x"), ("helper", "help.r"), ("\u{3}cut", "\u{3}c.t")];
    let plain = renames.iter().fold(plain, |plain, (old, new)| rename(plain, old, new));
    let plain = rename(plain, &op, &op.replacen('c', ".", 1));
    let read = super::read_message(&plain, 0.0).unwrap().snapshot;
    let process = &read.processes[0];
    assert_eq!(process.waits[0].reason, Reason::Other);
    assert_eq!(process.dispatcher_time.0[0][Reason::Other as usize + 1], Nanos(8));
    assert_eq!(process.switches, [[1, 2], [0, 0], [5, 6]]);
    assert_eq!(read.counters, [(SelfCounter::Unmatched, 2)]);
    let op = process.errors[0].0;
    assert_eq!(op.op(), None);
    let again = super::read_message(&plain, 0.0).unwrap().snapshot;
    assert_eq!(again.processes[0].errors[0].0, op, "each snapshot has the same number for it");
}

#[test]
fn an_op_is_known_by_its_name_wherever_it_is_in_the_table() {
    let (first, second) = (OPS[0], OPS[1]);
    let mut labels = Writer::default();
    for op in [second, first] {
        labels.bytes(1, format!("{} {}", op.api.label(), op.name).as_bytes());
    }
    let left = Cell::new(super::MOST);
    let axes = wire::read([Ok(labels.bytes.as_slice())], &Axes::default(), &left, Axes::read);
    let ops = axes.unwrap().ops;
    assert_eq!(ops.at(0).unwrap(), Some(OpId(1)));
    assert_eq!(ops.at(1).unwrap(), Some(OpId(0)));
    assert!(ops.at(2).is_err());
}

#[test]
fn what_inflates_without_end_is_refused() {
    use std::io::Write as _;
    let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0; 1 << 20];
    for _ in 0..65 {
        bomb.write_all(&zeros).unwrap();
    }
    let refused = decode(&bomb.finish().unwrap(), 0.0).unwrap_err();
    assert!(matches!(refused, super::SnapshotError::TooLarge), "{refused}");
}

#[test]
fn what_is_small_on_the_wire_and_large_in_memory_is_refused_before_it_is_made() {
    use std::io::Write as _;
    let of_empty_processes = |processes: usize| {
        let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        // No labels, and processes without fields.
        bomb.write_all(&[0x0a, 0]).unwrap();
        bomb.write_all(&[0x22, 0].repeat(processes)).unwrap();
        bomb.finish().unwrap()
    };
    let read = decode(&of_empty_processes(10), 0.0).unwrap();
    assert_eq!(read.snapshot.processes.len(), 10);
    let bomb = of_empty_processes(1 << 20);
    assert!(bomb.len() < 10_000, "{} bytes", bomb.len());
    let refused = decode(&bomb, 0.0).unwrap_err();
    assert!(matches!(refused, super::SnapshotError::TooMuch), "{refused}");
}

#[test]
fn numbers_and_what_lies_deeper_weigh_too() {
    use prost::encoding::encode_varint;
    let field = |tag: u64, inner: &[u8]| {
        let mut bytes = Vec::new();
        encode_varint(tag << 3 | 2, &mut bytes);
        encode_varint(inner.len() as u64, &mut bytes);
        [&bytes, inner].concat()
    };
    let is_too_much = |process: &[u8]| {
        matches!(super::read_message(&field(4, process), 0.0), Err(super::SnapshotError::TooMuch))
    };
    // Launch times of kernels, without fields.
    assert!(!is_too_much(&field(16, &[]).repeat(1000)));
    assert!(is_too_much(&field(16, &[]).repeat(8 << 20)));
    // Counts of a histogram, a byte each.
    assert!(!is_too_much(&field(27, &field(4, &[1; 1000]))));
    assert!(is_too_much(&field(27, &field(4, &vec![1; 34 << 20]))));
}
