//! Which thread of a process has a victim's CPU: the accounts have competitors by process.
//!
//! A thread is named only on a proof: all other threads of its process that may run on the victim's CPUs, ended ones included, ran
//! for less than half of what the process took from the victim in the same time.

use std::collections::{BTreeSet, HashMap};

use gpucause_engine::chain;
use gpucause_engine::cpu_list::cpus;

use crate::process_details::threads::{Thread, Usage};

/// Least time taken, in seconds, that a thread is named by.
const MIN_TAKEN: f64 = 0.2;
/// The chain and the threads are not read at the same time: others may have run for so many seconds more.
const SKEW: f64 = 0.1;
/// Evaluations that are measured as one: later ones may be about another thread.
const SPAN: u32 = 20;

/// The competition of a victim with one process.
#[derive(Debug, Default)]
pub(super) struct Competition {
    since: Option<Start>,
    thread: Option<chain::Thread>,
}

/// Measurements at the start of a competition.
#[derive(Debug)]
struct Start {
    pid: u32,
    /// Seconds that the process had taken from the victim.
    taken: f64,
    ran: u64,
    threads: HashMap<u32, u64>,
    evaluations: u32,
}

impl Competition {
    /// The thread that had most of what the process took from the victim: `taken` seconds so far.
    pub(super) fn update(
        &mut self,
        pid: u32,
        taken: f64,
        usage: &Usage,
        victim_cpus: &str,
    ) -> Option<chain::Thread> {
        if self.since.as_ref().is_some_and(|since| since.pid != pid) {
            *self = Self::default();
        }
        let Some(ran) = usage.ran else { return self.thread.clone() };
        // The time of a process only grows: this is another one of the same number and name.
        if self.since.as_ref().is_some_and(|since| ran < since.ran) {
            *self = Self::default();
        }
        if let Some(since) = &mut self.since {
            since.evaluations += 1;
            if taken - since.taken >= MIN_TAKEN {
                self.thread = since.competitor(taken, ran, usage, &cpus(victim_cpus));
            }
        }
        if self.since.as_ref().is_none_or(|since| since.evaluations >= SPAN) {
            let threads = usage.threads.iter().map(|thread| (thread.tid, thread.ran)).collect();
            self.since = Some(Start { pid, taken, ran, threads, evaluations: 0 });
        }
        self.thread.clone()
    }
}

impl Start {
    fn competitor(
        &self,
        taken: f64,
        ran: u64,
        usage: &Usage,
        victim_cpus: &BTreeSet<u32>,
    ) -> Option<chain::Thread> {
        let since = |thread: &Thread| {
            thread.ran.saturating_sub(self.threads.get(&thread.tid).copied().unwrap_or_default())
        };
        let may_compete = |thread: &&Thread| {
            victim_cpus.is_empty() || !cpus(&thread.cpus).is_disjoint(victim_cpus)
        };
        let (competing, elsewhere): (Vec<_>, Vec<_>) = usage.threads.iter().partition(may_compete);
        let most = competing.into_iter().max_by_key(|thread| since(thread))?;
        let elsewhere: u64 = elsewhere.into_iter().map(since).sum();
        let others = ran.saturating_sub(self.ran).saturating_sub(elsewhere);
        let others = others.saturating_sub(since(most)) as f64 / 1e9;
        let half = (taken - self.taken) / 2.0;
        let is_proven = others + SKEW <= half && since(most) as f64 / 1e9 >= half;
        // The only thread of a process is the process.
        (is_proven && usage.threads.len() > 1)
            .then(|| chain::Thread { tid: most.tid, comm: most.comm.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads with their CPUs and the milliseconds for which they ran, and those of threads that have ended.
    fn usage(threads: &[(u32, &str, u64)], ended: u64) -> Usage {
        let thread = |&(tid, cpus, ms): &(u32, &str, u64)| Thread {
            tid,
            comm: format!("thread-{tid}"),
            cpus: cpus.into(),
            ran: ms * 1_000_000,
        };
        let threads: Vec<_> = threads.iter().map(thread).collect();
        let ran = threads.iter().map(|thread| thread.ran).sum::<u64>() + ended * 1_000_000;
        Usage { threads, ran: Some(ran) }
    }

    fn named(before: &Usage, after: &Usage, taken: f64, victim_cpus: &str) -> Option<u32> {
        let mut competition = Competition::default();
        assert_eq!(competition.update(7, 5.0, before, victim_cpus), None, "nothing is measured");
        competition.update(7, 5.0 + taken, after, victim_cpus).map(|thread| thread.tid)
    }

    #[test]
    fn the_only_thread_that_may_run_on_the_victims_cpus_and_did_is_named() {
        let before = usage(&[(7, "0", 9_000), (8, "1", 100)], 0);
        let after = usage(&[(7, "0", 10_000), (8, "1", 700)], 0);
        assert_eq!(named(&before, &after, 0.57, "1"), Some(8));
        assert_eq!(named(&before, &after, 0.57, "0-1"), None, "the other may have had it");
        assert_eq!(named(&before, &after, 0.57, ""), None, "the victim's CPUs are unknown");
        assert_eq!(named(&before, &after, 0.1, "1"), None, "too little to say");
    }

    #[test]
    fn another_process_of_the_same_number_and_name_is_measured_from_its_own_start() {
        let mut competition = Competition::default();
        let before = usage(&[(7, "0", 90_000), (8, "1", 9_000)], 0);
        competition.update(7, 5.0, &before, "1");
        let other = usage(&[(7, "0", 100), (9, "1", 600)], 0);
        assert_eq!(competition.update(7, 5.6, &other, "1"), None, "some of it was the other's");
        let later = usage(&[(7, "0", 200), (9, "1", 1_200)], 0);
        assert_eq!(competition.update(7, 6.2, &later, "1").map(|own| own.tid), Some(9));
    }

    #[test]
    fn a_thread_is_named_if_the_others_ran_for_less_than_half_of_what_was_taken() {
        let before = usage(&[(7, "0-1", 0), (8, "0-1", 0)], 0);
        let after = |others, ended| usage(&[(7, "0-1", others), (8, "0-1", 900)], ended);
        assert_eq!(named(&before, &after(200, 0), 1.0, "0-1"), Some(8));
        assert_eq!(named(&before, &after(600, 0), 1.0, "0-1"), None);
        assert_eq!(named(&before, &after(0, 600), 1.0, "0-1"), None, "threads that have ended");
        assert_eq!(named(&before, &before, 1.0, "0-1"), None, "the kernel keeps no times");
    }

    #[test]
    fn the_only_thread_of_a_process_has_no_name_of_its_own() {
        let (before, after) = (usage(&[(7, "1", 0)], 0), usage(&[(7, "1", 900)], 0));
        assert_eq!(named(&before, &after, 0.9, "1"), None);
    }

    #[test]
    fn a_thread_stays_named_until_another_is_or_none_is_proven() {
        let times = |a, b| usage(&[(7, "1", a), (8, "1", b)], 0);
        let mut competition = Competition::default();
        let mut update = |taken, usage: &Usage| {
            competition.update(7, taken, usage, "1").map(|thread| thread.tid)
        };
        update(0.0, &times(0, 0));
        assert_eq!(update(1.0, &times(0, 1_000)), Some(8));
        for _ in 0..SPAN {
            assert_eq!(update(1.0, &times(0, 1_000)), Some(8), "nothing was taken since");
        }
        assert_eq!(update(2.0, &times(1_000, 1_000)), Some(7), "measured again");
        assert_eq!(update(3.0, &times(1_500, 2_500)), None);
    }
}
