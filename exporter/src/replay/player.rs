//! When each recorded snapshot is shown.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use gpucause_abi::ProcId;
use gpucause_engine::Moment;
use gpucause_investigations::accounts::rebuild;
use gpucause_investigations::recording::{
    NodeIndex, Process, ProcessIndex, Recording, RecordingError,
};

use super::recorded::{Recorded, RecordedSampler};
use super::stage::Stage;
use crate::chains::LOOK_EVERY;

/// Ends a replay when it is dropped.
pub(super) struct Stop(#[expect(dead_code, reason = "it is its end that counts")] Sender<()>);

impl Stop {
    pub(super) fn channel() -> (Self, Receiver<()>) {
        let (send, receive) = channel();
        (Self(send), receive)
    }
}

/// A recording that is played.
pub(super) struct Player {
    pub(super) recording: Box<dyn Recording>,
    pub(super) node: NodeIndex,
    /// How many seconds of the recording pass in a second.
    pub(super) speed: f64,
    pub(super) stage: Arc<Stage>,
    pub(super) stopped: Receiver<()>,
}

/// What was shown first, and when.
#[derive(Debug, Clone, Copy)]
struct Begin {
    recorded_seconds: f64,
    at: Instant,
}

impl Player {
    /// Shows one observation after the other until the recording is over, or it is to stop.
    pub(super) fn play(self, mut sampler: RecordedSampler) -> anyhow::Result<()> {
        let recorded = self.recording.chains()?;
        let own = recorded.into_iter().filter(|chain| chain.node == self.node);
        let chains: Vec<_> = own.map(|chain| chain.chain).collect();
        let names = self.kernel_names()?;
        let (mut begin, mut looks, mut stopped) = (None, 0_u64, false);
        let mut session = None;
        self.recording.snapshots(&mut |look| {
            if look.node != self.node {
                return ControlFlow::Continue(());
            }
            // Numbers of processes are those of one session.
            if session.replace(look.session) != Some(look.session) {
                self.begin(&mut sampler);
                // Nobody wants to wait for the next run of the recorder.
                begin = None;
            }
            looks += 1;
            let flow = self.wait(&mut begin, look.moment.unix_seconds);
            stopped = flow.is_break();
            if !stopped {
                let processes = self.processes(&look.processes);
                let kernels = &look
                    .processes
                    .iter()
                    .filter_map(|(id, index)| Some((*id, names.get(index)?.clone())))
                    .collect();
                let moment = look.moment;
                let recorded = Recorded { moment, processes, kernels, chains: None };
                self.stage.set_current(Some(sampler.observe(recorded)));
            }
            flow
        })?;
        if looks == 0 && !stopped {
            self.play_events(&mut sampler, &mut begin, &chains)?;
        }
        if matches!(self.stopped.try_recv(), Err(TryRecvError::Empty)) {
            tracing::info!("the recording is over");
        }
        Ok(())
    }

    /// Accounts that are made from events are not complete enough to find causes in: those that the recording tells are shown
    /// from when they were first seen.
    fn play_events(
        &self,
        sampler: &mut RecordedSampler,
        begin: &mut Option<Begin>,
        chains: &[gpucause_engine::chain::Chain],
    ) -> Result<(), RecordingError> {
        let indices = (0u32..).zip(self.recording.processes());
        let known: HashMap<_, _> =
            indices.map(|(index, _)| (ProcId(index), ProcessIndex(index))).collect();
        let processes = self.processes(&known);
        self.begin(sampler);
        rebuild(&*self.recording, self.node, LOOK_EVERY, &mut |look| {
            let unix_seconds = look.unix_ns as f64 / 1e9;
            let flow = self.wait(begin, unix_seconds);
            if flow.is_continue() {
                let moment = Moment::new(Arc::new(look.snapshot), unix_seconds);
                let seen = chains.iter().filter(|chain| chain.first_seen <= unix_seconds);
                let chains = Some(seen.cloned().collect());
                let kernels = &HashMap::new();
                let processes = processes.clone();
                let recorded = Recorded { moment, processes, kernels, chains };
                self.stage.set_current(Some(sampler.observe(recorded)));
            }
            flow
        })
    }

    /// Another run of the recorder begins, and nothing is shown until its first snapshot.
    fn begin(&self, sampler: &mut RecordedSampler) {
        sampler.begin();
        self.stage.set_current(None);
    }

    /// Waits until it is the turn of what was seen at this moment.
    fn wait(&self, begin: &mut Option<Begin>, recorded_seconds: f64) -> ControlFlow<()> {
        let begin = *begin.get_or_insert_with(|| Begin { recorded_seconds, at: Instant::now() });
        let after = (recorded_seconds - begin.recorded_seconds).max(0.0) / self.speed;
        let after = Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX);
        let left = after.saturating_sub(begin.at.elapsed());
        match self.stopped.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => ControlFlow::Break(()),
        }
    }

    fn processes(&self, known: &HashMap<ProcId, ProcessIndex>) -> HashMap<ProcId, Process> {
        let all = self.recording.processes();
        let own = known.iter().filter_map(|(id, index)| {
            Some((*id, all.get(usize::try_from(index.0).ok()?)?.clone()))
        });
        own.collect()
    }

    fn kernel_names(&self) -> Result<HashMap<ProcessIndex, HashMap<u64, String>>, RecordingError> {
        let mut names: HashMap<_, HashMap<_, _>> = HashMap::new();
        for own in self.recording.kernel_names()? {
            names.entry(own.process).or_default().insert(own.handle, own.name);
        }
        Ok(names)
    }
}
