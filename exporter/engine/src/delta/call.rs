//! Calls of one op between two snapshots. Histogram deltas are computed on demand: most windows of most ops are healthy.

use gpucause_abi::Nanos;
use gpucause_abi::op::OpId;
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{CallKind, CallSnapshot, ProcessSnapshot, StallSnapshot};

use super::{Values, entry};
use crate::baseline::{CallBaseline, ProcessBaseline};

#[derive(Debug)]
pub(crate) struct CallDelta<'a> {
    pub(crate) op: OpId,
    pub(crate) cold: bool,
    /// True if the calls were made inside other traced calls.
    pub(crate) nested: bool,
    /// Total time.
    pub(crate) sum: Nanos,
    /// Index in the snapshot.
    index: usize,
    baseline: Option<&'a CallBaseline>,
    now: &'a CallSnapshot,
    process_baseline: Option<&'a ProcessBaseline>,
    process: &'a ProcessSnapshot,
}

impl<'a> CallDelta<'a> {
    /// The calls at this index of `process`; `None` without calls.
    pub(super) fn of(
        process_baseline: Option<&'a ProcessBaseline>,
        process: &'a ProcessSnapshot,
        index: usize,
        now: &'a CallSnapshot,
    ) -> Option<Self> {
        let (op, cold, nested) = now.kind();
        let same = |other: &CallBaseline| other.kind == now.kind();
        let baseline = process_baseline.and_then(|baseline| entry(&baseline.calls, index, same));
        let sum_baseline = baseline.map_or(Nanos(0), |baseline| baseline.durations.sum);
        // Every call takes time.
        if now.durations.sum == sum_baseline {
            return None;
        }
        let sum = now.durations.sum.less(sum_baseline);
        Some(Self { op, cold, nested, sum, index, baseline, now, process_baseline, process })
    }

    pub(crate) const fn kind(&self) -> CallKind {
        (self.op, self.cold, self.nested)
    }

    pub(crate) fn count(&self) -> u64 {
        let baseline = self.baseline.map_or(0, |baseline| baseline.durations.count());
        self.now.durations.count().saturating_sub(baseline)
    }

    /// Off-CPU time inside them, by reason.
    pub(crate) fn offcpu(&self) -> [Nanos; REASONS] {
        let same = self.kind();
        let offcpu = |stalls: &[StallSnapshot]| {
            let stall = entry(stalls, self.index, |stall| stall.kind() == same);
            stall.map_or([Nanos(0); REASONS], |stall| stall.offcpu)
        };
        let mut time = offcpu(&self.process.stalls);
        let baseline = self.process_baseline.map(|baseline| offcpu(&baseline.stalls));
        for (time, baseline) in time.iter_mut().zip(baseline.unwrap_or_default()) {
            *time = time.less(baseline);
        }
        time
    }

    /// Sets `values` to the durations of all calls.
    pub(crate) fn durations_into(&self, values: &mut Values) {
        values.set_since(self.baseline.map(|baseline| &baseline.durations), &self.now.durations);
    }

    /// Sets `values` to the durations of calls that were off the CPU.
    pub(crate) fn stalled_into(&self, values: &mut Values) {
        values.set_since(
            self.baseline.and_then(|baseline| baseline.stalled.as_deref()),
            &self.now.stalled,
        );
    }
}
