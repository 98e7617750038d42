//! Names whom threads waited for, so that few are told apart and their counters never step back.

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

/// What was told so far of one process.
#[derive(Debug, Default)]
struct Told {
    preempted_by: TopNames<Arc<str>>,
    blocked_on: HashMap<Reason, TopNames<Arc<str>>>,
}

/// What was told so far of every process.
#[derive(Debug, Default)]
pub struct WaitNames {
    told: HashMap<ProcId, Told>,
    /// Of processes that are not observed any more.
    folded: (u64, u64),
}

impl WaitNames {
    /// The waits of `processes`, `limit` names told apart for each process and metric; what was told of others is forgotten.
    pub fn update(
        &mut self,
        processes: &[ProcessSnapshot],
        limit: usize,
    ) -> HashMap<ProcId, Waits> {
        let mut before = std::mem::take(&mut self.told);
        let mut waits = HashMap::with_capacity(processes.len());
        for process in processes {
            let mut told = before.remove(&process.id).unwrap_or_default();
            waits.insert(process.id, told.update(&process.waits, limit));
            self.told.insert(process.id, told);
        }
        for gone in before.into_values() {
            let (preempted, blocked) = gone.folded();
            self.folded.0 += preempted;
            self.folded.1 += blocked;
        }
        waits
    }

    /// Times that a name was added to `other`, in preemption and in blocked waits.
    #[must_use]
    pub fn folded(&self) -> (u64, u64) {
        self.told
            .values()
            .map(Told::folded)
            .fold(self.folded, |sum, told| (sum.0 + told.0, sum.1 + told.1))
    }
}

impl Told {
    fn update(&mut self, waits: &[Wait], limit: usize) -> Waits {
        let mut preempted: HashMap<Arc<str>, Nanos> = HashMap::new();
        let mut blocked: HashMap<Reason, HashMap<Arc<str>, Nanos>> = HashMap::new();
        for wait in waits {
            let name: Arc<str> = task_name(&wait.on.to_text()).into();
            let total = match wait.reason {
                Reason::Preempted | Reason::Runqueue => preempted.entry(name).or_default(),
                reason => blocked.entry(reason).or_default().entry(name).or_default(),
            };
            total.0 += wait.total.0;
        }
        let (mut preempted_by, others) = self.preempted_by.update(&preempted, limit);
        if others > Nanos(0) {
            add_other(&mut preempted_by, others);
        }
        let mut blocked_on = Vec::new();
        for (reason, names) in blocked {
            let told = self.blocked_on.entry(reason).or_default();
            let (mut top, others) = told.update(&names, limit);
            if others > Nanos(0) {
                add_other(&mut top, others);
            }
            blocked_on.extend(top.into_iter().map(|(name, time)| ((reason, name), time)));
        }
        blocked_on.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Waits { preempted_by, blocked_on }
    }

    fn folded(&self) -> (u64, u64) {
        let blocked = self.blocked_on.values().map(TopNames::folded).sum();
        (self.preempted_by.folded(), blocked)
    }
}

/// A task that is itself called `other` is one of the others.
fn add_other(names: &mut Vec<(Arc<str>, Nanos)>, time: Nanos) {
    match names.iter_mut().find(|(name, _)| &**name == OTHER) {
        Some((_, total)) => total.0 += time.0,
        None => names.push((OTHER.into(), time)),
    }
}

/// Kernel threads of one kind go by one name, without the CPU and number that follow a slash.
pub(crate) fn task_name(comm: &str) -> &str {
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
        let waits = vec![
            wait(Reason::Preempted, "burner", 5),
            wait(Reason::Runqueue, "burner", 2),
            wait(Reason::Futex, "holder", 9),
        ];
        let told =
            WaitNames::default().update(&[process(waits)], LIMIT).remove(&ProcId(1)).unwrap();
        assert_eq!(told.preempted_by, [("burner".into(), Nanos(7))]);
        assert_eq!(told.blocked_on, [((Reason::Futex, "holder".into()), Nanos(9))]);
    }

    #[test]
    fn names_beyond_the_limit_are_told_as_other_and_counted() {
        let many = (1..=15).map(|n| wait(Reason::Preempted, &format!("t{n}"), n)).collect();
        let mut names = WaitNames::default();
        let told = names.update(&[process(many)], LIMIT).remove(&ProcId(1)).unwrap();
        assert_eq!(told.preempted_by.len(), LIMIT + 1);
        assert_eq!(told.preempted_by.last(), Some(&("other".into(), Nanos(1 + 2 + 3 + 4 + 5))));
        assert_eq!(names.folded(), (5, 0));
        names.update(&[], LIMIT);
        assert_eq!(
            names.folded(),
            (5, 0),
            "what was folded stays counted when the process is gone"
        );
    }
}
