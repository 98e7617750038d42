//! Calls of one op between two snapshots. Histograms are compared when somebody asks: most windows of most ops are healthy.

use std::cell::OnceCell;

use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::OpId;
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{CallSnapshot, ProcessSnapshot};

use super::{Values, entry};

/// Calls of one op.
#[derive(Debug)]
pub(crate) struct CallDelta<'a> {
    pub(crate) op: OpId,
    pub(crate) cold: bool,
    /// What they took together.
    pub(crate) sum: Nanos,
    /// Off-CPU time inside them, by reason.
    pub(crate) offcpu: [Nanos; REASONS],
    durations: Since<'a>,
    stalled: Since<'a>,
}

/// Values that a histogram has more than an earlier one.
#[derive(Debug)]
struct Since<'a> {
    before: Option<&'a Histogram>,
    now: &'a Histogram,
    values: OnceCell<Values>,
}

impl<'a> CallDelta<'a> {
    /// The calls at this position of `now`; nothing when there were none.
    pub(super) fn of(
        before: Option<&'a ProcessSnapshot>,
        now: &'a ProcessSnapshot,
        index: usize,
        call: &'a CallSnapshot,
    ) -> Option<Self> {
        let (op, cold) = (call.op, call.cold);
        let same = |other: &CallSnapshot| (other.op, other.cold) == (op, cold);
        let earlier = before.and_then(|before| entry(&before.calls, index, same));
        let sum_before = earlier.map_or(Nanos(0), |earlier| earlier.durations.sum);
        // No call takes no time.
        if call.durations.sum == sum_before {
            return None;
        }
        let offcpu = |process: &ProcessSnapshot| {
            let stall = entry(&process.stalls, index, |stall| (stall.op, stall.cold) == (op, cold));
            stall.map_or([Nanos(0); REASONS], |stall| stall.offcpu)
        };
        let mut time = offcpu(now);
        for (time, earlier) in time.iter_mut().zip(before.map(offcpu).unwrap_or_default()) {
            *time = time.less(earlier);
        }
        let since = |before, now| Since { before, now, values: OnceCell::new() };
        Some(Self {
            op,
            cold,
            sum: call.durations.sum.less(sum_before),
            offcpu: time,
            durations: since(earlier.map(|earlier| &earlier.durations), &call.durations),
            stalled: since(earlier.map(|earlier| &earlier.stalled), &call.stalled),
        })
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        let Since { before, now, .. } = &self.durations;
        now.count().saturating_sub(before.map_or(0, Histogram::count))
    }

    /// All of them.
    pub(crate) fn durations(&self) -> &Values {
        self.durations.values()
    }

    /// Those that were off the CPU at some time.
    pub(crate) fn stalled(&self) -> &Values {
        self.stalled.values()
    }
}

impl Since<'_> {
    fn values(&self) -> &Values {
        self.values.get_or_init(|| Values::since(self.before, self.now))
    }
}
