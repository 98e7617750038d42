//! Device memory that a process took, where the events tell it: all of them must be there, and say how much.

use std::collections::{HashMap, HashSet};

use gpucause_abi::op::{Api, Args, Class, OPS};

use crate::export::detail::failed;
use crate::export::selection::Selected;
use crate::recording::{Call, Completeness, Event, Kind, ProcessIndex, Recording, RecordingError};

/// What each process has taken and not given back since the recording began, in bytes. It is negative when the process gave
/// back what it had taken before.
pub(super) struct Memory {
    ops: HashMap<(Api, &'static str), Class>,
    /// Processes of which it is not known, from the beginning or from some event on.
    unknown: HashSet<ProcessIndex>,
    taken: HashMap<ProcessIndex, i64>,
    is_told: bool,
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
        let mut memory =
            Self { ops, unknown: HashSet::new(), taken: HashMap::new(), is_told: false };
        if selected.is_from_the_beginning() {
            memory.is_told = true;
            for calls in recording.calls()? {
                let is_sample = calls.durations.completeness != Completeness::Exact;
                if is_sample && memory.ops.contains_key(&(calls.api, &*calls.op)) {
                    memory.unknown.insert(calls.process);
                }
            }
        }
        Ok(memory)
    }

    /// By how much a call changes what its process has, when that is known.
    pub(super) fn change(&mut self, event: &Event) -> Option<i64> {
        let Kind::Call(call) = &event.kind else { return None };
        let class = *self.ops.get(&(call.api, &*call.op))?;
        if !self.is_told || !call.outermost || failed(call) || self.unknown.contains(&event.process)
        {
            return None;
        }
        let Some(bytes) = bytes(call) else {
            self.unknown.insert(event.process);
            return None;
        };
        Some(if class == Class::Free { -bytes } else { bytes })
    }

    /// What the process has after a change.
    pub(super) fn after(&mut self, process: ProcessIndex, change: i64) -> i64 {
        let taken = self.taken.entry(process).or_default();
        *taken = taken.saturating_add(change);
        *taken
    }
}

fn bytes(call: &Call) -> Option<i64> {
    i64::try_from(call.bytes?).ok()
}
