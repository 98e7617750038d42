//! Frames of Python under slow calls: which processes have any, and what they are called.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use gpucause_abi::event::RawEvent;
use gpucause_abi::python::{PythonLayout, RawPythonFrame};
use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::recording::StackFrame;
use gpucause_probes::python::{Python, PythonError, PythonFrame};
use gpucause_probes::recorder::{Recorder, RecorderError};

use super::frames::Frames;
use crate::kernel_names::readable::one_line;

/// Between two looks at a process whose interpreter has not started.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Looks at a process whose threads are not as they should be.
const MAX_LOOKS: u32 = 5;
/// Bytes of code objects of all processes that are remembered.
const MAX_CODE: usize = 64 << 20;
/// Characters of a name that are kept, and of a path.
const MAX_NAME: usize = 128;
const MAX_PATH: usize = 256;

/// What is known of a process.
#[derive(Debug)]
enum Known {
    /// Frames of it are kept.
    Read(Box<Python>),
    /// It is worth another look then. So often were its threads not as they should be.
    Later { then: Instant, unfit: u32 },
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
    ) {
        let unfit = match self.processes.get(&id) {
            Some(Known::Read(_) | Known::Not) => return,
            Some(Known::Later { then, .. }) if Instant::now() < *then => return,
            Some(Known::Later { unfit, .. }) => *unfit,
            None => 0,
        };
        let found = Python::find(tgid, frames.mappings(id, tgid));
        let known = self.judge(tgid, unfit, found, |layout| recorder.keep_python(id, layout));
        self.processes.insert(id, known);
    }

    /// What is known of a process in which this was found. Nothing that fails here ends the recording.
    fn judge(
        &mut self,
        tgid: Tgid,
        unfit: u32,
        found: Result<Python, PythonError>,
        keep: impl FnOnce(PythonLayout) -> Result<(), RecorderError>,
    ) -> Known {
        let later = |unfit| Known::Later { then: Instant::now() + AGAIN_AFTER, unfit };
        match found {
            Ok(python) => {
                if let Err(error) = keep(python.layout()) {
                    self.refuse(&error);
                    return Known::Not;
                }
                tracing::info!(%tgid, version = python.version(), "stacks have frames of Python");
                Known::Read(Box::new(python))
            }
            Err(PythonError::None) => Known::Not,
            Err(error) if error.is_gone() => Known::Not,
            Err(PythonError::NotReady) => later(unfit),
            Err(PythonError::Unfit(_)) if unfit + 1 < MAX_LOOKS => later(unfit + 1),
            Err(error) => {
                tracing::warn!(%tgid, %error, "stacks are without frames of Python");
                *self.refused.entry(error.to_string()).or_default() += 1;
                Known::Not
            }
        }
    }

    /// Counts a process for which the kernel's maps failed, and warns of the first.
    fn refuse(&mut self, error: &RecorderError) {
        let count = self.refused.entry(error.to_string()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(%error, "stacks of some processes are without frames of Python");
        }
    }

    /// What was kept of an event's thread, once.
    pub(super) fn take(&mut self, recorder: &Recorder, event: &RawEvent) -> Vec<RawPythonFrame> {
        let id = event.process;
        let (Some(Known::Read(_)), Some(tid)) = (self.processes.get(&id), event.tid) else {
            return Vec::new();
        };
        recorder.take_python_stack(event.start, tid).unwrap_or_else(|error| {
            self.refuse(&error);
            self.processes.insert(id, Known::Not);
            if let Err(error) = recorder.forget_python(id) {
                tracing::debug!(%error, "frames of Python are kept that nobody takes");
            }
            Vec::new()
        })
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
        let before = python.code_bytes();
        let frames = python.frames(raw).into_iter().map(frame).collect();
        if python.code_bytes() > before {
            self.bound_code(MAX_CODE);
        }
        frames
    }

    /// Forgets code objects when those of all processes are too much.
    fn bound_code(&mut self, most: usize) {
        let bytes = |known: &Known| match known {
            Known::Read(python) => python.code_bytes(),
            _ => 0,
        };
        if self.processes.values().map(bytes).sum::<usize>() > most {
            self.forget_code();
        }
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

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use gpucause_probes::mapped::executable_mappings;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    const ANY: Tgid = Tgid(1);

    /// Python that has started.
    fn waiting() -> (Child, Python) {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", "print(1, flush=True); input()"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let tgid = Tgid(child.id());
        let python = Python::find(tgid, executable_mappings(tgid).unwrap().iter()).unwrap();
        (child, python)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_for_which_the_kernel_has_no_room_is_counted_and_not_asked_for_again() {
        let mut pythons = Pythons::default();
        for _ in 0..2 {
            let (child, python) = waiting();
            let full = |_| Err(RecorderError::Broken("pythons: full".to_owned()));
            assert!(matches!(pythons.judge(ANY, 0, Ok(python), full), Known::Not));
            end(child);
        }
        let reason = "events cannot be recorded: pythons: full".to_owned();
        assert_eq!(pythons.refused(), [(reason, 2)]);
    }

    #[test]
    fn threads_that_do_not_fit_are_looked_at_some_times_before_the_process_is_refused() {
        let mut pythons = Pythons::default();
        let mut unfit = 0;
        let mut looks = 0;
        loop {
            looks += 1;
            let found = Err(PythonError::Unfit("CPython 3.12"));
            match pythons.judge(ANY, unfit, found, |_| Ok(())) {
                Known::Later { unfit: now, .. } => unfit = now,
                Known::Not => break,
                known @ Known::Read(_) => panic!("{known:?}"),
            }
            assert_eq!(pythons.refused(), [], "not yet");
        }
        assert_eq!(looks, MAX_LOOKS);
        let reason = "the way in which CPython 3.12 was built is not supported".to_owned();
        assert_eq!(pythons.refused(), [(reason, 1)]);
        let waits = pythons.judge(ANY, 3, Err(PythonError::NotReady), |_| Ok(()));
        assert!(matches!(waits, Known::Later { unfit: 3, .. }), "{waits:?}");
    }

    #[test]
    fn code_is_forgotten_when_that_of_all_processes_is_too_much() {
        let (child, python) = waiting();
        let mut pythons = Pythons::default();
        pythons.processes.insert(ProcId(1), Known::Read(Box::new(python)));
        let bytes = |pythons: &Pythons| match &pythons.processes[&ProcId(1)] {
            Known::Read(python) => python.code_bytes(),
            known => panic!("{known:?}"),
        };
        pythons.frames(ProcId(1), &[RawPythonFrame { code: 8, instruction: 0 }]);
        let kept = bytes(&pythons);
        assert!(kept > 0, "that there is none takes room, too");
        pythons.bound_code(kept);
        assert_eq!(bytes(&pythons), kept);
        pythons.bound_code(kept - 1);
        assert_eq!(bytes(&pythons), 0);
        end(child);
    }
}
