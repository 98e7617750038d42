//! Python frames of calls and samples: which processes have any, and their names.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use gpucause_abi::event::RawEvent;
use gpucause_abi::python::{PythonLayout, RawPythonFrame};
use gpucause_abi::{ProcId, Tgid};
use gpucause_probes::python::{Python, PythonError, PythonFrame};
use gpucause_probes::recorder::{Recorder, RecorderError};
use gpucause_trace::recording::StackFrame;

use super::frames::Frames;
use gpucause_trace::symbol::one_line;

/// Between two tries to read a process whose interpreter has not started.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Tries to read a process whose threads have an unexpected layout.
const MAX_TRIES: u32 = 5;
/// Bytes of code objects of all processes that are remembered.
const MAX_CODE: usize = 64 << 20;
/// Characters of a name that are kept, and of a path.
const MAX_NAME: usize = 128;
const MAX_PATH: usize = 256;

/// State of the Python frames of a process.
#[derive(Debug)]
enum Known {
    /// The kernel keeps its frames.
    Readable(Box<Python>),
    /// It is tried again `then`; `unfit` tries failed on the layout of its threads.
    Retry { then: Instant, unfit: u32 },
    /// It has no Python frames that can be read.
    Unreadable,
}

/// The processes with calls.
#[derive(Debug, Default)]
pub struct PythonProcesses {
    processes: HashMap<ProcId, Known>,
    /// Python processes whose frames cannot be read, by reason.
    unreadable: BTreeMap<String, u64>,
}

impl PythonProcesses {
    /// Finds the Python of a process, if it runs any; `keep` has the kernel keep its frames.
    pub fn find(
        &mut self,
        frames: &mut Frames,
        (id, tgid): (ProcId, Tgid),
        keep: impl FnOnce(PythonLayout) -> Result<(), RecorderError>,
    ) {
        let unfit = match self.processes.get(&id) {
            Some(Known::Readable(_) | Known::Unreadable) => return,
            Some(Known::Retry { then, .. }) if Instant::now() < *then => return,
            Some(Known::Retry { unfit, .. }) => *unfit,
            None => 0,
        };
        let found = Python::find(tgid, frames.mappings(id, tgid));
        let known = self.classify(tgid, unfit, found, keep);
        self.processes.insert(id, known);
    }

    /// Where the frames of a process are, if they can be read.
    pub(crate) fn layout(&self, id: ProcId) -> Option<PythonLayout> {
        match self.processes.get(&id)? {
            Known::Readable(python) => Some(python.layout()),
            _ => None,
        }
    }

    /// Classifies a process by what was found in it. No failure ends the recording.
    fn classify(
        &mut self,
        tgid: Tgid,
        unfit: u32,
        found: Result<Python, PythonError>,
        keep: impl FnOnce(PythonLayout) -> Result<(), RecorderError>,
    ) -> Known {
        let retry = |unfit| Known::Retry { then: Instant::now() + RETRY_AFTER, unfit };
        match found {
            Ok(python) => {
                if let Err(error) = keep(python.layout()) {
                    self.map_failed(&error);
                    return Known::Unreadable;
                }
                tracing::info!(%tgid, version = python.version(), "stacks have Python frames");
                Known::Readable(Box::new(python))
            }
            Err(PythonError::None) => Known::Unreadable,
            Err(error) if error.is_gone() => Known::Unreadable,
            Err(PythonError::NotReady) => retry(unfit),
            Err(PythonError::Unfit(_)) if unfit + 1 < MAX_TRIES => retry(unfit + 1),
            Err(error) => {
                tracing::warn!(%tgid, %error, "stacks have no Python frames");
                *self.unreadable.entry(error.to_string()).or_default() += 1;
                Known::Unreadable
            }
        }
    }

    /// Counts a process for which the kernel's maps failed, and warns of the first.
    fn map_failed(&mut self, error: &RecorderError) {
        let count = self.unreadable.entry(error.to_string()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(%error, "stacks of some processes have no Python frames");
        }
    }

    /// Takes the frames that the kernel kept of an event's thread.
    pub fn take(&mut self, recorder: &Recorder, event: &RawEvent) -> Vec<RawPythonFrame> {
        let id = event.process;
        let (Some(Known::Readable(_)), Some(tid)) = (self.processes.get(&id), event.tid) else {
            return Vec::new();
        };
        recorder.take_python_stack(event.start, tid).unwrap_or_else(|error| {
            self.map_failed(&error);
            self.processes.insert(id, Known::Unreadable);
            if let Err(error) = recorder.remove_python(id) {
                tracing::debug!(%error, "cannot stop keeping Python frames");
            }
            Vec::new()
        })
    }

    /// The names of these frames.
    pub fn frames(&mut self, id: ProcId, raw: &[RawPythonFrame]) -> Vec<StackFrame> {
        let Some(Known::Readable(python)) = self.processes.get_mut(&id) else { return Vec::new() };
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

    /// Forgets code objects when those of all processes take more than `most` bytes.
    fn bound_code(&mut self, most: usize) {
        let bytes = |known: &Known| match known {
            Known::Readable(python) => python.code_bytes(),
            _ => 0,
        };
        if self.processes.values().map(bytes).sum::<usize>() > most {
            self.forget_code();
        }
    }

    /// Forgets code objects, whose addresses may be reused.
    pub fn forget_code(&mut self) {
        for known in self.processes.values_mut() {
            if let Known::Readable(python) = known {
                python.forget();
            }
        }
    }

    /// Removes ended processes; `remove` has the kernel keep no more frames of those that it kept some of.
    pub fn forget(
        &mut self,
        ended: impl Fn(ProcId) -> bool,
        remove: impl Fn(ProcId) -> Result<(), RecorderError>,
    ) {
        self.processes.retain(|id, known| {
            if !ended(*id) {
                return true;
            }
            if matches!(known, Known::Readable(_))
                && let Err(error) = remove(*id)
            {
                tracing::warn!(%error, "cannot remove an ended process");
            }
            false
        });
    }

    /// Reasons why Python frames cannot be read, with the number of processes.
    pub fn unreadable(&self) -> Vec<(String, u64)> {
        self.unreadable.iter().map(|(reason, count)| (reason.clone(), *count)).collect()
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
    fn a_process_for_which_the_kernels_map_is_full_is_counted_and_not_tried_again() {
        let mut pythons = PythonProcesses::default();
        for _ in 0..2 {
            let (child, python) = waiting();
            let full = |_| Err(RecorderError::Broken("pythons: full".to_owned()));
            assert!(matches!(pythons.classify(ANY, 0, Ok(python), full), Known::Unreadable));
            end(child);
        }
        let reason = "events cannot be recorded: pythons: full".to_owned();
        assert_eq!(pythons.unreadable(), [(reason, 2)]);
    }

    #[test]
    fn threads_of_another_layout_are_tried_some_times_before_the_process_is_unreadable() {
        let mut pythons = PythonProcesses::default();
        let mut unfit = 0;
        let mut tries = 0;
        loop {
            tries += 1;
            let found = Err(PythonError::Unfit("CPython 3.12"));
            match pythons.classify(ANY, unfit, found, |_| Ok(())) {
                Known::Retry { unfit: now, .. } => unfit = now,
                Known::Unreadable => break,
                known @ Known::Readable(_) => panic!("{known:?}"),
            }
            assert_eq!(pythons.unreadable(), [], "not yet");
        }
        assert_eq!(tries, MAX_TRIES);
        let reason = "the way in which CPython 3.12 was built is not supported".to_owned();
        assert_eq!(pythons.unreadable(), [(reason, 1)]);
        let waits = pythons.classify(ANY, 3, Err(PythonError::NotReady), |_| Ok(()));
        assert!(matches!(waits, Known::Retry { unfit: 3, .. }), "{waits:?}");
    }

    #[test]
    fn code_is_forgotten_when_that_of_all_processes_is_too_much() {
        let (child, python) = waiting();
        let mut pythons = PythonProcesses::default();
        pythons.processes.insert(ProcId(1), Known::Readable(Box::new(python)));
        let bytes = |pythons: &PythonProcesses| match &pythons.processes[&ProcId(1)] {
            Known::Readable(python) => python.code_bytes(),
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
