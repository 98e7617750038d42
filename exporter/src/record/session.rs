//! What goes into the file, and when.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use gpucause_investigations::trace::{Finished, Writer};
use gpucause_probes::recorder::Recorder;

use super::chronicle::{Chronicle, Written};
use crate::clock::WallClock;
use crate::daemon::Daemon;

/// A recording under way.
#[derive(Debug)]
pub(super) struct Session {
    chronicle: Chronicle,
    recorder: Recorder,
    daemon: Arc<Daemon>,
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
        let chronicle = Chronicle::with_python(writer, clock);
        Self { chronicle, recorder, daemon, lost: 0, looks: 0 }
    }

    /// Takes the accounts down, as the engine sees them, and what it found.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let looked = self.daemon.look().context("the accounts cannot be read")?;
        let Some((observation, moment)) = looked else { return Ok(()) };
        self.chronicle.look(&self.recorder, &self.daemon, (&observation, moment))?;
        self.looks += 1;
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
        self.chronicle.writer.set_lost_events(self.lost);
        // Cold launches are told of before anybody has asked what is launched.
        if self.chronicle.lacks_kernels_of(&events) {
            self.reap();
            self.chronicle.name_kernels(&self.daemon)?;
        }
        self.chronicle.events(&self.recorder, &events)?;
        self.chronicle.writer.commit_if_due()?;
        Ok(())
    }

    /// Makes room for new stacks in the kernel.
    pub(super) fn forget_stacks(&mut self) {
        let forgotten = self.recorder.forget_stacks();
        if let Err(error) = forgotten.and_then(|()| self.recorder.forget_python_stacks()) {
            tracing::warn!(%error, "slow calls may be without stacks");
        }
        self.chronicle.forget_stacks();
    }

    /// Takes down the rest and makes the file whole.
    pub(super) fn finish(mut self) -> anyhow::Result<Told> {
        self.recorder.stop()?;
        self.drain()?;
        // One that is still being written is not waited for.
        self.lost += self.recorder.unfinished() as u64;
        self.chronicle.writer.set_lost_events(self.lost);
        self.look()?;
        let (stackless, pythonless) = (self.recorder.stackless()?, self.recorder.pythonless()?);
        let Self { chronicle, lost, looks, .. } = self;
        let Written { finished, nameless, refused } = chronicle.finish()?;
        Ok(Told { finished, lost, stackless, pythonless, nameless, refused, looks })
    }
}
