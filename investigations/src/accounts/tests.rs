use gpucause_abi::op::Api;
use proptest::prelude::*;

use super::*;
use crate::export::tests::{BEGIN, MadeUp, call, sized, waited};

const SECOND: u64 = 1_000_000_000;

/// Two nodes with a process each, and events of theirs: process, start and duration.
fn recording(events: impl IntoIterator<Item = (u32, u64, u64, Kind)>) -> MadeUp {
    let mut made_up = MadeUp::new();
    made_up.add_node("gpu-2", None);
    made_up.add_process(1, 200, "trainer", None);
    for (process, start, duration, kind) in events {
        made_up.add((process, 100), start, duration, kind);
    }
    made_up.events.sort_by_key(|event| event.start_ns);
    made_up
}

fn launch() -> Kind {
    call(Api::Runtime, "cudaLaunchKernel")
}

fn snapshots(recording: &MadeUp, node: u16) -> Vec<TimedSnapshot> {
    let mut snapshots = Vec::new();
    rebuild(recording, NodeIndex(node), Duration::from_secs(1), &mut |taken| {
        snapshots.push(taken);
        ControlFlow::Continue(())
    })
    .unwrap();
    snapshots
}

#[test]
fn a_look_tells_what_has_ended_by_then_and_nothing_of_other_nodes() {
    let Kind::Call(copy) = sized("cudaMemcpy", 10) else { unreachable!("it is a call") };
    let copy = Kind::Call(Call { copy: Some("h2d"), ..copy });
    let recording = recording([
        (0, 0, 100, sized("cudaMalloc", 4096)),
        (0, SECOND / 2, 2 * SECOND, launch()),
        (1, SECOND / 2, 5, launch()),
        (0, 3 * SECOND, 70, copy),
        (0, 3 * SECOND + 1, 9, waited(Reason::Io)),
    ]);
    let snapshots = snapshots(&recording, 0);
    let begin = BEGIN.unsigned_abs();
    let at = |taken: &TimedSnapshot| taken.unix_ns.unsigned_abs() - begin;
    assert_eq!(snapshots.iter().map(at).collect::<Vec<_>>()[..2], [SECOND, 2 * SECOND]);
    let calls = |taken: &TimedSnapshot| {
        taken.snapshot.processes[0].calls.iter().map(|call| call.durations.count()).sum::<u64>()
    };
    assert_eq!(snapshots.iter().map(calls).collect::<Vec<_>>(), [1, 1, 2, 3]);
    let process = &snapshots.last().unwrap().snapshot.processes[0];
    assert_eq!(
        (process.tgid, process.memory.allocated, process.dispatches),
        (Tgid(100), 4096, true)
    );
    assert_eq!(process.first_seen, Nanos(0));
    assert_eq!(process.copied[CopyKind::H2d as usize], 10);
    assert!(process.stalls.iter().all(|own| own.offcpu[Reason::Other as usize] > Nanos(0)));
    let (role, reason, waits) = &process.offcpu[0];
    assert_eq!((*role, *reason, waits.count()), (Role::Dispatcher, Reason::Io, 1));
}

#[test]
fn a_process_is_seen_from_when_its_first_event_began_not_from_when_that_ended() {
    let recording = recording([
        (0, 0, 9 * SECOND, launch()),
        (0, SECOND, 5, launch()),
        (0, 3 * SECOND, 5, launch()),
    ]);
    let seen =
        |taken: &TimedSnapshot| taken.snapshot.processes.first().map(|process| process.first_seen);
    let seen: Vec<_> = snapshots(&recording, 0).iter().filter_map(seen).collect();
    assert_eq!((seen[0], seen.last()), (Nanos(SECOND), Some(&Nanos(0))));
}

#[test]
fn a_pause_of_a_year_takes_no_look_a_second() {
    let year = 365 * 24 * 3600 * SECOND;
    let snapshots = snapshots(&recording([(0, 0, 1, launch()), (0, year, 1, launch())]), 0);
    assert!(snapshots.len() <= 3, "{}", snapshots.len());
    assert_eq!(snapshots.last().unwrap().snapshot.processes[0].calls[0].durations.count(), 2);
}

proptest! {
    #[test]
    fn counters_never_step_back_and_every_event_of_the_node_is_counted_in_the_end(
        events in proptest::collection::vec((0..2u32, 0..20 * SECOND, 0..4 * SECOND), 1..60)
    ) {
        let of = |&(process, start, duration): &(u32, u64, u64)| (process, start, duration, launch());
        let recording = recording(events.iter().map(of));
        for node in 0..2 {
            let expected = events.iter().filter(|own| own.0 == node).count() as u64;
            let mut before = (i64::MIN, 0);
            for taken in snapshots(&recording, u16::try_from(node).unwrap()) {
                let calls = taken.snapshot.processes.iter().flat_map(|process| &process.calls);
                let now = (taken.unix_ns, calls.map(|call| call.durations.count()).sum());
                prop_assert!(now.0 > before.0, "{now:?} after {before:?}");
                prop_assert!(now.1 >= before.1);
                before = now;
            }
            prop_assert_eq!(before.1, expected);
        }
    }
}
