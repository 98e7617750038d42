//! A trace file of the daemon's processes: whoever a look or an event speaks of gets a row, once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::event::{Detail, Image, RawEvent};
use gpucause_abi::{ProcId, Tgid};
use gpucause_engine::Moment;
use gpucause_investigations::recording::StackId;
use gpucause_investigations::trace::{ProcessRef, WriteError, Writer};
use gpucause_probes::recorder::Recorder;

use super::events::Names;
use super::frames::Frames;
use crate::clock::WallClock;
use crate::daemon::Daemon;
use crate::process_details::ProcessDetails;

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
    /// What the file calls the kernel's stacks.
    stacks: HashMap<u32, Option<StackId>>,
}

impl Chronicle {
    pub(crate) fn new(writer: Writer, clock: WallClock) -> Self {
        let (processes, names, frames, stacks) = Default::default();
        Self { writer, clock, processes, names, frames, stacks }
    }

    /// Takes the accounts down, as the engine sees them, and what it found.
    pub(crate) fn look(&mut self, daemon: &Daemon, mut moment: Moment) -> Result<(), WriteError> {
        // Events are told by this clock, too.
        moment.unix_seconds = self.clock.unix_seconds(moment.snapshot.taken_at);
        self.describe(daemon, &moment)?;
        self.writer.add_look(&moment, &daemon.findings().chains)
    }

    /// Whoever is new, and whoever more is known of.
    fn describe(&mut self, daemon: &Daemon, moment: &Moment) -> Result<(), WriteError> {
        let details = daemon.details();
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
        self.name_kernels(daemon)
    }

    /// Takes down what kernels are called, as far as that is known by now.
    pub(crate) fn name_kernels(&mut self, daemon: &Daemon) -> Result<(), WriteError> {
        for (id, handle, name) in daemon.kernel_names() {
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
        for event in events {
            self.meet(recorder, event)?;
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
        Ok(())
    }

    /// Writes what an event speaks of, when it is new.
    fn meet(&mut self, recorder: &Recorder, event: &RawEvent) -> anyhow::Result<()> {
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
        let addresses = recorder.stack(id)?;
        let stack = if addresses.is_empty() {
            None
        } else {
            Some(self.writer.stack(&self.frames.stack(event.process, event.tgid, &addresses))?)
        };
        self.stacks.insert(id, stack);
        Ok(())
    }

    fn process(&mut self, id: ProcId, tgid: Tgid, comm: &str) -> Result<(), WriteError> {
        let row = self.writer.process(id, tgid, comm)?;
        self.processes.entry(id).or_insert(Known { row, details: None });
        Ok(())
    }

    /// The kernel's numbers of stacks are given out again.
    pub(crate) fn forget_stacks(&mut self) {
        self.stacks.clear();
    }
}
