//! Frames of Python under slow calls: which processes have any, and what they are called.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use gpucause_abi::event::RawEvent;
use gpucause_abi::python::RawPythonFrame;
use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::recording::StackFrame;
use gpucause_probes::python::{Python, PythonError, PythonFrame};
use gpucause_probes::recorder::{Recorder, RecorderError};

use super::frames::Frames;
use crate::kernel_names::readable::one_line;

/// Between two looks at a process whose interpreter has not started.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Characters of a name that are kept, and of a path.
const MAX_NAME: usize = 128;
const MAX_PATH: usize = 256;

/// What is known of a process.
#[derive(Debug)]
enum Known {
    /// Frames of it are kept.
    Read(Box<Python>),
    /// It is worth another look then.
    Later(Instant),
    /// It has none that can be read.
    Not,
}

/// The processes that were looked at.
#[derive(Debug, Default)]
pub(super) struct Pythons {
    processes: HashMap<ProcId, Known>,
    /// Processes without frames of Python although they run it, by the reason.
    refused: BTreeMap<String, u64>,
}

impl Pythons {
    /// Has frames of Python kept of a process that has any.
    pub(super) fn meet(
        &mut self,
        recorder: &Recorder,
        frames: &mut Frames,
        (id, tgid): (ProcId, Tgid),
    ) -> Result<(), RecorderError> {
        match self.processes.get(&id) {
            Some(Known::Read(_) | Known::Not) => return Ok(()),
            Some(Known::Later(then)) if Instant::now() < *then => return Ok(()),
            _ => {}
        }
        let known = match Python::find(tgid, frames.mappings(id, tgid)) {
            Ok(python) => {
                recorder.keep_python(id, python.layout())?;
                tracing::info!(%tgid, version = python.version(), "stacks have frames of Python");
                Known::Read(Box::new(python))
            }
            Err(PythonError::None) => Known::Not,
            Err(error) if error.is_gone() => Known::Not,
            Err(PythonError::NotReady) => Known::Later(Instant::now() + AGAIN_AFTER),
            Err(error) => {
                tracing::warn!(%tgid, %error, "stacks are without frames of Python");
                *self.refused.entry(error.to_string()).or_default() += 1;
                Known::Not
            }
        };
        self.processes.insert(id, known);
        Ok(())
    }

    /// What was kept of an event's thread, once.
    pub(super) fn take(
        &self,
        recorder: &Recorder,
        event: &RawEvent,
    ) -> Result<Vec<RawPythonFrame>, RecorderError> {
        match (self.processes.get(&event.process), event.tid) {
            (Some(Known::Read(_)), Some(tid)) => recorder.take_python_stack(event.start, tid),
            _ => Ok(Vec::new()),
        }
    }

    /// These frames by their names.
    pub(super) fn frames(&mut self, id: ProcId, raw: &[RawPythonFrame]) -> Vec<StackFrame> {
        let Some(Known::Read(python)) = self.processes.get_mut(&id) else { return Vec::new() };
        let frame = |PythonFrame { code, function, file, line }| StackFrame {
            address: code,
            function: Some(one_line(&function, MAX_NAME)),
            file: Some(one_line(&file, MAX_PATH)),
            line,
            is_python: true,
            ..StackFrame::default()
        };
        python.frames(raw).into_iter().map(frame).collect()
    }

    /// Code objects may be others by now.
    pub(super) fn forget_code(&mut self) {
        for known in self.processes.values_mut() {
            if let Known::Read(python) = known {
                python.forget();
            }
        }
    }

    /// Nothing more is asked of these.
    pub(super) fn forget(&mut self, recorder: &Recorder, ended: impl Fn(ProcId) -> bool) {
        self.processes.retain(|id, known| {
            if !ended(*id) {
                return true;
            }
            if let (Known::Read(_), Err(error)) = (known, recorder.forget_python(*id)) {
                tracing::warn!(%error, "a process that has ended takes room");
            }
            false
        });
    }

    /// Why processes are without frames of Python, and how many.
    pub(super) fn refused(&self) -> Vec<(String, u64)> {
        self.refused.iter().map(|(reason, count)| (reason.clone(), *count)).collect()
    }
}
