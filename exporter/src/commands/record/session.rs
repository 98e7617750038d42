//! A recording from its start to its summary.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use gpucause_observe::clock::WallClock;
use gpucause_probes::recorder::Recorder;
use gpucause_trace::trace::{Finished, WriteError, Writer};

use super::status_line::Recorded;
use crate::daemon::Daemon;
use crate::trace_recorder::{TraceRecorder, Written};

/// A recording under way.
#[derive(Debug)]
pub(super) struct Session {
    trace: TraceRecorder,
    recorder: Recorder,
    daemon: Arc<Daemon>,
    lost: u64,
    snapshots: u64,
    /// Processes that are asked for and made no call yet.
    silent: BTreeSet<u32>,
}

/// The summary of a recording.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) finished: Finished,
    lost: u64,
    /// Calls without a stack, as the kernel's map was full.
    events_without_stack: u64,
    /// Calls without Python frames, as the kernel's map was full.
    events_without_python_stack: u64,
    /// Stacks without function names.
    unsymbolized: u64,
    /// Processes without Python frames, by reason.
    unreadable: Vec<(String, u64)>,
    pub(super) snapshots: u64,
    /// Processes that were asked for and made no call.
    pub(super) silent: Vec<u32>,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            finished,
            lost,
            events_without_stack,
            events_without_python_stack,
            unsymbolized,
            unreadable,
            snapshots,
            silent: _,
        } = self;
        let Finished { path, events, pruned_events, needs_wal } = finished;
        write!(f, "{}: {events} events and {snapshots} snapshots", path.display())?;
        if *lost > 0 {
            write!(f, "; {lost} events were lost: raise --calls-from or --off-cpu-from")?;
        }
        if *events_without_stack > 0 {
            write!(f, "; {events_without_stack} calls have no stack")?;
        }
        if *events_without_python_stack > 0 {
            write!(f, "; {events_without_python_stack} calls have no Python frames")?;
        }
        for (reason, processes) in unreadable {
            write!(f, "; {processes} processes have no Python frames: {reason}")?;
        }
        if *unsymbolized > 0 {
            write!(f, "; {unsymbolized} stacks have no function names")?;
        }
        if *pruned_events > 0 {
            write!(f, "; {pruned_events} older events were deleted: raise --size-limit")?;
        }
        if *needs_wal {
            write!(f, "; warning: {}", WriteError::InUse(path.clone()))?;
        }
        // The file is readable by root only.
        let sudo = if std::env::var_os("SUDO_USER").is_some() { "sudo " } else { "" };
        write!(f, "; next: {sudo}gpucause explain --db {}", path.display())
    }
}

impl Session {
    pub(super) fn new(
        writer: Writer,
        recorder: Recorder,
        daemon: Arc<Daemon>,
        clock: WallClock,
        pids: &[u32],
    ) -> Self {
        let trace = TraceRecorder::with_python(writer, clock);
        let silent = pids.iter().copied().collect();
        Self { trace, recorder, daemon, lost: 0, snapshots: 0, silent }
    }

    /// The processes that are asked for and made no call yet.
    pub(super) const fn silent(&self) -> &BTreeSet<u32> {
        &self.silent
    }

    /// Evaluates the accounts, and adds them and the chains to the file.
    pub(super) fn evaluate(&mut self) -> anyhow::Result<()> {
        let evaluated = self.daemon.evaluate().context("the accounts cannot be read")?;
        let Some((observation, input)) = evaluated else { return Ok(()) };
        for process in &input.snapshot.processes {
            let is_in_call = process.dispatchers.iter().any(|thread| thread.inflight.is_some());
            if process.launches() > 0 || !process.calls.is_empty() || is_in_call {
                self.silent.remove(&process.tgid.0);
            }
        }
        self.trace.add_snapshot(&self.recorder, &self.daemon, (&observation, input))?;
        self.snapshots += 1;
        Ok(())
    }

    /// Names kernels while their processes live.
    pub(super) fn reap(&self) {
        if let Err(error) = self.daemon.reap() {
            tracing::warn!(%error, "cannot name kernels");
        }
    }

    /// Adds the ring's events since the last call.
    pub(super) fn drain(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::new();
        let drained = self.recorder.drain(|event| events.push(*event))?;
        self.lost += drained.lost + drained.unknown;
        self.trace.writer.set_lost_events(self.lost);
        // Events of cold launches come before the kernel's name was requested.
        if self.trace.lacks_kernels_of(&events) {
            self.reap();
            self.trace.name_kernels(&self.daemon)?;
        }
        self.trace.add_events(&self.recorder, &events)?;
        self.trace.writer.commit_if_due()?;
        Ok(())
    }

    /// Removes old stacks from the kernel's maps.
    pub(super) fn clear_stacks(&mut self) {
        let forgotten = self.recorder.clear_stacks();
        if let Err(error) = forgotten.and_then(|()| self.recorder.clear_python_stacks()) {
            tracing::warn!(%error, "slow calls may have no stacks");
        }
        self.trace.clear_stacks();
    }

    /// Returns the counts of the recording so far.
    pub(super) fn recorded(&self) -> anyhow::Result<Recorded> {
        let writer = &self.trace.writer;
        let (events, written) = writer.event_counts();
        Ok(Recorded { events, written, bytes: writer.bytes_used()?, lost: self.lost })
    }

    /// Adds the remaining events and completes the file.
    pub(super) fn finish(mut self) -> anyhow::Result<Summary> {
        let last = self.add_last();
        let Self { trace, lost, snapshots, silent, .. } = self;
        // Everything recorded until then is kept, whatever went wrong.
        let written = trace.finish();
        let (events_without_stack, events_without_python_stack) = last?;
        let Written { finished, unsymbolized, unreadable } = written?;
        Ok(Summary {
            finished,
            lost,
            events_without_stack,
            events_without_python_stack,
            unsymbolized,
            unreadable,
            snapshots,
            silent: silent.into_iter().collect(),
        })
    }

    /// Adds the last events and accounts; returns how many calls have no stack, and no Python frames.
    fn add_last(&mut self) -> anyhow::Result<(u64, u64)> {
        self.recorder.stop()?;
        self.drain()?;
        // Events that are still being written are not waited for.
        self.lost += self.recorder.unfinished() as u64;
        self.trace.writer.set_lost_events(self.lost);
        self.evaluate()?;
        Ok((self.recorder.events_without_stack()?, self.recorder.events_without_python_stack()?))
    }
}
