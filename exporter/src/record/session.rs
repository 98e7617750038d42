//! What goes into the file, and when.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gpucause_abi::event::{Detail, Image, RawCall, RawEvent};
use gpucause_abi::python::RawPythonFrame;
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::Moment;
use gpucause_investigations::recording::StackId;
use gpucause_investigations::trace::{Finished, ProcessRef, Writer};
use gpucause_probes::recorder::Recorder;

use super::events::Names;
use super::frames::Frames;
use super::python::Pythons;
use super::symbols::Symbols;
use crate::clock::WallClock;
use crate::daemon::Daemon;
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

/// A recording under way.
#[derive(Debug)]
pub(super) struct Session {
    writer: Writer,
    recorder: Recorder,
    daemon: Arc<Daemon>,
    clock: WallClock,
    processes: HashMap<ProcId, Known>,
    names: Names,
    frames: Frames,
    pythons: Pythons,
    /// What the file calls the kernel's stacks, with the frames of Python above them.
    stacks: HashMap<(u32, Vec<RawPythonFrame>), Option<StackId>>,
    symbols: Symbols,
    /// Stacks whose names were asked for.
    named: HashSet<StackId>,
    lost: u64,
    looks: u64,
}

/// How it went.
#[derive(Debug)]
pub(super) struct Told {
    finished: Finished,
    lost: u64,
    /// Calls whose stack found no room.
    stackless: u64,
    /// Calls whose frames of Python found no room.
    pythonless: u64,
    /// Stacks without the names of functions.
    nameless: u64,
    /// Processes without frames of Python, by the reason.
    refused: Vec<(String, u64)>,
    looks: u64,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { finished, lost, stackless, pythonless, nameless, refused, looks } = self;
        let Finished { path, events, pruned_events } = finished;
        let path: &PathBuf = path;
        write!(f, "{}: {events} events and {looks} looks at the accounts", path.display())?;
        if *lost > 0 {
            write!(f, "; {lost} events were lost, raise --calls-from or --off-cpu-from")?;
        }
        if *stackless > 0 {
            write!(f, "; {stackless} calls are without their stack")?;
        }
        if *pythonless > 0 {
            write!(f, "; {pythonless} calls are without their frames of Python")?;
        }
        for (reason, processes) in refused {
            write!(f, "; {processes} processes are without frames of Python: {reason}")?;
        }
        if *nameless > 0 {
            write!(f, "; {nameless} stacks are without the names of functions")?;
        }
        if *pruned_events > 0 {
            write!(f, "; {pruned_events} older ones went for want of room, raise --size-limit")?;
        }
        write!(f, "; next: gpucause explain --db {}", path.display())
    }
}

impl Session {
    pub(super) fn new(
        writer: Writer,
        recorder: Recorder,
        daemon: Arc<Daemon>,
        clock: WallClock,
    ) -> Self {
        let (processes, names, frames, pythons, stacks, named) = Default::default();
        Self {
            writer,
            recorder,
            daemon,
            clock,
            processes,
            names,
            frames,
            pythons,
            stacks,
            symbols: Symbols::start(),
            named,
            lost: 0,
            looks: 0,
        }
    }

    /// Takes the accounts down, as the engine sees them, and what it found.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let Some(mut moment) = self.daemon.look_at().context("the accounts cannot be read")? else {
            return Ok(());
        };
        // Events are told by this clock, too.
        moment.unix_seconds = self.clock.unix_seconds(moment.snapshot.taken_at);
        self.describe(&moment)?;
        self.writer.add_look(&moment, &self.daemon.findings().chains)?;
        self.looks += 1;
        Ok(())
    }

    /// Whoever is new, and whoever more is known of.
    fn describe(&mut self, moment: &Moment) -> anyhow::Result<()> {
        let details = self.daemon.details();
        for process in &moment.snapshot.processes {
            self.process(process.id, process.tgid, &process.comm.to_text())?;
            let Some(known) = self.processes.get_mut(&process.id) else { continue };
            let Some(told) = details.get(&process.id) else { continue };
            if known.details.as_ref() != Some(told) {
                self.writer.describe_process(known.row, &told.named())?;
                known.details = Some(Arc::clone(told));
            }
        }
        let ended: HashSet<ProcId> = moment
            .snapshot
            .processes
            .iter()
            .filter(|process| process.ended.is_some())
            .map(|process| process.id)
            .collect();
        self.frames.forget(|id| ended.contains(&id));
        self.pythons.forget(&self.recorder, |id| ended.contains(&id));
        self.name_kernels()
    }

    fn name_kernels(&mut self) -> anyhow::Result<()> {
        for (id, handle, name) in self.daemon.kernel_names() {
            let Some(known) = self.processes.get(&id) else { continue };
            if self.names.name_kernel((id, handle), &name) {
                self.writer.name_kernel(known.row, handle, &name)?;
            }
        }
        Ok(())
    }

    /// Names kernels while their processes live.
    pub(super) fn reap(&self) {
        if let Err(error) = self.daemon.reap() {
            tracing::warn!(%error, "kernels stay without names");
        }
    }

    /// Takes down what the ring has got since the last time.
    pub(super) fn drain(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::new();
        let drained = self.recorder.drain(|event| events.push(*event))?;
        self.lost += drained.lost + drained.unknown;
        self.writer.set_lost_events(self.lost);
        // Cold launches are told of before anybody has asked what is launched.
        if events.iter().any(|event| self.names.lacks_kernel_of(event)) {
            self.reap();
            self.name_kernels()?;
        }
        let mut stacks = Vec::with_capacity(events.len());
        for event in &events {
            stacks.push(self.meet(event)?);
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
        self.writer.commit_if_due()?;
        Ok(())
    }

    /// Writes what an event speaks of, when it is new. Returns its stack.
    fn meet(&mut self, event: &RawEvent) -> anyhow::Result<Option<StackId>> {
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
                let process = (event.process, event.tgid);
                self.pythons.meet(&self.recorder, &mut self.frames, process)?;
                Ok(None)
            }
            Detail::Call(call) => self.stack(event, &call),
            _ => Ok(None),
        }
    }

    fn stack(&mut self, event: &RawEvent, call: &RawCall) -> anyhow::Result<Option<StackId>> {
        let Some(id) = call.stack else { return Ok(None) };
        let mut python = Vec::new();
        if call.outermost {
            let process = (event.process, event.tgid);
            self.pythons.meet(&self.recorder, &mut self.frames, process)?;
            python = self.pythons.take(&self.recorder, event)?;
        }
        let key = (id, python);
        if let Some(&known) = self.stacks.get(&key) {
            return Ok(known);
        }
        let addresses = self.recorder.stack(id)?;
        let mut stack = None;
        if !addresses.is_empty() {
            let mut found = self.frames.stack(event.process, event.tgid, &addresses);
            found.stack.frames.extend(self.pythons.frames(event.process, &key.1));
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

    fn process(&mut self, id: ProcId, tgid: Tgid, comm: &str) -> anyhow::Result<()> {
        let row = self.writer.process(id, tgid, comm)?;
        self.processes.entry(id).or_insert(Known { row, details: None });
        Ok(())
    }

    /// Makes room for new stacks in the kernel.
    pub(super) fn forget_stacks(&mut self) {
        let forgotten = self.recorder.forget_stacks();
        if let Err(error) = forgotten.and_then(|()| self.recorder.forget_python_stacks()) {
            tracing::warn!(%error, "slow calls may be without stacks");
        }
        // Their numbers are given out again, and so are the addresses of code objects.
        self.stacks.clear();
        self.pythons.forget_code();
    }

    /// Takes down the rest and makes the file whole.
    pub(super) fn finish(mut self) -> anyhow::Result<Told> {
        self.recorder.stop()?;
        self.drain()?;
        // One that is still being written is not waited for.
        self.lost += self.recorder.unfinished() as u64;
        self.writer.set_lost_events(self.lost);
        self.look()?;
        for (id, stack) in self.symbols.last_answers(PATIENCE) {
            self.writer.name_stack(id, &stack)?;
        }
        let (stackless, pythonless) = (self.recorder.stackless()?, self.recorder.pythonless()?);
        let (nameless, refused) = (self.symbols.nameless(), self.pythons.refused());
        let Self { writer, lost, looks, .. } = self;
        let finished = writer.finish()?;
        Ok(Told { finished, lost, stackless, pythonless, nameless, refused, looks })
    }
}
