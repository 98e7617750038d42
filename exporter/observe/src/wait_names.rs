//! Names of the tasks that threads waited for: few are tracked individually, and no counter decreases.

use crate::images::{ProcessKey, by_process};
use crate::top_names::TopNames;
use gpucause_abi::snapshot::{ProcessSnapshot, Wait};
use gpucause_abi::state::Reason;
use gpucause_abi::{Nanos, ProcId};
use std::collections::HashMap;
use std::sync::Arc;

/// The name of all others.
const OTHER: &str = "other";

/// Whom one process waited for, most time first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waits {
    /// Who had the CPU while it could have run.
    pub preempted_by: Vec<(Arc<str>, Nanos)>,
    /// Who ended its blocked waits, by reason.
    pub blocked_on: Vec<((Reason, Arc<str>), Nanos)>,
}

/// The names of one process.
#[derive(Debug, Default)]
struct ProcessNames {
    preempted_by: TopNames<Arc<str>>,
    blocked_on: HashMap<Reason, TopNames<Arc<str>>>,
}

/// The names of every process.
#[derive(Debug, Default)]
pub struct WaitNames {
    processes: HashMap<ProcessKey, ProcessNames>,
    /// Names that processes which are no longer observed had in `other`.
    aggregated: (u64, u64),
}

impl WaitNames {
    /// The waits of `accounts` over all images of a process, by the latest image; each is behind the process that it is part of.
    /// `limit` names are exported for each process and metric. Other processes are forgotten.
    pub fn update<'a>(
        &mut self,
        accounts: impl IntoIterator<Item = (&'a ProcessSnapshot, &'a ProcessSnapshot)>,
        limit: usize,
    ) -> HashMap<ProcId, Waits> {
        let mut before = std::mem::take(&mut self.processes);
        let mut waits = HashMap::new();
        for (process, images) in by_process(accounts) {
            let latest = images.iter().map(|(image, _)| image);
            let Some(latest) = latest.max_by_key(|image| (image.first_seen, image.id)) else {
                continue;
            };
            let mut names = before.remove(&process).unwrap_or_default();
            let all = images.iter().flat_map(|(_, account)| &account.waits);
            waits.insert(latest.id, names.update(all, limit));
            self.processes.insert(process, names);
        }
        for gone in before.into_values() {
            let (preempted, blocked) = gone.aggregated();
            self.aggregated.0 += preempted;
            self.aggregated.1 += blocked;
        }
        waits
    }

    /// Times that a name was added to `other`, in preemption and in blocked waits.
    #[must_use]
    pub fn aggregated(&self) -> (u64, u64) {
        let counts = self.processes.values().map(ProcessNames::aggregated);
        counts.fold(self.aggregated, |sum, own| (sum.0 + own.0, sum.1 + own.1))
    }
}

impl ProcessNames {
    fn update<'a>(&mut self, waits: impl Iterator<Item = &'a Wait>, limit: usize) -> Waits {
        let mut preempted: HashMap<Arc<str>, Nanos> = HashMap::new();
        let mut blocked: HashMap<Reason, HashMap<Arc<str>, Nanos>> = HashMap::new();
        for wait in waits {
            let text = wait.on.text();
            let (names, totals) = match wait.reason {
                Reason::Preempted | Reason::Runqueue => (&self.preempted_by, &mut preempted),
                reason => (
                    &*self.blocked_on.entry(reason).or_default(),
                    blocked.entry(reason).or_default(),
                ),
            };
            add(totals, names, task_name(&text), wait.total);
        }
        let preempted_by = exported(&mut self.preempted_by, preempted, limit);
        let mut blocked_on = Vec::new();
        for (reason, names) in blocked {
            let names = exported(self.blocked_on.entry(reason).or_default(), names, limit);
            blocked_on.extend(names.into_iter().map(|(name, time)| ((reason, name), time)));
        }
        blocked_on.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Waits { preempted_by, blocked_on }
    }

    fn aggregated(&self) -> (u64, u64) {
        let blocked = self.blocked_on.values().map(TopNames::aggregated).sum();
        (self.preempted_by.aggregated(), blocked)
    }
}

/// Adds to the time of a name, which names of the last update share.
fn add(totals: &mut HashMap<Arc<str>, Nanos>, names: &TopNames<Arc<str>>, name: &str, time: Nanos) {
    if let Some(total) = totals.get_mut(name) {
        total.0 += time.0;
        return;
    }
    totals.insert(names.known(name).unwrap_or_else(|| name.into()), time);
}

/// The names with the most time, and the others. A task that is itself called `other` is always one of the others: were it
/// tracked, `other` would decrease when it is not any more.
fn exported(
    tracked: &mut TopNames<Arc<str>>,
    mut totals: HashMap<Arc<str>, Nanos>,
    limit: usize,
) -> Vec<(Arc<str>, Nanos)> {
    let named_other = totals.remove(OTHER).unwrap_or_default();
    let (mut names, others) = tracked.update(&totals, limit);
    let others = Nanos(others.0 + named_other.0);
    if others > Nanos(0) {
        names.push((OTHER.into(), others));
    }
    names
}

/// Kernel threads of one kind go by one name, without the CPU and number that follow a slash.
pub fn task_name(comm: &str) -> &str {
    match comm.split_once('/') {
        Some((kind, rest)) if rest.starts_with(|c: char| c.is_ascii_digit() || c == 'u') => kind,
        _ => comm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::Tgid;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::Comm;

    const LIMIT: usize = 10;

    /// Processes that have no workers.
    fn pairs(
        processes: &[ProcessSnapshot],
    ) -> impl Iterator<Item = (&ProcessSnapshot, &ProcessSnapshot)> {
        processes.iter().map(|process| (process, process))
    }

    fn wait(reason: Reason, name: &str, total: u64) -> Wait {
        let mut comm = [0; COMM_LEN];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        Wait::host(reason, Comm(comm), Nanos(total))
    }

    fn process(waits: Vec<Wait>) -> ProcessSnapshot {
        let comm = Comm([b'x'; COMM_LEN]);
        ProcessSnapshot { waits, ..ProcessSnapshot::new(ProcId(1), Tgid(1), comm) }
    }

    #[test]
    fn kernel_threads_of_one_kind_share_a_name() {
        assert_eq!(task_name("kworker/1:3-ev"), "kworker");
        assert_eq!(task_name("kworker/u8:0"), "kworker");
        assert_eq!(task_name("ksoftirqd/0"), "ksoftirqd");
        assert_eq!(task_name("a/b"), "a/b");
    }

    #[test]
    fn preemption_and_run_queue_time_of_one_culprit_add_up() {
        let given = vec![
            wait(Reason::Preempted, "burner", 5),
            wait(Reason::Runqueue, "burner", 2),
            wait(Reason::Futex, "holder", 9),
        ];
        let waits = WaitNames::default()
            .update(pairs(&[process(given)]), LIMIT)
            .remove(&ProcId(1))
            .unwrap();
        assert_eq!(waits.preempted_by, [("burner".into(), Nanos(7))]);
        assert_eq!(waits.blocked_on, [((Reason::Futex, "holder".into()), Nanos(9))]);
    }

    #[test]
    fn names_beyond_the_limit_are_aggregated_into_other_and_counted() {
        let many = (1..=15).map(|n| wait(Reason::Preempted, &format!("t{n}"), n)).collect();
        let mut names = WaitNames::default();
        let waits = names.update(pairs(&[process(many)]), LIMIT).remove(&ProcId(1)).unwrap();
        assert_eq!(waits.preempted_by.len(), LIMIT + 1);
        assert_eq!(waits.preempted_by.last(), Some(&("other".into(), Nanos(1 + 2 + 3 + 4 + 5))));
        assert_eq!(names.aggregated(), (5, 0));
        names.update([], LIMIT);
        assert_eq!(
            names.aggregated(),
            (5, 0),
            "aggregated names stay counted when the process is gone"
        );
    }
}
