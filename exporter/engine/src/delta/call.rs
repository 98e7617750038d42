//! Calls of one op between two snapshots. Histograms are compared when somebody asks: most windows of most ops are healthy.

use gpucause_abi::Nanos;
use gpucause_abi::op::OpId;
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{CallKind, CallSnapshot, ProcessSnapshot, StallSnapshot};

use super::{Values, entry};
use crate::past::{Before, CallBefore};

/// Calls of one op.
#[derive(Debug)]
pub(crate) struct CallDelta<'a> {
    pub(crate) op: OpId,
    pub(crate) cold: bool,
    /// Whether they were made within other traced calls.
    pub(crate) nested: bool,
    /// What they took together.
    pub(crate) sum: Nanos,
    /// Where they are in the accounts.
    index: usize,
    before: Option<&'a CallBefore>,
    now: &'a CallSnapshot,
    process_before: Option<&'a Before>,
    process: &'a ProcessSnapshot,
}

impl<'a> CallDelta<'a> {
    /// The calls at this position of `process`; nothing when there were none.
    pub(super) fn of(
        process_before: Option<&'a Before>,
        process: &'a ProcessSnapshot,
        index: usize,
        now: &'a CallSnapshot,
    ) -> Option<Self> {
        let (op, cold, nested) = now.kind();
        let same = |other: &CallBefore| other.kind == now.kind();
        let before = process_before.and_then(|before| entry(&before.calls, index, same));
        let sum_before = before.map_or(Nanos(0), |before| before.durations.sum);
        // No call takes no time.
        if now.durations.sum == sum_before {
            return None;
        }
        let sum = now.durations.sum.less(sum_before);
        Some(Self { op, cold, nested, sum, index, before, now, process_before, process })
    }

    /// Which calls these are.
    pub(crate) const fn kind(&self) -> CallKind {
        (self.op, self.cold, self.nested)
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        let before = self.before.map_or(0, |before| before.durations.count());
        self.now.durations.count().saturating_sub(before)
    }

    /// Off-CPU time inside them, by reason.
    pub(crate) fn offcpu(&self) -> [Nanos; REASONS] {
        let same = self.kind();
        let offcpu = |stalls: &[StallSnapshot]| {
            let stall = entry(stalls, self.index, |stall| stall.kind() == same);
            stall.map_or([Nanos(0); REASONS], |stall| stall.offcpu)
        };
        let mut time = offcpu(&self.process.stalls);
        let before = self.process_before.map(|before| offcpu(&before.stalls));
        for (time, before) in time.iter_mut().zip(before.unwrap_or_default()) {
            *time = time.less(before);
        }
        time
    }

    /// Puts all of them into `values`, in the place of what was there.
    pub(crate) fn durations_into(&self, values: &mut Values) {
        values.set_since(self.before.map(|before| &before.durations), &self.now.durations);
    }

    /// Puts those of them that were off the CPU at some time into `values`, in the place of what was there.
    pub(crate) fn stalled_into(&self, values: &mut Values) {
        values
            .set_since(self.before.and_then(|before| before.stalled.as_deref()), &self.now.stalled);
    }
}
