//! Derives chains from the events of each thread. Chains in the file are ignored.
//!
//! - A call is slow from four times the usual duration: the median of launches that are not a kernel's first, and of copies below
//!   1 MiB. It takes at least ten rows.
//! - A slow launch that is its kernel's first of the process in the file is cold. A slow copy of 1 MiB or more is large where its
//!   throughput is at least a quarter of the usual one. Neither has a culprit.
//! - The excess of other slow calls is explained by off-CPU time of the same thread within the call, if that is at least half of
//!   the excess and there are a hundred calls.
//! - Gaps between calls are explained by the thread's own waits. A thread without waits in the file is not evaluated.

mod detection;
mod gaps;
mod slow;

use std::collections::{BTreeMap, HashMap};

use gpucause_abi::op::Class;
use gpucause_abi::state::Reason;
use gpucause_engine::chain::Cause;

use super::Ingero;
use super::events::FirstLaunches;
use super::lists::Key;
use super::rows::{self, Thread, Threads};
use gpucause_trace::recording::{NodeChain, ProcessIndex, RecordingError, sort_worst_first};

/// Share of an effect that a cause must explain to be named.
const EXPLAINED: f64 = 0.5;

/// A call to be evaluated.
#[derive(Debug, Clone, Copy)]
struct Call {
    start: i64,
    end: i64,
    tid: u32,
    /// The kernel of a launch, the bytes of a copy.
    arg0: i64,
    outermost: bool,
}

impl Call {
    fn duration(&self) -> u64 {
        self.end.abs_diff(self.start)
    }
}

/// Calls by process, source and operation.
type Calls = BTreeMap<(ProcessIndex, i64, i64), Vec<Call>>;
/// Start and end of the outermost calls of each thread.
type Outermost = BTreeMap<(ProcessIndex, u32), Vec<(i64, i64)>>;

/// The input of the rules.
struct RuleContext<'a> {
    file: &'a Ingero,
    threads: Threads,
    first: FirstLaunches,
    calls: Calls,
    outermost: Outermost,
}

/// Off-CPU time, by reason and by the other task.
#[derive(Debug, Default)]
struct Waits {
    all: u64,
    by_reason: BTreeMap<Option<Reason>, u64>,
    by_task: BTreeMap<(Option<Reason>, u32), u64>,
}

impl Waits {
    fn add(&mut self, thread: &Thread, start: i64, end: i64) {
        for (wait, time) in thread.waits_in(start, end) {
            self.all = self.all.saturating_add(time);
            *self.by_reason.entry(wait.reason).or_default() += time;
            if let Some(task) = wait.by {
                *self.by_task.entry((wait.reason, task)).or_default() += time;
            }
        }
    }

    fn of(&self, reasons: &[Reason]) -> u64 {
        reasons.iter().filter_map(|&reason| self.by_reason.get(&Some(reason))).sum()
    }

    /// The task with most of the time of some reasons.
    fn worst(&self, reasons: &[Reason]) -> Option<(u32, u64)> {
        let mut tasks: HashMap<u32, u64> = HashMap::new();
        for (&(reason, task), &time) in &self.by_task {
            if reason.is_some_and(|reason| reasons.contains(&reason)) {
                *tasks.entry(task).or_default() += time;
            }
        }
        tasks.into_iter().max_by_key(|&(task, time)| (time, task))
    }

    /// The cause whose reasons explain at least half of `whole`.
    fn cause(&self, whole: u64) -> Option<(Cause, &'static [Reason])> {
        const NO_CPU: &[Reason] = &[Reason::Preempted, Reason::Runqueue];
        const DISK: &[Reason] = &[Reason::Io];
        let enough = |reasons| share(self.of(reasons), whole) >= EXPLAINED;
        if enough(NO_CPU) {
            let preempted = self.of(&[Reason::Preempted]) >= self.of(&[Reason::Runqueue]);
            let cause = if preempted { Cause::CpuPreemption } else { Cause::RunqueueWait };
            return Some((cause, NO_CPU));
        }
        enough(DISK).then_some((Cause::BlockIo, DISK))
    }
}

/// `part / whole`, 0 for an empty whole.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Ingero {
    pub(super) fn derive_chains(&self) -> Result<Vec<NodeChain>, RecordingError> {
        let mut context = RuleContext {
            file: self,
            threads: Threads::read(&self.file, &self.lists)?,
            first: self.first_launches()?,
            calls: Calls::new(),
            outermost: Outermost::new(),
        };
        context.read_calls()?;
        let unstored = self.unstored()?;
        let mut chains = context.slow_calls(&unstored);
        chains.extend(context.host_gaps());
        chains.extend(context.waits_without_calls());
        sort_worst_first(&mut chains);
        Ok(chains)
    }
}

impl RuleContext<'_> {
    fn read_calls(&mut self) -> Result<(), RecordingError> {
        let Self { file, calls, outermost: outer, .. } = self;
        let mut over: HashMap<Key, i64> = HashMap::new();
        rows::each(&file.file, &file.lists, "source NOT IN (3, 5, 6, 7)", |event| {
            let function = file.codes.function(event.source, event.op);
            let process = file.lists.process(event.node, event.pid);
            let (Some(function), Some(process)) = (function, process) else { return Ok(()) };
            let (start, end) = (event.start(), event.end());
            let key = (event.node, event.tid);
            let outermost = over.get(&key).is_none_or(|&until| end > until);
            if outermost {
                over.insert(key, end);
                outer.entry((process, event.tid)).or_default().push((start, end));
            }
            if matches!(function.class, Some(Class::Launch | Class::Memcpy)) {
                let call = Call { start, end, tid: event.tid, arg0: event.arg0, outermost };
                calls.entry((process, event.source, event.op)).or_default().push(call);
            }
            Ok(())
        })
    }

    /// A thread with waits in the file.
    fn captured(&self, process: ProcessIndex, tid: u32) -> Option<&Thread> {
        let node = self.file.lists.get(process)?.node;
        self.threads.get(node, tid).filter(|thread| !thread.off.is_empty())
    }

    /// Time from the first call of a process to the end of the last, in nanoseconds.
    fn span(&self, process: ProcessIndex) -> u64 {
        let own = self.outermost.range((process, 0)..=(process, u32::MAX));
        let (first, last) = own
            .flat_map(|(_, calls)| calls)
            .fold((i64::MAX, i64::MIN), |all, call| (all.0.min(call.0), all.1.max(call.1)));
        u64::try_from(last.saturating_sub(first)).unwrap_or(0)
    }
}
