//! A recording in memory, for tests.

pub(crate) mod python;

use std::ops::ControlFlow;
use std::sync::Arc;

use gpucause_abi::op::Api;
use gpucause_abi::state::{BlockOperation, Reason};
use gpucause_engine::chain::{
    Cause, Chain, Course, Culprit, Effect, Evidence, Severity, Step, Victim,
};

use super::{ExportError, Selection, Written, perfetto};
use gpucause_trace::recording::{
    Call, CallStatistics, Completeness, Durations, Event, EventId, Filter, Kind, Node, NodeChain,
    NodeIndex, OffCpu, Process, ProcessIndex, RecordedSnapshot, Recording, RecordingError, Session,
    Stack, StackFrame, StackId, Task,
};

/// When made-up recordings begin.
pub(crate) const BEGIN: i64 = 1_700_000_000_000_000_000;
pub(crate) const MS: u64 = 1_000_000;

/// A recording in memory.
#[derive(Debug, Default)]
pub(crate) struct MadeUp {
    pub(crate) nodes: Vec<Node>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) processes: Vec<Process>,
    pub(crate) chains: Vec<NodeChain>,
    pub(crate) calls: Vec<CallStatistics>,
    pub(crate) events: Vec<Event>,
    pub(crate) snapshots: Vec<RecordedSnapshot>,
    /// True if reading fails after the last event.
    pub(crate) is_damaged: bool,
}

impl MadeUp {
    /// A node with a process of PID 100, and no events.
    pub(crate) fn new() -> Self {
        let mut made_up = Self::default();
        made_up.add_node("gpu-1", None);
        made_up.add_process(0, 100, "trainer", Some(3));
        made_up
    }

    pub(crate) fn add_node(&mut self, name: &str, clock_ahead_ns: Option<i64>) {
        let node = NodeIndex(u16::try_from(self.nodes.len()).unwrap());
        self.nodes.push(Node { name: name.into(), clock_ahead_ns });
        self.sessions.push(Session {
            node,
            started_ns: BEGIN + clock_ahead_ns.unwrap_or(0),
            ended_ns: Some(BEGIN + clock_ahead_ns.unwrap_or(0) + 10_000_000_000),
            recorder: "gpucause 0.1.0".into(),
            details: vec![("kernel".into(), "6.18".into())],
            lost_events: Some(2),
        });
    }

    pub(crate) fn add_process(&mut self, node: u16, pid: u32, comm: &str, rank: Option<u32>) {
        let details = vec![("container_id".into(), "0123".into())];
        let node = NodeIndex(node);
        self.processes.push(Process { node, pid, comm: comm.into(), rank, details });
    }

    /// Adds an event of a thread of a process. Times are from the beginning, by the node's own clock.
    pub(crate) fn add(&mut self, (process, tid): (u32, u32), at: u64, length: u64, kind: Kind) {
        let node = self.processes[process as usize].node;
        let ahead = self.nodes[usize::from(node.0)].clock_ahead_ns.unwrap_or(0);
        let sequence = self.events.len() as u64 + 1;
        self.events.push(Event {
            id: EventId { node, sequence },
            start_ns: (BEGIN + ahead).saturating_add_unsigned(at),
            duration_ns: length,
            process: ProcessIndex(process),
            tid,
            kind,
            stack: None,
        });
    }

    pub(crate) fn exported(
        &self,
        selection: &Selection,
    ) -> (Result<Written, ExportError>, Vec<u8>) {
        let mut out = Vec::new();
        let written = perfetto(self, selection, &mut out, &mut |_| {});
        (written, out)
    }

    /// An iteration of two ranks on two nodes, the second with a clock that is an hour ahead.
    pub(crate) fn two_nodes() -> Self {
        let mut made_up = Self::new();
        made_up.add_node("gpu-2", Some(3_600_000_000_000));
        made_up.add_process(1, 100, "trainer", Some(4));
        for process in 0..2 {
            let main = (process, 100);
            let second = 1000 * MS * u64::from(process);
            made_up.add(main, second + 10 * MS, 9 * MS, call(Api::Runtime, "cudaLaunchKernel"));
            made_up.add(main, second + 11 * MS, 7 * MS, inner("cuLaunchKernel"));
            made_up.add(main, second + 12 * MS, 5 * MS, preempted_by("fluent-bit", 7));
            made_up.add(main, second + 40 * MS, 2 * MS, waited(Reason::Futex));
            made_up.add((process, 101), second + 41 * MS, 3 * MS, read(4096));
            made_up.add((process, 101), second + 42 * MS, 4 * MS, read(8192));
            made_up.add(main, second + 50 * MS, 0, Kind::PageAllocation { bytes: 4096 });
            made_up.add(main, second + 60 * MS, MS, sized("cudaMalloc", 1 << 20));
            made_up.add(main, second + 70 * MS, MS, sized("cudaFree", 1 << 20));
        }
        made_up.events[0].stack = Some(StackId(1));
        made_up.chains.push(chain(NodeIndex(1), 100, 3601.0625, 3601.125));
        made_up.events.sort_by_key(|event| event.start_ns);
        made_up
    }
}

impl Recording for MadeUp {
    fn format(&self) -> String {
        "made-up trace".into()
    }

    fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    fn processes(&self) -> &[Process] {
        &self.processes
    }

    fn thread_name(&self, _: ProcessIndex, tid: u32) -> Option<&str> {
        (tid == 101).then_some("loader")
    }

    fn chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        Ok(self.chains.clone())
    }

    fn calls(&self) -> Result<Vec<CallStatistics>, RecordingError> {
        Ok(self.calls.clone())
    }

    fn events(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        for event in &self.events {
            if filter.has(event) && each(event).is_break() {
                return Ok(());
            }
        }
        if self.is_damaged {
            let (path, reason) = ("made-up.db".into(), "it ends here".into());
            return Err(RecordingError::Damaged(path, reason));
        }
        Ok(())
    }

    fn snapshots(
        &self,
        each: &mut dyn FnMut(RecordedSnapshot) -> ControlFlow<()>,
    ) -> Result<(), RecordingError> {
        let _ = self.snapshots.iter().cloned().try_for_each(each);
        Ok(())
    }

    fn event_count(&self) -> Result<u64, RecordingError> {
        Ok(self.events.len() as u64)
    }

    fn stack(&self, id: StackId) -> Result<Option<Stack>, RecordingError> {
        let frame = |function: &str, line| StackFrame {
            address: 0x1000,
            function: Some(function.into()),
            file: Some("train.py".into()),
            line,
            ..StackFrame::default()
        };
        let stack = Stack { frames: vec![frame("step", Some(12)), frame("main", None)] };
        Ok((id == StackId(1)).then_some(stack))
    }
}

pub(crate) fn call(api: Api, op: &str) -> Kind {
    Kind::Call(Call {
        api,
        op: op.into(),
        cold: op.contains("Launch").then_some(false),
        outermost: true,
        code: 0,
        off_cpu_ns: Some(5 * MS),
        bytes: None,
        copy: None,
        kernel: None,
    })
}

/// A driver call on the way of a runtime call.
pub(crate) fn inner(op: &str) -> Kind {
    let Kind::Call(inner) = call(Api::Driver, op) else { unreachable!("it is a call") };
    Kind::Call(Call { outermost: false, kernel: Some("gemm".into()), ..inner })
}

/// A call that takes or frees device memory.
pub(crate) fn sized(op: &str, bytes: u64) -> Kind {
    let Kind::Call(sized) = call(Api::Runtime, op) else { unreachable!("it is a call") };
    Kind::Call(Call { bytes: Some(bytes), ..sized })
}

pub(crate) fn waited(reason: Reason) -> Kind {
    Kind::OffCpu(OffCpu { reason: Some(reason), by: None })
}

pub(crate) fn preempted_by(comm: &str, pid: u32) -> Kind {
    let by = Some(Task { pid: Some(pid), comm: comm.into() });
    Kind::OffCpu(OffCpu { reason: Some(Reason::Preempted), by })
}

pub(crate) fn read(bytes: u64) -> Kind {
    let device: Option<Arc<str>> = Some("nvme0n1".into());
    Kind::BlockIo { operation: BlockOperation::Read, bytes, device }
}

/// A chain that was seen in this time, in seconds from the beginning.
pub(crate) fn chain(node: NodeIndex, pid: u32, first: f64, last: f64) -> NodeChain {
    let begin = (BEGIN / 1_000_000_000) as f64;
    let chain = Chain {
        id: "c-1".into(),
        cause: Cause::CpuPreemption,
        effect: Effect::LaunchTail,
        severity: Severity::High,
        victim: Victim { pid, tid: pid, comm: "trainer".into(), ..Victim::default() },
        culprit: Some(Culprit { pid: 7, comm: "fluent-bit".into(), ..Culprit::default() }),
        explained: 0.75,
        lost_seconds: 0.5,
        evidence: Evidence::default().with("preempted_seconds", 0.25),
        path: vec![Step {
            from: "fluent-bit".into(),
            to: "trainer".into(),
            mechanism: "preemption".into(),
            seconds: 0.5,
        }],
        sentence: "fluent-bit preempted trainer".into(),
        fix: "pin it".into(),
        first_seen: begin + first,
        last_seen: begin + last,
        losses: Vec::new(),
        ongoing: None,
        code: Vec::new(),
        course: Course::default(),
    };
    NodeChain { node, chain }
}

pub(crate) fn statistics(op: &str, completeness: Completeness) -> CallStatistics {
    let (count, sum_ns, max_ns) = (1000, 1000, 10);
    let durations = Durations { count, sum_ns, p50_ns: None, p99_ns: None, max_ns, completeness };
    CallStatistics {
        process: ProcessIndex(0),
        api: Api::Runtime,
        op: op.into(),
        cold: None,
        durations,
        stalled: None,
        off_cpu_ns: None,
    }
}
