//! Frames of Python in the kernel's maps.

use std::collections::HashSet;

use gpucause_abi::python::{PythonCall, PythonLayout, PythonStack, RawPythonFrame};
use gpucause_abi::{Nanos, ProcId, Tid};
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle};

use super::{Recorder, RecorderError};

/// The maps.
#[derive(Debug)]
pub(super) struct PythonMaps {
    pub(super) layouts: MapHandle,
    pub(super) stacks: MapHandle,
    /// Stacks that were there when old ones were deleted last.
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
    /// Has frames of Python kept of this process's outermost calls that have their stack kept, from now on.
    ///
    /// # Errors
    /// When the map is full or cannot be changed.
    pub fn keep_python(&self, id: ProcId, layout: PythonLayout) -> Result<(), RecorderError> {
        let (key, value) = (id.0.to_ne_bytes(), layout.to_bytes());
        let kept = self.python.layouts.update(&key, &value, MapFlags::ANY);
        kept.map_err(|error| RecorderError::broken("pythons", &error))
    }

    /// No more frames of Python of this process.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn forget_python(&self, id: ProcId) -> Result<(), RecorderError> {
        delete(&self.python.layouts, "pythons", &id.0.to_ne_bytes())
    }

    /// The frames of Python of a call by this thread, the innermost first; none when none were kept, or they were taken before.
    ///
    /// # Errors
    /// When the map cannot be read or changed.
    pub fn take_python_stack(
        &self,
        start: Nanos,
        tid: Tid,
    ) -> Result<Vec<RawPythonFrame>, RecorderError> {
        let key = PythonCall { start_ns: start.0, tid: tid.0, pad: 0 }.to_bytes();
        let failed = |error| RecorderError::broken("python_stacks", &error);
        let Some(found) = self.python.stacks.lookup(&key, MapFlags::ANY).map_err(failed)? else {
            return Ok(Vec::new());
        };
        delete(&self.python.stacks, "python_stacks", &key)?;
        Ok(PythonStack::decode(&found))
    }

    /// Deletes stacks that nobody has taken since the last time that this was asked for: those of events that were lost.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn forget_python_stacks(&mut self) -> Result<(), RecorderError> {
        let known: HashSet<Vec<u8>> = self.python.stacks.keys().collect();
        for key in known.intersection(&self.python.seen) {
            delete(&self.python.stacks, "python_stacks", key)?;
        }
        self.python.seen = known;
        Ok(())
    }

    /// Calls whose frames of Python found no room, since the programs were loaded.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn pythonless(&self) -> Result<u64, RecorderError> {
        Ok(self.state()?.pythonless)
    }
}
