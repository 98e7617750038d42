//! The rows of `top`: what each process did between two observations.

mod waits;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, OpId};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::activity::Activity;
use gpucause_observe::observation::Observation;

use crate::live_page::ProcessRow;
use gpucause_investigations::untrusted_text::line;

pub(super) use waits::Wait;

/// Compares each observation with the previous one.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    previous: Option<Arc<Observation>>,
}

/// The activity of processes in one interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    /// Length of the interval; `None` before there were two observations.
    pub(super) elapsed: Option<Nanos>,
    /// The processes that make traced calls.
    pub(super) rows: Vec<Row>,
}

/// Waits of a list that are shown at most.
pub(super) const MAX_WAITS: usize = 5;
/// Processes whose owners are looked up at most.
const MAX_OWNERS: usize = 64;

impl View {
    /// Adds the owners (pod, container or unit) of the tasks that processes waited for, by PID and name.
    pub(super) fn name_owners(&mut self, owner: impl Fn(Tgid, &str) -> Option<String>) {
        let mut known = HashMap::new();
        for row in &mut self.rows {
            let culprit = row.culprit.as_mut().map(|(wait, _)| wait);
            let preempted_by = row.preempted_by.iter_mut().take(MAX_WAITS);
            let shown = preempted_by.chain(row.blocked_on.iter_mut().take(MAX_WAITS));
            for wait in culprit.into_iter().chain(shown) {
                let Some(pid) = wait.pid else { continue };
                if known.len() < MAX_OWNERS || known.contains_key(&pid) {
                    let owner = known.entry(pid).or_insert_with(|| owner(pid, &wait.name));
                    wait.owner = owner.as_deref().map(line);
                }
            }
        }
    }
}

/// One process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) id: ProcId,
    /// The numbers that the live page has, too.
    pub(super) numbers: ProcessRow,
    /// The largest stall: for whom it waited most while that cost time, and the share of the threads' time.
    pub(super) culprit: Option<(Wait, f64)>,
    pub(super) live_bytes: u64,
    /// The oldest call that has not returned, and its age.
    pub(super) in_flight: Option<(&'static str, Nanos)>,
    /// Ops that were called, most time first.
    pub(super) ops: Vec<OpRow>,
    /// Whom its threads waited for, most time first: first for a CPU, then blocked.
    pub(super) preempted_by: Vec<Wait>,
    pub(super) blocked_on: Vec<Wait>,
    /// From one launch's return to the next launch's entry.
    pub(super) gaps: Histogram,
    /// Facts such as the user and the executable, by name; only those that are known.
    pub(super) facts: Vec<(&'static str, String)>,
}

/// The calls of one op.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpRow {
    pub(super) name: &'static str,
    pub(super) api: Api,
    pub(super) calls: u64,
    pub(super) time: Nanos,
    /// Median and 99th percentile of warm calls, or of cold ones where there are no others.
    pub(super) p50: Option<Nanos>,
    pub(super) p99: Option<Nanos>,
    /// Calls that were off the CPU at any time.
    pub(super) stalled: u64,
}

impl Intervals {
    /// Returns the activity since the previous observation; `only` leaves all other processes out.
    pub(super) fn next(&mut self, observation: Arc<Observation>, only: Option<Tgid>) -> View {
        let now = observation.snapshot.taken_at;
        let mut view = View::default();
        if let Some(before) = &self.previous {
            let then = before.snapshot.taken_at;
            let before: HashMap<_, _> =
                before.snapshot.processes.iter().map(|own| (own.id, own)).collect();
            view.elapsed = Some(Nanos(now.0.saturating_sub(then.0)));
            let processes = observation.snapshot.processes.iter();
            let shown = processes.filter(|process| {
                process.dispatches
                    && only.is_none_or(|pid| process.tgid == pid)
                    && process.ended.is_none_or(|ended| ended > then)
            });
            view.rows.extend(shown.map(|process| {
                let mut row = row(process, before.get(&process.id).copied(), (then, now));
                row.facts = facts(&observation, process);
                row
            }));
            collapse_ended(&mut view.rows);
            view.rows.sort_by_key(|row| (row.numbers.pid, row.id));
        }
        self.previous = Some(observation);
        view
    }
}

/// Collapses the processes that ended in the interval into one row, since nobody can act on them. It has the PID and the details of
/// the one that lost most.
fn collapse_ended(rows: &mut Vec<Row>) {
    let (mut ended, live): (Vec<_>, Vec<_>) = rows.drain(..).partition(|row| row.numbers.has_ended);
    *rows = live;
    ended.sort_by(|Row { numbers: a, .. }, Row { numbers: b, .. }| {
        b.lost_seconds.total_cmp(&a.lost_seconds).then(a.pid.cmp(&b.pid))
    });
    let count = ended.len();
    let mut ended = ended.into_iter();
    let Some(mut all) = ended.next() else { return };
    for row in ended {
        all.numbers.absorb(&row.numbers);
        all.live_bytes = all.live_bytes.saturating_add(row.live_bytes);
    }
    if count > 1 {
        all.numbers.comm = format!("{count} exited");
    }
    rows.push(all);
}

fn row(now: &ProcessSnapshot, before: Option<&ProcessSnapshot>, window: (Nanos, Nanos)) -> Row {
    let numbers = ProcessRow::of(&Activity::between(before, now, window));
    let (preempted_by, blocked_on) = waits::between(before, now);
    let in_flight = now
        .dispatchers
        .iter()
        .filter_map(|dispatcher| dispatcher.inflight)
        .filter_map(|(op, age)| Some((op.op()?.name, age)))
        .max_by_key(|&(_, age)| age);
    Row {
        id: now.id,
        culprit: waits::worst(&numbers.parts, &preempted_by, &blocked_on),
        numbers,
        live_bytes: now.memory.live(),
        in_flight,
        ops: ops(now, before),
        preempted_by,
        blocked_on,
        gaps: before.map_or_else(
            || now.launch_gap.clone(),
            |before| now.launch_gap.since(&before.launch_gap),
        ),
        facts: Vec::new(),
    }
}

fn ops(now: &ProcessSnapshot, before: Option<&ProcessSnapshot>) -> Vec<OpRow> {
    let stalled = |process: &ProcessSnapshot, id| {
        process.stalls.iter().filter(|stall| stall.op == id).map(|stall| stall.calls).sum::<u64>()
    };
    let earlier = before.map(ProcessSnapshot::calls_by_op).unwrap_or_default();
    let mut by_op: BTreeMap<OpId, [Histogram; 2]> = BTreeMap::new();
    for (id, cold, durations) in now.calls_by_op() {
        let known = earlier.iter().find(|own| (own.0, own.1) == (id, cold));
        let added = known.map_or_else(|| durations.clone(), |own| durations.since(&own.2));
        if added.count() > 0 {
            by_op.entry(id).or_default()[usize::from(cold)] = added;
        }
    }
    let row = |(id, [warm, cold]): (OpId, [Histogram; 2])| {
        let op = id.op()?;
        let shown = if warm.count() > 0 { &warm } else { &cold };
        Some(OpRow {
            name: op.name,
            api: op.api,
            calls: warm.count() + cold.count(),
            time: Nanos(warm.sum.0.saturating_add(cold.sum.0)),
            p50: shown.quantile(0.5),
            p99: shown.quantile(0.99),
            // Counted at its own time: a call more may have left the CPU than has returned.
            stalled: stalled(now, id)
                .saturating_sub(before.map_or(0, |before| stalled(before, id)))
                .min(warm.count() + cold.count()),
        })
    };
    let mut rows: Vec<OpRow> = by_op.into_iter().filter_map(row).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.time), row.name));
    rows
}

fn facts(observation: &Observation, process: &ProcessSnapshot) -> Vec<(&'static str, String)> {
    let details = observation.details.get(&process.id).cloned().unwrap_or_default();
    let rank = match process.rank {
        Some((rank, ranks)) => format!("{rank} of {ranks}"),
        None => details.rank.to_string(),
    };
    let facts = [
        ("exe", details.exe.to_string()),
        ("user", details.user.to_string()),
        ("rank", rank),
        ("container", details.container_id.chars().take(12).collect()),
    ];
    let known = facts.into_iter().filter(|(_, fact)| !fact.is_empty());
    known.map(|(name, fact)| (name, line(&fact))).collect()
}

#[cfg(test)]
pub(super) mod tests;
