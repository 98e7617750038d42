//! A trace file of the daemon's processes: whoever a look or an event speaks of gets a row, once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use gpucause_abi::event::{Detail, Image, RawCall, RawEvent};
use gpucause_abi::python::RawPythonFrame;
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::Moment;
use gpucause_investigations::recording::StackId;
use gpucause_investigations::trace::{Finished, ProcessRef, WriteError, Writer};
use gpucause_probes::recorder::Recorder;

use super::events::Names;
use super::frames::Frames;
use super::python::Pythons;
use super::symbols::Symbols;
use crate::clock::WallClock;
use crate::daemon::Daemon;
use crate::observation::Observation;
use crate::process_details::ProcessDetails;

/// How long names of functions are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stacks that are remembered until the kernel's are forgotten.
const MAX_STACKS: usize = 65_536;

/// A process of the file.
#[derive(Debug)]
struct Known {
    row: ProcessRef,
    /// As last told.
    details: Option<Arc<ProcessDetails>>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Chronicle {
    pub(crate) writer: Writer,
    clock: WallClock,
    processes: HashMap<ProcId, Known>,
    names: Names,
    frames: Frames,
    /// Where frames of Python are kept in the kernel while the file is being written.
    pythons: Option<Pythons>,
    /// What the file calls the kernel's stacks, with the frames of Python above them.
    stacks: HashMap<(u32, Vec<RawPythonFrame>), Option<StackId>>,
    symbols: Symbols,
    /// Stacks whose names were asked for.
    named: HashSet<StackId>,
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) finished: Finished,
    /// Stacks without the names of functions.
    pub(crate) nameless: u64,
    /// Processes without frames of Python, by the reason.
    pub(crate) refused: Vec<(String, u64)>,
}

impl Chronicle {
    /// Of what the kernel kept until now.
    pub(crate) fn new(writer: Writer, clock: WallClock) -> Self {
        let (processes, names, frames, stacks, named) = Default::default();
        let symbols = Symbols::start();
        Self { writer, clock, processes, names, frames, pythons: None, stacks, symbols, named }
    }

    /// Of what the kernel keeps from now on, frames of Python included.
    pub(crate) fn with_python(writer: Writer, clock: WallClock) -> Self {
        Self { pythons: Some(Pythons::default()), ..Self::new(writer, clock) }
    }

    /// Takes the accounts down, as the engine sees them, and what it found.
    pub(crate) fn look(
        &mut self,
        recorder: &Recorder,
        daemon: &Daemon,
        (observation, mut moment): (&Observation, Moment),
    ) -> anyhow::Result<()> {
        // Events are told by this clock, too.
        moment.unix_seconds = self.clock.unix_seconds(moment.snapshot.taken_at);
        self.describe(recorder, observation)?;
        self.name_kernels(daemon)?;
        Ok(self.writer.add_snapshot(&moment, &daemon.findings().chains)?)
    }

    /// Whoever is new, and whoever more is known of.
    fn describe(
        &mut self,
        recorder: &Recorder,
        observation: &Observation,
    ) -> Result<(), WriteError> {
        let Observation { snapshot, details, .. } = observation;
        for process in &snapshot.processes {
            self.process(process.id, process.tgid, &process.comm.to_text())?;
            let Some(known) = self.processes.get_mut(&process.id) else { continue };
            let Some(told) = details.get(&process.id) else { continue };
            if known.details.as_ref() != Some(told) {
                self.writer.describe_process(known.row, &told.named())?;
                known.details = Some(Arc::clone(told));
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
            pythons.forget(recorder, |id| ended.contains(&id));
        }
        Ok(())
    }

    /// Takes down what kernels are called, as far as that is known by now.
    pub(crate) fn name_kernels(&mut self, daemon: &Daemon) -> anyhow::Result<()> {
        for (id, handle, name) in daemon.kernel_names()? {
            let Some(known) = self.processes.get(&id) else { continue };
            if self.names.name_kernel((id, handle), &name) {
                self.writer.name_kernel(known.row, handle, &name)?;
            }
        }
        Ok(())
    }

    /// Whether one of them launches a kernel that has no name yet, nor was looked for.
    pub(crate) fn lacks_kernels_of(&self, events: &[RawEvent]) -> bool {
        events.iter().any(|event| self.names.lacks_kernel_of(event))
    }

    /// Takes events down, with what they speak of.
    pub(crate) fn events(
        &mut self,
        recorder: &Recorder,
        events: &[RawEvent],
    ) -> anyhow::Result<()> {
        let mut stacks = Vec::with_capacity(events.len());
        for event in events {
            stacks.push(self.meet(recorder, event)?);
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

    /// Writes what an event speaks of, when it is new. Returns its stack.
    fn meet(&mut self, recorder: &Recorder, event: &RawEvent) -> anyhow::Result<Option<StackId>> {
        let image = match &event.detail {
            Detail::Seen(image) | Detail::Forked(image) => Some(image),
            _ => None,
        };
        if !self.processes.contains_key(&event.process) {
            let comm = image.map(|Image { comm, .. }| comm.to_text()).unwrap_or_default();
            self.process(event.process, event.tgid, &comm)?;
        }
        self.names.meet(event);
        match event.detail {
            // The calls to come are to have their frames of Python.
            Detail::Seen(_) => {
                self.meet_python(recorder, event);
                Ok(None)
            }
            Detail::Call(call) => self.stack(recorder, event, &call),
            _ => Ok(None),
        }
    }

    fn meet_python(&mut self, recorder: &Recorder, event: &RawEvent) {
        if let Some(pythons) = &mut self.pythons {
            pythons.meet(recorder, &mut self.frames, (event.process, event.tgid));
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
            self.meet_python(recorder, event);
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
            if self.named.insert(row) {
                self.symbols.ask(row, found);
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

    /// The kernel's numbers of stacks are given out again, and so are the addresses of code objects.
    pub(crate) fn forget_stacks(&mut self) {
        self.stacks.clear();
        if let Some(pythons) = &mut self.pythons {
            pythons.forget_code();
        }
    }

    /// Waits for the names of functions for a time, and makes the file whole.
    pub(crate) fn finish(mut self) -> Result<Written, WriteError> {
        for (id, stack) in self.symbols.last_answers(PATIENCE) {
            self.writer.name_stack(id, &stack)?;
        }
        let nameless = self.symbols.nameless();
        let refused = self.pythons.as_ref().map(Pythons::refused).unwrap_or_default();
        Ok(Written { finished: self.writer.finish()?, nameless, refused })
    }
}
