//! Python stacks in the kernel maps.

use std::collections::HashSet;

use gpucause_abi::python::{PythonCall, PythonLayout, PythonStack, RawPythonFrame};
use gpucause_abi::{Nanos, ProcId, Tid};
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Recorder, RecorderError};

/// The maps.
#[derive(Debug)]
pub(super) struct PythonMaps {
    pub(super) layouts: MapHandle,
    pub(super) stacks: MapHandle,
    /// Stacks that existed at the last clean-up.
    pub(super) seen: HashSet<Vec<u8>>,
}

fn delete(map: &MapHandle, what: &str, key: &[u8]) -> Result<(), RecorderError> {
    match map.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(RecorderError::broken(what, &error))
        }
        _ => Ok(()),
    }
}

impl Recorder {
    /// Records Python frames of this process's outermost calls that also record their stack.
    ///
    /// # Errors
    /// When the map is full or cannot be changed.
    pub fn add_python(&self, id: ProcId, layout: PythonLayout) -> Result<(), RecorderError> {
        let key = id.0.to_ne_bytes();
        let kept = self.python.layouts.update(&key, layout.as_bytes(), MapFlags::ANY);
        kept.map_err(|error| RecorderError::broken("pythons", &error))
    }

    /// Stops recording Python frames of this process.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn remove_python(&self, id: ProcId) -> Result<(), RecorderError> {
        delete(&self.python.layouts, "pythons", &id.0.to_ne_bytes())
    }

    /// The Python frames of a call by this thread, innermost first; empty when none were recorded or they were taken
    /// before.
    ///
    /// # Errors
    /// When the map cannot be read or changed.
    pub fn take_python_stack(
        &self,
        start: Nanos,
        tid: Tid,
    ) -> Result<Vec<RawPythonFrame>, RecorderError> {
        let call = PythonCall { start_ns: start.0, tid: tid.0, pad: 0 };
        let key = call.as_bytes();
        let failed = |error| RecorderError::broken("python_stacks", &error);
        let Some(found) = self.python.stacks.lookup(key, MapFlags::ANY).map_err(failed)? else {
            return Ok(Vec::new());
        };
        delete(&self.python.stacks, "python_stacks", key)?;
        let stack = PythonStack::read_from_bytes(&found).map_err(|_| {
            RecorderError::Broken("python_stacks has entries of an unexpected size".to_owned())
        })?;
        Ok(stack.frames().collect())
    }

    /// Deletes stacks that were not taken since the previous clean-up: those of lost events.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn clear_python_stacks(&mut self) -> Result<(), RecorderError> {
        let known: HashSet<Vec<u8>> = self.python.stacks.keys().collect();
        for key in known.intersection(&self.python.seen) {
            delete(&self.python.stacks, "python_stacks", key)?;
        }
        self.python.seen = known;
        Ok(())
    }

    /// Calls without Python frames because the map was full.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn events_without_python_stack(&self) -> Result<u64, RecorderError> {
        Ok(self.state()?.events_without_python_stack)
    }
}
