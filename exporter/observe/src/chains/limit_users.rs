//! Who used most of what a limit of a victim's cgroup leaves, between two evaluations.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::process_details::cgroup_use::CgroupUse;
use crate::process_details::threads::Usage;

/// Part that is most.
pub(super) const MOST: f64 = 0.5;
/// Shorter times between two readings say little.
const MIN_SPAN: Duration = Duration::from_millis(500);

/// The readings of one chain.
#[derive(Debug, Default)]
pub(super) struct LimitUsers {
    last: Option<(Instant, CgroupUse)>,
    /// The process that used most, and its part.
    found: Option<(u32, f64)>,
    /// How long the threads of that process had run at the last reading.
    threads: HashMap<u32, u64>,
    pool: Option<Pool>,
}

/// Threads of a process that share a name but for its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) threads: usize,
}

impl LimitUsers {
    /// The process that used at least half, and its part; none at the first reading.
    pub(super) fn update(&mut self, now: Instant, used: CgroupUse) -> Option<(u32, f64)> {
        if let Some((last, before)) = &self.last {
            if now.saturating_duration_since(*last) < MIN_SPAN {
                return self.found;
            }
            let before_of = |pid: &u32| before.by.get(pid).copied().unwrap_or_default();
            let since: Vec<_> = used
                .by
                .iter()
                .map(|(pid, own)| (*pid, own.saturating_sub(before_of(pid))))
                .collect();
            let sum = since.iter().map(|(_, own)| own).sum::<u64>();
            let all = used.all.zip(before.all).map_or(0, |(now, then)| now.saturating_sub(then));
            let most = since.into_iter().max_by_key(|(_, own)| *own);
            let share = |(pid, own)| (pid, own as f64 / sum.max(all).max(1) as f64);
            let found = most.map(share).filter(|(_, share)| *share >= MOST);
            if found.map(|own| own.0) != self.found.map(|own| own.0) {
                self.threads.clear();
                self.pool = None;
            }
            self.found = found;
        }
        self.last = Some((now, used));
        self.found
    }

    /// The threads of the process that used most of its time, if several share a name.
    pub(super) fn pool(&mut self, usage: &Usage) -> Option<Pool> {
        let ran: HashMap<u32, u64> = usage.threads.iter().map(|own| (own.tid, own.ran)).collect();
        if !self.threads.is_empty() && self.threads != ran {
            let since = |tid: u32, ran: u64| {
                ran.saturating_sub(self.threads.get(&tid).copied().unwrap_or_default())
            };
            let mut pools: HashMap<&str, (usize, u64)> = HashMap::new();
            let mut all = 0;
            for thread in &usage.threads {
                let ran = since(thread.tid, thread.ran);
                let pool = pools.entry(stem(&thread.comm)).or_default();
                *pool = (pool.0 + usize::from(ran > 0), pool.1 + ran);
                all += ran;
            }
            let most = pools.into_iter().max_by_key(|(_, (_, ran))| *ran);
            let is_pool =
                |&(_, (threads, ran)): &(&str, (usize, u64))| threads > 1 && 2 * ran >= all;
            self.pool = most
                .filter(is_pool)
                .map(|(name, (threads, _))| Pool { name: name.to_owned(), threads });
        }
        self.threads = ran;
        self.pool.clone()
    }
}

/// The name of a thread without its number in the pool.
fn stem(comm: &str) -> &str {
    let stem = comm.trim_end_matches(|c: char| c.is_ascii_digit() || "-_#:./ ".contains(c));
    if stem.is_empty() { comm } else { stem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_details::threads::Thread;

    fn used(by: &[(u32, u64)], all: Option<u64>) -> CgroupUse {
        CgroupUse { by: by.iter().copied().collect(), all }
    }

    #[test]
    fn the_process_that_used_most_since_the_last_reading_is_named() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut users = LimitUsers::default();
        assert_eq!(
            users.update(at(0), used(&[(1, 900), (2, 10)], None)),
            None,
            "nothing is measured"
        );
        assert_eq!(users.update(at(1), used(&[(1, 910), (2, 100)], None)), Some((2, 0.9)));
        assert_eq!(
            users.update(at(1), used(&[(1, 999), (2, 100)], None)),
            Some((2, 0.9)),
            "as before"
        );
        assert_eq!(users.update(at(2), used(&[(1, 950), (2, 140), (3, 30)], None)), None, "nobody");
    }

    #[test]
    fn nobody_is_named_where_processes_that_have_ended_used_most() {
        let begin = Instant::now();
        let mut users = LimitUsers::default();
        users.update(begin, used(&[(1, 100)], Some(1_000)));
        let later = begin + Duration::from_secs(1);
        assert_eq!(users.update(later, used(&[(1, 200)], Some(1_300))), None);
    }

    #[test]
    fn threads_that_share_a_name_but_for_their_number_are_a_pool() {
        let usage = |ran: [u64; 4]| {
            let names = ["train", "omp-0", "omp-1", "omp-2"];
            let thread = |(tid, (comm, ran)): (u32, (&str, u64))| Thread {
                tid,
                comm: comm.into(),
                ran,
                ..Thread::default()
            };
            let threads = (1..).zip(names.into_iter().zip(ran)).map(thread).collect();
            Usage { threads, ran: None }
        };
        let mut users = LimitUsers::default();
        assert_eq!(users.pool(&usage([5, 5, 5, 5])), None, "nothing is measured");
        let pool = users.pool(&usage([9, 15, 15, 5]));
        assert_eq!(pool, Some(Pool { name: "omp".into(), threads: 2 }));
        assert_eq!(users.pool(&usage([90, 16, 16, 5])), None, "one thread");
    }
}
