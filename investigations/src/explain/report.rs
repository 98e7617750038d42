//! The report of live nodes or of a trace file: both have one form.

use serde::Serialize;

use super::Incident;
use crate::fleet::ClockOffset;
use crate::observation::Outcome;

/// The version of its JSON; see [`Versioned`](crate::json::Versioned).
pub const REPORT_VERSION: u32 = 2;

/// Report on live nodes or a trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The worst outcome of its nodes; nothing was found only where every node answered and observed.
    pub outcome: Outcome,
    /// The trace file; `None` for live nodes.
    pub file: Option<TraceFile>,
    /// Each node: of a file in its order, of live ones those that answered, the worst chain first.
    pub nodes: Vec<NodeReport>,
    /// Nodes that did not answer.
    pub failures: Vec<FailureReport>,
    /// Clock skew to mind when times of different live nodes are compared.
    pub warnings: Vec<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeReport {
    /// Address of a live one.
    pub url: Option<String>,
    /// Its clock skew, where that was measured.
    pub clock: Option<ClockOffset>,
    /// Its incident.
    #[serde(flatten)]
    pub incident: Incident,
    /// Its data in the trace file; `None` for a live one.
    pub recorded: Option<Recorded>,
}

/// A node that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReport {
    /// Its address.
    pub url: String,
    /// The error.
    pub reason: String,
}

impl Report {
    /// Title of a document.
    pub(super) fn title(&self) -> String {
        let (answered, silent) = (self.nodes.len(), self.failures.len());
        match (&self.file, &self.nodes[..]) {
            (Some(file), _) => file.path.clone(),
            (None, [only]) if silent == 0 => only.incident.node.clone(),
            _ => format!("{answered} of {} nodes", answered + silent),
        }
    }

    /// Returns the reasons why it is incomplete: nodes that did not answer, and clocks that differ.
    pub(super) fn notes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let silent = self.failures.iter().map(|failure| ("No answer", &*failure.reason));
        silent.chain(self.warnings.iter().map(|warning| ("Clock", &**warning)))
    }
}

/// The trace file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceFile {
    /// Its path.
    pub path: String,
    /// Format and version, such as `gpucause trace, schema 1`.
    pub format: String,
    /// Events in it.
    pub events: u64,
    /// Events dropped because a buffer was full, where they were counted.
    pub lost_events: Option<u64>,
    /// True if some statistics cover more events than are stored: their percentiles are of a sample.
    pub is_sample: bool,
    /// The recorder's runs.
    pub sessions: Vec<SessionLine>,
}

/// One run of a recorder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionLine {
    /// The node.
    pub node: String,
    /// Program and version.
    pub recorder: String,
    /// Start in seconds since the Unix epoch.
    pub from: f64,
    /// End; `None` when the recorder was killed.
    pub until: Option<f64>,
    /// Further names and values.
    pub details: Vec<(String, String)>,
}

/// Recorded data of a node, except its chains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recorded {
    /// Start of the first event, in seconds since the Unix epoch.
    pub from: Option<f64>,
    /// End of the last event.
    pub until: Option<f64>,
    /// For how long recorders ran.
    pub seconds: f64,
    /// Where runs overlap: the longest time that a process was recorded only by those that do not count.
    pub left_out_seconds: Option<f64>,
    /// How long before the last event totals and chains end, where they do: those of a recorder that was cut off, or still runs.
    pub behind_seconds: Option<f64>,
    /// The processes of `record --pid`, to which chains and rows are limited where no process is asked for; empty where all were
    /// recorded.
    pub pids: Vec<u32>,
    /// Processes whose rows are there because they are culprits of those that were asked for, and follow theirs.
    pub culprits: Vec<u32>,
    /// Calls, by process and function.
    pub calls: Vec<CallLine>,
    /// Off-CPU time, by process and reason, summed over threads.
    pub waits: Vec<WaitLine>,
    /// The time of dispatcher threads between calls, by process, where the file has accounts.
    pub between_calls: Vec<BetweenLine>,
    /// Threads that make calls, of processes whose calls are all stored.
    pub threads: Vec<ThreadLine>,
    /// Call stacks of the stored calls, by total time, the longest first; those that read alike are one.
    pub stacks: Vec<StackLine>,
}

impl Recorded {
    /// Returns notes on what rows and chains lack.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let behind = self.behind_seconds.map(|seconds| {
            format!(
                "Totals and chains end {seconds:.1} s before the last event of their recording."
            )
        });
        self.overlap().into_iter().chain(behind)
    }

    /// Returns the note on recorders that ran at the same time.
    fn overlap(&self) -> Option<String> {
        let seconds = self.left_out_seconds?;
        let rest = match seconds {
            0.05.. => format!(", without up to {seconds:.1} s that only another recorded"),
            _ => String::new(),
        };
        Some(format!("Recordings overlap: rows of a process are of one of them{rest}."))
    }

    /// The mark of a process that is only there as a culprit.
    pub(super) fn mark_of(&self, pid: u32) -> &'static str {
        if self.culprits.contains(&pid) { "  culprit" } else { "" }
    }

    /// Rows of the processes that were asked for come before those of their culprits.
    pub(super) fn culprits_last(&mut self) {
        let culprits = std::mem::take(&mut self.culprits);
        self.calls.sort_by_key(|own| culprits.contains(&own.pid));
        self.waits.sort_by_key(|own| culprits.contains(&own.pid));
        self.between_calls.sort_by_key(|own| culprits.contains(&own.pid));
        self.threads.sort_by_key(|own| culprits.contains(&own.pid));
        self.stacks.sort_by_key(|own| culprits.contains(&own.pid));
        self.culprits = culprits;
    }
}

/// Calls of one function from one stack.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StackLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The function.
    pub op: String,
    /// Number of stored calls with this stack.
    pub count: u64,
    /// Sum.
    pub sum_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
    /// The innermost frame first; the native frames, then those of Python.
    pub frames: Vec<String>,
}

/// Calls of one function by one process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The function.
    pub op: String,
    /// True for first launches of a kernel; `None` where they are not counted separately.
    pub cold: Option<bool>,
    /// Number of calls.
    pub count: u64,
    /// Number of calls that are events of the file.
    pub events: u64,
    /// Number of stored calls, which the percentiles cover, where they do not cover all calls.
    pub stored: Option<u64>,
    /// Sum.
    pub sum_seconds: f64,
    /// The median.
    pub p50_seconds: Option<f64>,
    /// The 99th percentile.
    pub p99_seconds: Option<f64>,
    /// The longest.
    pub max_seconds: f64,
}

/// Off-CPU time of one process for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Label of the reason, or `not recorded`.
    pub reason: &'static str,
    /// Number of waits.
    pub count: u64,
    /// Sum.
    pub seconds: f64,
    /// Share of the time for which the process was recorded; above 1 where several threads waited.
    pub share_of_recorded: f64,
    /// The longest.
    pub max_seconds: f64,
    /// True if some waits were counted but not stored.
    pub is_sample: bool,
}

/// Dispatcher time between calls, from the accounts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BetweenLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Time of its dispatcher threads.
    pub dispatcher_seconds: f64,
    /// The part of it between calls.
    pub between_seconds: f64,
    /// The part of that off the CPU.
    pub off_cpu_seconds: f64,
}

/// The time of a thread that makes calls, by the stored events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadLine {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name, else that of its process.
    pub comm: String,
    /// Number of outermost calls.
    pub calls: usize,
    /// From the first call to the end of the last, in each run of a recorder.
    pub span_seconds: f64,
    /// Time between calls.
    pub host_gap_seconds: f64,
    /// The longest time between two calls.
    pub longest_gap_seconds: f64,
    /// Off-CPU time between calls; `None` where the file has no waits of the thread.
    pub off_cpu_in_gaps_seconds: Option<f64>,
}
