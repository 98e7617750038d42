//! The tasks that threads of a process waited for, and the worst culprit among them.

use std::collections::BTreeMap;

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::{Reason, Relation};
use gpucause_abi::{Nanos, Tgid};
use gpucause_observe::wait_names::task_name;

use gpucause_investigations::untrusted_text::line;

use crate::time_shares::{Part, Parts};

/// Time waited for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    /// For a CPU always [`Reason::Preempted`].
    pub(crate) reason: Reason,
    /// Who had the CPU, or ended the wait.
    pub(crate) name: String,
    /// Its process, where that is another one.
    pub(crate) pid: Option<Tgid>,
    /// The pod, container or unit of that process.
    pub(crate) owner: Option<String>,
    /// True if that process works for this one, such as a data-loader worker.
    pub(crate) is_worker: bool,
    pub(crate) time: Nanos,
}

impl Wait {
    /// The task with its process and owner.
    pub(crate) fn whom(&self) -> String {
        match (self.pid, &self.owner) {
            (Some(pid), Some(owner)) => format!("{} ({pid}, {owner})", self.name),
            (Some(pid), None) => format!("{} ({pid})", self.name),
            (None, _) => self.name.clone(),
        }
    }

    /// The reason and the task.
    pub(crate) fn text(&self) -> String {
        let whom = self.whom();
        match self.reason {
            Reason::Preempted | Reason::Runqueue => format!("CPU: {whom}"),
            reason if self.is_worker && !Part::blocked(reason).is_lost() => format!("data: {whom}"),
            reason => format!("{}: {whom}", reason.label()),
        }
    }
}

/// Waits of one name.
#[derive(Default)]
struct Total {
    time: u64,
    /// The longest of the waits for another process, and which that was.
    longest: u64,
    pid: Option<Tgid>,
    is_worker: bool,
}

fn totals(process: &ProcessSnapshot) -> BTreeMap<(Reason, String), Total> {
    let mut totals = BTreeMap::<_, Total>::new();
    for wait in &process.waits {
        let reason = match wait.reason {
            Reason::Preempted | Reason::Runqueue => Reason::Preempted,
            blocked => blocked,
        };
        let name = line(task_name(&wait.on.to_text()));
        let total = totals.entry((reason, name)).or_default();
        total.time += wait.total.0;
        total.is_worker |= wait.relation == Relation::Worker;
        let other = wait.tgid.filter(|&tgid| tgid != process.tgid);
        if other.is_some() && wait.total.0 >= total.longest {
            (total.longest, total.pid) = (wait.total.0, other);
        }
    }
    totals
}

/// Waits for a CPU, and others, most time first.
pub(super) fn between(
    before: Option<&ProcessSnapshot>,
    now: &ProcessSnapshot,
) -> (Vec<Wait>, Vec<Wait>) {
    let before = before.map(totals).unwrap_or_default();
    let mut waits: Vec<Wait> = totals(now)
        .into_iter()
        .map(|(key, total)| {
            let earlier = before.get(&key).map_or(0, |before| before.time);
            let time = Nanos(total.time.saturating_sub(earlier));
            let Total { pid, is_worker, .. } = total;
            Wait { reason: key.0, name: key.1, pid, owner: None, is_worker, time }
        })
        .filter(|wait| wait.time.0 > 0)
        .collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.time));
    waits.into_iter().partition(|wait| wait.reason == Reason::Preempted)
}

/// The largest stall and its share of all time: the wait that explains most of the lost time, or of the time without data, which is
/// that of waits for a worker. Where there is hardly any, of the time that was blocked otherwise, which idle programs have too. A
/// wait counts up to the time that was blocked for its reason outside of calls that wait for the GPU.
pub(super) fn worst(
    parts: &Parts,
    preempted_by: &[Wait],
    blocked_on: &[Wait],
) -> Option<(Wait, f64)> {
    let harm = |wait: &Wait| wait.time.min(parts.of(Part::blocked(wait.reason)));
    let total = parts.total().0;
    let costs = |wait: &Wait| {
        (Part::blocked(wait.reason).is_lost() || wait.is_worker) && harm(wait).0 >= total / 100
    };
    let worst =
        preempted_by.iter().chain(blocked_on).max_by_key(|wait| (costs(wait), harm(wait)))?;
    (harm(worst).0 > 0 && total > 0).then(|| (worst.clone(), harm(worst).0 as f64 / total as f64))
}
