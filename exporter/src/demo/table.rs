//! The live table: a line a process, of what happened since the line before.

use std::collections::HashMap;
use std::fmt::Write as _;

use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, Class};
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::state::Reason;
use gpucause_abi::{Nanos, ProcId};

/// Columns are named again after this many tables.
const HEADING_EVERY: u32 = 10;

/// What is remembered from one table to the next.
#[derive(Debug, Default)]
pub(super) struct Table {
    before: HashMap<ProcId, Account>,
    taken_at: Nanos,
    printed: u32,
}

/// Launches of a process, and the time it was off the CPU meanwhile.
#[derive(Debug, Clone, Default)]
struct Account {
    launches: Histogram,
    offcpu: [u64; Reason::COUNT],
}

impl Account {
    /// Warm launches of the outermost layer that has any, and the off-CPU time inside them.
    fn of(process: &ProcessSnapshot) -> Self {
        let is_launch = |op: gpucause_abi::op::OpId, api| {
            op.op().is_some_and(|op| op.class == Class::Launch && op.api == api)
        };
        let api = [Api::Runtime, Api::Driver]
            .into_iter()
            .find(|&api| process.calls.iter().any(|call| is_launch(call.op, api)));
        let mut account = Self::default();
        let Some(api) = api else { return account };
        for call in process.calls.iter().filter(|call| is_launch(call.op, api) && !call.cold) {
            account.launches.merge(&call.durations);
        }
        for stall in process.stalls.iter().filter(|stall| is_launch(stall.op, api)) {
            for (total, time) in account.offcpu.iter_mut().zip(stall.offcpu) {
                *total += time.0;
            }
        }
        account
    }

    fn since(&self, before: &Self) -> Self {
        let mut offcpu = self.offcpu;
        for (time, earlier) in offcpu.iter_mut().zip(before.offcpu) {
            *time = time.saturating_sub(earlier);
        }
        Self { launches: self.launches.since(&before.launches), offcpu }
    }
}

impl Table {
    /// The lines for what happened between the last snapshot and this one.
    pub(super) fn next(&mut self, snapshot: &Snapshot) -> String {
        let elapsed = Nanos(snapshot.taken_at.0.saturating_sub(self.taken_at.0));
        let mut text = String::new();
        let mut after = HashMap::new();
        for process in snapshot.processes.iter().filter(|p| p.ended.is_none() && p.dispatches) {
            let account = Account::of(process);
            if let Some(before) = self.before.get(&process.id) {
                line(&mut text, process, &account.since(before), elapsed);
            }
            after.insert(process.id, account);
        }
        self.before = after;
        self.taken_at = snapshot.taken_at;
        if !text.is_empty() {
            if self.printed.is_multiple_of(HEADING_EVERY) {
                text.insert_str(0, HEADING);
            }
            self.printed += 1;
        }
        text
    }
}

const HEADING: &str = "    PID  COMM             LAUNCHES/S       P50       P99  SPREAD  OFF-CPU INSIDE LAUNCHES, BY REASON\n";

fn line(text: &mut String, process: &ProcessSnapshot, account: &Account, elapsed: Nanos) {
    let rate = account.launches.count() as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let (p50, p99) = (account.launches.quantile(0.5), account.launches.quantile(0.99));
    let spread = match (p50, p99) {
        (Some(p50), Some(p99)) if p50.0 > 0 => format!("{:.0}x", p99.0 as f64 / p50.0 as f64),
        _ => "-".into(),
    };
    let _ = write!(
        text,
        "{:>7}  {:<15}  {rate:>10.0}  {:>8}  {:>8}  {spread:>6}  ",
        process.tgid,
        process.comm.to_text(),
        duration(p50),
        duration(p99),
    );
    let reasons = Reason::ALL.iter().zip(account.offcpu).filter(|&(_, time)| time > 0);
    let parts: Vec<_> = reasons
        .map(|(reason, time)| {
            let percent = 100.0 * time as f64 / elapsed.0.max(1) as f64;
            format!(
                "{} {} ({percent:.0} % of the time)",
                reason.label(),
                duration(Some(Nanos(time)))
            )
        })
        .collect();
    text.push_str(if parts.is_empty() { "none" } else { "" });
    text.push_str(&parts.join(", "));
    text.push('\n');
}

fn duration(time: Option<Nanos>) -> String {
    let Some(time) = time else { return "-".into() };
    let ns = time.0 as f64;
    match time.0 {
        0..1_000 => format!("{ns:.0} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_in_the_unit_that_fits() {
        assert_eq!(duration(None), "-");
        assert_eq!(duration(Some(Nanos(999))), "999 ns");
        assert_eq!(duration(Some(Nanos(1_500))), "1.5 us");
        assert_eq!(duration(Some(Nanos(4_100_000))), "4.1 ms");
        assert_eq!(duration(Some(Nanos(2_000_000_000))), "2.00 s");
    }

    #[test]
    fn a_line_tells_only_what_happened_since_the_last_one() {
        let launches = |n| {
            Histogram::from_slots(
                Nanos(n * 20),
                Nanos(20),
                (0..=20).map(|s| if s == 20 { n } else { 0 }),
            )
        };
        let account = |n, preempted| {
            let mut offcpu = [0; Reason::COUNT];
            offcpu[Reason::Preempted as usize] = preempted;
            Account { launches: launches(n), offcpu }
        };
        let since = account(30, 5_000).since(&account(10, 2_000));
        assert_eq!(since.launches.count(), 20);
        assert_eq!(since.offcpu[Reason::Preempted as usize], 3_000);
    }
}
