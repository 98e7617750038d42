//! Which CPUs were idle lately. Masks do not say it: a thread of any program, such as a polling one, may be bound to a CPU.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Evaluations over which CPUs are measured.
const SPAN: usize = 4;
/// The share of the time for which a CPU that counts as idle may be busy, in percent: kernel threads run on each.
const MAX_BUSY_PERCENT: u64 = 10;

/// Ticks of a CPU since the host was booted.
#[derive(Debug, Clone, Copy, Default)]
struct Ticks {
    busy: u64,
    idle: u64,
}

/// The last readings of `/proc/stat`.
#[derive(Debug, Default)]
pub(super) struct IdleCpus {
    readings: VecDeque<BTreeMap<u32, Ticks>>,
}

impl IdleCpus {
    /// Adds a reading. Returns the CPUs that were idle since the oldest that is kept; none at the first.
    pub(super) fn update(&mut self, stat: &str) -> BTreeSet<u32> {
        let now: BTreeMap<_, _> = stat.lines().filter_map(ticks).collect();
        let oldest = self.readings.front();
        let since = |(cpu, now): (&u32, &Ticks)| {
            let before = oldest?.get(cpu)?;
            let busy = now.busy.saturating_sub(before.busy);
            let all = busy + now.idle.saturating_sub(before.idle);
            (all > 0 && 100 * busy <= MAX_BUSY_PERCENT * all).then_some(*cpu)
        };
        let idle = now.iter().filter_map(since).collect();
        if self.readings.len() == SPAN {
            self.readings.pop_front();
        }
        self.readings.push_back(now);
        idle
    }

    /// Later readings are not compared with these.
    pub(super) fn clear(&mut self) {
        self.readings.clear();
    }
}

/// A CPU's line: `cpu3 user nice system idle iowait irq softirq steal ...`; user time includes that of guests.
fn ticks(line: &str) -> Option<(u32, Ticks)> {
    let mut fields = line.strip_prefix("cpu")?.split_whitespace();
    let cpu = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
    let times: Vec<u64> = fields.map_while(|field| field.parse().ok()).take(8).collect();
    let idle = times.get(3..5)?.iter().sum();
    Some((cpu, Ticks { busy: times.iter().sum::<u64>().saturating_sub(idle), idle }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file after so many ticks in which each CPU was busy for these shares, in percent.
    fn stat(ticks: u64, busy: &[u64]) -> String {
        let cpus = busy.iter().enumerate().map(|(cpu, percent)| {
            let busy = ticks * percent / 100;
            format!("cpu{cpu} {busy} 0 0 {} 0 0 0 0 0 0\n", ticks - busy)
        });
        format!("cpu  999 0 0 1 0 0 0 0 0 0\n{}intr 5 1 2\n", cpus.collect::<String>())
    }

    fn list(cpus: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        cpus.into_iter().collect()
    }

    #[test]
    fn a_cpu_that_a_thread_of_any_process_uses_is_not_idle() {
        let mut cpus = IdleCpus::default();
        assert_eq!(cpus.update(&stat(0, &[0, 0, 0])), list([]), "nothing is measured");
        assert_eq!(cpus.update(&stat(150, &[2, 100, 20])), list([0]));
        assert_eq!(cpus.update(""), list([]), "the file cannot be read");
    }

    #[test]
    fn a_cpu_is_idle_again_once_the_work_on_it_is_over_for_seconds() {
        let mut cpus = IdleCpus::default();
        let at = |busy, idle| format!("cpu0 {busy} 0 0 {idle}  0 0 0 0 0 0\n");
        cpus.update(&at(0, 0));
        assert_eq!(cpus.update(&at(150, 0)), list([]));
        let mut idle = 0;
        let mut is_idle = || {
            idle += 150;
            !cpus.update(&at(150, idle)).is_empty()
        };
        let later: Vec<_> = (0..SPAN).map(|_| is_idle()).collect();
        assert_eq!(later, [false, false, false, true]);
    }

    #[test]
    fn what_was_read_before_a_pause_counts_no_more() {
        let mut cpus = IdleCpus::default();
        cpus.update(&stat(0, &[0]));
        cpus.clear();
        assert_eq!(cpus.update(&stat(150, &[0])), list([]));
    }

    #[test]
    fn waits_for_a_disk_are_idle_and_the_time_of_interrupts_and_of_other_guests_is_busy() {
        let busy = |line| ticks(line).map(|(cpu, own)| (cpu, own.busy, own.idle));
        assert_eq!(busy("cpu12 1 2 4 100 200 8 16 32 1 1"), Some((12, 63, 300)));
        assert_eq!(busy("cpu 1 2 4 100 200 8 16 32 1 1"), None, "of all CPUs");
        assert_eq!(busy("ctxt 5"), None);
    }
}
