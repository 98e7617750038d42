//! What goes into the file, and when.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gpucause_abi::event::{Detail, Image, RawEvent};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::Moment;
use gpucause_investigations::recording::StackId;
use gpucause_investigations::trace::{Finished, ProcessRef, Writer};
use gpucause_probes::recorder::Recorder;

use super::events::Names;
use super::frames::Frames;
use super::symbols::Symbols;
use crate::clock::WallClock;
use crate::daemon::Daemon;
use crate::process_details::ProcessDetails;

/// How long names of functions are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(20);

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
    /// What the file calls the kernel's stacks.
    stacks: HashMap<u32, Option<StackId>>,
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
    /// Stacks without the names of functions.
    nameless: u64,
    looks: u64,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { finished, lost, stackless, nameless, looks } = self;
        let Finished { path, events, pruned_events } = finished;
        let path: &PathBuf = path;
        write!(f, "{}: {events} events and {looks} looks at the accounts", path.display())?;
        if *lost > 0 {
            write!(f, "; {lost} events were lost, raise --calls-from or --off-cpu-from")?;
        }
        if *stackless > 0 {
            write!(f, "; {stackless} calls are without their stack")?;
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
        let (processes, names, frames, stacks, named) = Default::default();
        Self {
            writer,
            recorder,
            daemon,
            clock,
            processes,
            names,
            frames,
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
        for event in &events {
            self.meet(event)?;
        }
        let Self { writer, processes, names, stacks, clock, .. } = self;
        let rows = events.iter().filter_map(|event| {
            let row = processes.get(&event.process)?.row;
            let stack = match event.detail {
                Detail::Call(call) => call.stack.and_then(|id| *stacks.get(&id)?),
                _ => None,
            };
            names.event(event, row, stack, *clock)
        });
        writer.add_events(rows)?;
        for (id, stack) in self.symbols.answers() {
            self.writer.name_stack(id, &stack)?;
        }
        self.writer.commit_if_due()?;
        Ok(())
    }

    /// Writes what an event speaks of, when it is new.
    fn meet(&mut self, event: &RawEvent) -> anyhow::Result<()> {
        let image = match &event.detail {
            Detail::Seen(image) | Detail::Forked(image) => Some(image),
            _ => None,
        };
        if !self.processes.contains_key(&event.process) {
            let comm = image.map(|Image { comm, .. }| comm.to_text()).unwrap_or_default();
            self.process(event.process, event.tgid, &comm)?;
        }
        self.names.meet(event);
        let Detail::Call(call) = event.detail else { return Ok(()) };
        let Some(id) = call.stack.filter(|id| !self.stacks.contains_key(id)) else { return Ok(()) };
        let addresses = self.recorder.stack(id)?;
        let stack = if addresses.is_empty() {
            None
        } else {
            let found = self.frames.stack(event.process, event.tgid, &addresses);
            let stack = self.writer.stack(&found.stack)?;
            if self.named.insert(stack) {
                self.symbols.ask(stack, found);
            }
            Some(stack)
        };
        self.stacks.insert(id, stack);
        Ok(())
    }

    fn process(&mut self, id: ProcId, tgid: Tgid, comm: &str) -> anyhow::Result<()> {
        let row = self.writer.process(id, tgid, comm)?;
        self.processes.entry(id).or_insert(Known { row, details: None });
        Ok(())
    }

    /// Makes room for new stacks in the kernel.
    pub(super) fn forget_stacks(&mut self) {
        if let Err(error) = self.recorder.forget_stacks() {
            tracing::warn!(%error, "slow calls may be without stacks");
        }
        // Their numbers are given out again.
        self.stacks.clear();
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
        let (stackless, nameless) = (self.recorder.stackless()?, self.symbols.nameless());
        let Self { writer, lost, looks, .. } = self;
        Ok(Told { finished: writer.finish()?, lost, stackless, nameless, looks })
    }
}
