use std::sync::Arc;

use gpucause_abi::op::Api;
use proptest::prelude::*;

use super::*;
use crate::recording::{
    CallStatistics, EventId, Node, NodeChain, OffCpu, ProcessIndex, Session, Stack, StackId,
    WaitStatistics,
};

/// Events in memory, of two nodes with a process each.
#[derive(Debug)]
struct InMemory {
    nodes: Vec<Node>,
    processes: Vec<Process>,
    events: Vec<Event>,
}

impl InMemory {
    fn of(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.start_ns);
        let node = |name: &str| Node { name: name.into(), clock_ahead_ns: None };
        let process = |node, pid| Process {
            node: NodeIndex(node),
            pid,
            comm: "trainer".into(),
            rank: None,
            details: Vec::new(),
        };
        let nodes = vec![node("a"), node("b")];
        Self { nodes, processes: vec![process(0, 7), process(1, 8)], events }
    }
}

impl Recording for InMemory {
    fn format(&self) -> String {
        "in memory".into()
    }

    fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn sessions(&self) -> &[Session] {
        &[]
    }

    fn processes(&self) -> &[Process] {
        &self.processes
    }

    fn thread_name(&self, _process: ProcessIndex, _tid: u32) -> Option<&str> {
        None
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        Ok(Vec::new())
    }

    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    fn waits(&self) -> Result<Vec<WaitStatistics>, RecordingError> {
        Ok(Vec::new())
    }

    fn events(
        &self,
        _filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        let _ = self.events.iter().try_for_each(each);
        Ok(())
    }

    fn event_count(&self) -> Result<u64, RecordingError> {
        Ok(self.events.len() as u64)
    }

    fn stack(&self, _id: StackId) -> Result<Option<Stack>, RecordingError> {
        Ok(None)
    }
}

const SECOND: i64 = 1_000_000_000;

fn event(node: u16, start_ns: i64, duration_ns: u64, kind: Kind) -> Event {
    let id = EventId { node: NodeIndex(node), sequence: start_ns.unsigned_abs() };
    let process = ProcessIndex(u32::from(node));
    Event { id, start_ns, duration_ns, process, tid: 7, kind, stack: None }
}

fn call(op: &str, bytes: Option<u64>, off_cpu_ns: Option<u64>) -> Kind {
    Kind::Call(Call {
        api: Api::Runtime,
        op: Arc::from(op),
        cold: Some(false),
        outermost: true,
        code: 0,
        off_cpu_ns,
        bytes,
        copy: Some("h2d"),
        kernel: None,
    })
}

fn looks(recording: &InMemory, node: u16) -> Vec<Look> {
    let mut looks = Vec::new();
    rebuild(recording, NodeIndex(node), Duration::from_secs(1), &mut |look| {
        looks.push(look);
        ControlFlow::Continue(())
    })
    .unwrap();
    looks
}

#[test]
fn a_look_tells_what_has_ended_by_then_and_nothing_of_other_nodes() {
    let recording = InMemory::of(vec![
        event(0, 0, 100, call("cudaMalloc", Some(4096), None)),
        event(0, SECOND / 2, 2 * SECOND as u64, call("cudaLaunchKernel", None, Some(500))),
        event(1, SECOND / 2, 5, call("cudaLaunchKernel", None, None)),
        event(0, 3 * SECOND, 70, call("cudaMemcpy", Some(10), None)),
        event(0, 3 * SECOND + 1, 9, Kind::OffCpu(OffCpu { reason: Some(Reason::Io), by: None })),
    ]);
    let looks = looks(&recording, 0);
    let counts: Vec<u64> = looks
        .iter()
        .map(|look| {
            look.snapshot.processes[0].calls.iter().map(|call| call.durations.count()).sum()
        })
        .collect();
    assert_eq!(looks.iter().map(|l| l.unix_ns).collect::<Vec<_>>()[..2], [SECOND, 2 * SECOND]);
    assert_eq!(counts, [1, 1, 2, 3]);
    let process = &looks.last().unwrap().snapshot.processes[0];
    assert_eq!((process.tgid, process.memory.allocated, process.dispatches), (Tgid(7), 4096, true));
    assert_eq!(process.copied[CopyKind::H2d as usize], 10);
    assert_eq!(process.stalls[0].offcpu[Reason::Other as usize], Nanos(500));
    let (role, reason, waits) = &process.offcpu[0];
    assert_eq!((*role, *reason, waits.count()), (Role::Dispatcher, Reason::Io, 1));
}

#[test]
fn a_pause_of_a_year_takes_no_look_a_second() {
    let year = 365 * 24 * 3600 * SECOND;
    let first = event(0, 0, 1, call("cudaFree", None, None));
    let recording = InMemory::of(vec![first, event(0, year, 1, call("cudaFree", None, None))]);
    let looks = looks(&recording, 0);
    assert!(looks.len() <= 3, "{}", looks.len());
    assert_eq!(looks.last().unwrap().snapshot.processes[0].calls[0].durations.count(), 2);
}

proptest! {
    #[test]
    fn counters_never_step_back_and_every_event_of_the_node_is_counted_in_the_end(
        events in proptest::collection::vec((0..2u16, 0..20 * SECOND, 0..4 * SECOND as u64), 1..60)
    ) {
        let of = |&(node, start, duration): &(u16, i64, u64)| {
            event(node, start, duration, call("cudaLaunchKernel", None, None))
        };
        let recording = InMemory::of(events.iter().map(of).collect());
        for node in 0..2 {
            let expected = events.iter().filter(|own| own.0 == node).count() as u64;
            let mut before = (i64::MIN, 0);
            for look in looks(&recording, node) {
                let calls = look.snapshot.processes.iter().flat_map(|process| &process.calls);
                let now = (look.unix_ns, calls.map(|call| call.durations.count()).sum());
                prop_assert!(now.0 > before.0 || before.0 == i64::MIN, "{now:?} after {before:?}");
                prop_assert!(now.1 >= before.1);
                before = now;
            }
            prop_assert_eq!(before.1, expected);
        }
    }
}
