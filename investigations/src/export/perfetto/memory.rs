//! Device memory of processes, where every allocation and free is recorded with its size.

use std::collections::{HashMap, HashSet};

use gpucause_abi::op::{Api, Args, Class, OPS};

use crate::export::detail::failed;
use crate::export::selection::Selected;
use gpucause_trace::recording::{
    Completeness, Event, Kind, ProcessIndex, Recording, RecordingError,
};

/// Bytes allocated less bytes freed by each process since the recording began. Negative after frees of earlier allocations.
pub(super) struct Memory {
    ops: HashMap<(Api, &'static str), Class>,
    /// Processes whose memory is unknown, from the start or from some event on.
    unknown: HashSet<ProcessIndex>,
    allocated: HashMap<ProcessIndex, i64>,
    is_complete: bool,
}

impl Memory {
    pub(super) fn of(
        recording: &dyn Recording,
        selected: &Selected,
    ) -> Result<Self, RecordingError> {
        let ops: HashMap<_, _> = OPS
            .iter()
            .filter(|op| matches!(op.class, Class::Alloc | Class::Free) && op.args != Args::None)
            .map(|op| ((op.api, op.name), op.class))
            .collect();
        let is_complete = selected.is_from_the_beginning();
        let (unknown, allocated) = (HashSet::new(), HashMap::new());
        let mut memory = Self { ops, unknown, allocated, is_complete };
        if is_complete {
            for calls in recording.calls()? {
                let is_sample = calls.durations.completeness != Completeness::Exact;
                if is_sample && memory.ops.contains_key(&(calls.api, &*calls.op)) {
                    memory.unknown.insert(calls.process);
                }
            }
        }
        Ok(memory)
    }

    /// The change by a call, in bytes, where known.
    pub(super) fn change(&mut self, event: &Event) -> Option<i64> {
        let Kind::Call(call) = &event.kind else { return None };
        let class = *self.ops.get(&(call.api, &*call.op))?;
        let is_known = self.is_complete && !self.unknown.contains(&event.process);
        if !is_known || !call.outermost || failed(call) {
            return None;
        }
        let Some(bytes) = call.bytes.and_then(|bytes| i64::try_from(bytes).ok()) else {
            self.unknown.insert(event.process);
            return None;
        };
        Some(if class == Class::Free { -bytes } else { bytes })
    }

    /// The bytes of the process after a change.
    pub(super) fn after(&mut self, process: ProcessIndex, change: i64) -> i64 {
        let allocated = self.allocated.entry(process).or_default();
        *allocated = allocated.saturating_add(change);
        *allocated
    }
}
