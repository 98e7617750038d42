//! Records snapshots and events of the daemon's processes to a trace file. A process gets a row with the first that names it.

mod events;
mod symbols;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use gpucause_abi::event::{Detail, Image, RawCall, RawEvent};
use gpucause_abi::python::RawPythonFrame;
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_observe::clock::WallClock;
use gpucause_observe::observation::Observation;
use gpucause_observe::process_details::ProcessDetails;
use gpucause_observe::stacks::frames::Frames;
use gpucause_observe::stacks::python::PythonProcesses;
use gpucause_probes::recorder::Recorder;
use gpucause_trace::recording::StackId;
use gpucause_trace::trace::{Finished, ProcessRef, WriteError, Writer};

use crate::daemon::Daemon;
use events::Names;
use symbols::Symbols;

/// How long function names are waited for at the end.
const SYMBOL_TIMEOUT: Duration = Duration::from_secs(20);

/// Stacks that are remembered until the kernel's are forgotten.
const MAX_STACKS: usize = 65_536;

/// A process of the file.
#[derive(Debug)]
struct Known {
    row: ProcessRef,
    /// The details that were last written.
    details: Option<Arc<ProcessDetails>>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct TraceRecorder {
    pub(crate) writer: Writer,
    clock: WallClock,
    processes: HashMap<ProcId, Known>,
    names: Names,
    frames: Frames,
    /// Where the kernel keeps Python frames while the file is being written.
    pythons: Option<PythonProcesses>,
    /// Rows of the kernel's stacks with the Python frames above them.
    stacks: HashMap<(u32, Vec<RawPythonFrame>), Option<StackId>>,
    symbols: Symbols,
    /// Stacks whose names were requested.
    requested: HashSet<StackId>,
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) finished: Finished,
    /// Stacks without function names.
    pub(crate) unsymbolized: u64,
    /// Processes without Python frames, by reason.
    pub(crate) unreadable: Vec<(String, u64)>,
}

impl TraceRecorder {
    /// For events that the kernel already has.
    pub(crate) fn new(writer: Writer, clock: WallClock) -> Self {
        let (processes, names, frames, stacks, requested) = Default::default();
        let symbols = Symbols::start();
        Self { writer, clock, processes, names, frames, pythons: None, stacks, symbols, requested }
    }

    /// For events from now on, with Python frames.
    pub(crate) fn with_python(writer: Writer, clock: WallClock) -> Self {
        Self { pythons: Some(PythonProcesses::default()), ..Self::new(writer, clock) }
    }

    /// Adds a snapshot as the engine evaluated it, and the chains so far.
    pub(crate) fn add_snapshot(
        &mut self,
        recorder: &Recorder,
        daemon: &Daemon,
        (observation, mut input): (&Observation, EngineInput),
    ) -> anyhow::Result<()> {
        // The clock of the events.
        input.unix_seconds = self.clock.unix_seconds(input.snapshot.taken_at);
        self.describe(recorder, observation)?;
        self.name_kernels(daemon)?;
        Ok(self.writer.add_snapshot(&input, &daemon.findings().chains)?)
    }

    /// Writes new processes, and details that are new.
    fn describe(
        &mut self,
        recorder: &Recorder,
        observation: &Observation,
    ) -> Result<(), WriteError> {
        let Observation { snapshot, details, .. } = observation;
        for process in &snapshot.processes {
            self.process(process.id, process.tgid, &process.comm.to_text())?;
            let Some(known) = self.processes.get_mut(&process.id) else { continue };
            let Some(new) = details.get(&process.id) else { continue };
            if known.details.as_ref() != Some(new) {
                self.writer.describe_process(known.row, &new.named())?;
                known.details = Some(Arc::clone(new));
            }
        }
        let ended: HashSet<ProcId> = snapshot
            .processes
            .iter()
            .filter(|process| process.ended.is_some())
            .map(|process| process.id)
            .collect();
        self.frames.forget(|id| ended.contains(&id));
        if let Some(pythons) = &mut self.pythons {
            pythons.forget(|id| ended.contains(&id), |id| recorder.remove_python(id));
        }
        Ok(())
    }

    /// Writes the names of kernels that are new.
    pub(crate) fn name_kernels(&mut self, daemon: &Daemon) -> anyhow::Result<()> {
        for (id, handle, name) in daemon.kernel_names()? {
            let Some(known) = self.processes.get(&id) else { continue };
            if self.names.name_kernel((id, handle), &name) {
                self.writer.name_kernel(known.row, handle, &name)?;
            }
        }
        Ok(())
    }

    /// Returns true if one of the events launches a kernel whose name was not requested yet.
    pub(crate) fn lacks_kernels_of(&self, events: &[RawEvent]) -> bool {
        events.iter().any(|event| self.names.lacks_kernel_of(event))
    }

    /// Adds events, with the processes, names and stacks that they need.
    pub(crate) fn add_events(
        &mut self,
        recorder: &Recorder,
        events: &[RawEvent],
    ) -> anyhow::Result<()> {
        let mut stacks = Vec::with_capacity(events.len());
        for event in events {
            stacks.push(self.register(recorder, event)?);
        }
        let Self { writer, processes, names, clock, .. } = self;
        let rows = events.iter().zip(stacks).filter_map(|(event, stack)| {
            let row = processes.get(&event.process)?.row;
            names.event(event, row, stack, *clock)
        });
        writer.add_events(rows)?;
        for (id, stack) in self.symbols.answers() {
            self.writer.name_stack(id, &stack)?;
        }
        Ok(())
    }

    /// Writes the process and stack of an event, when they are new. Returns the stack.
    fn register(
        &mut self,
        recorder: &Recorder,
        event: &RawEvent,
    ) -> anyhow::Result<Option<StackId>> {
        let image = match &event.detail {
            Detail::Seen(image) | Detail::Forked(image) => Some(image),
            _ => None,
        };
        if !self.processes.contains_key(&event.process) {
            let comm = image.map(|Image { comm, .. }| comm.to_text()).unwrap_or_default();
            self.process(event.process, event.tgid, &comm)?;
        }
        self.names.register(event);
        match event.detail {
            // From now on, its calls have Python frames.
            Detail::Seen(_) => {
                self.find_python(recorder, event);
                Ok(None)
            }
            Detail::Call(call) => self.stack(recorder, event, &call),
            _ => Ok(None),
        }
    }

    fn find_python(&mut self, recorder: &Recorder, event: &RawEvent) {
        if let Some(pythons) = &mut self.pythons {
            let id = event.process;
            let keep = |layout| recorder.add_python(id, layout);
            pythons.find(&mut self.frames, (id, event.tgid), keep);
        }
    }

    fn stack(
        &mut self,
        recorder: &Recorder,
        event: &RawEvent,
        call: &RawCall,
    ) -> anyhow::Result<Option<StackId>> {
        let Some(id) = call.stack else { return Ok(None) };
        let mut python = Vec::new();
        if call.outermost {
            self.find_python(recorder, event);
            if let Some(pythons) = &mut self.pythons {
                python = pythons.take(recorder, event);
            }
        }
        let key = (id, python);
        if let Some(&known) = self.stacks.get(&key) {
            return Ok(known);
        }
        let addresses = recorder.stack(id)?;
        let mut stack = None;
        if !addresses.is_empty() {
            let mut found = self.frames.stack(event.process, event.tgid, &addresses);
            if let Some(pythons) = &mut self.pythons {
                found.stack.frames.extend(pythons.frames(event.process, &key.1));
            }
            let row = self.writer.stack(&found.stack)?;
            if self.requested.insert(row) {
                self.symbols.request(row, found);
            }
            stack = Some(row);
        }
        if self.stacks.len() >= MAX_STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(key, stack);
        Ok(stack)
    }

    fn process(&mut self, id: ProcId, tgid: Tgid, comm: &str) -> Result<(), WriteError> {
        let row = self.writer.process(id, tgid, comm)?;
        self.processes.entry(id).or_insert(Known { row, details: None });
        Ok(())
    }

    /// To be called when the kernel's stack numbers are reused. Addresses of code objects may be, too.
    pub(crate) fn clear_stacks(&mut self) {
        self.stacks.clear();
        if let Some(pythons) = &mut self.pythons {
            pythons.forget_code();
        }
    }

    /// Waits for function names until a timeout, and completes the file.
    pub(crate) fn finish(mut self) -> Result<Written, WriteError> {
        for (id, stack) in self.symbols.last_answers(SYMBOL_TIMEOUT) {
            self.writer.name_stack(id, &stack)?;
        }
        let unsymbolized = self.symbols.unsymbolized();
        let unreadable = self.pythons.as_ref().map(PythonProcesses::unreadable).unwrap_or_default();
        Ok(Written { finished: self.writer.finish()?, unsymbolized, unreadable })
    }
}
