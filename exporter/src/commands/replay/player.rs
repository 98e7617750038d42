//! Serves each recorded snapshot at its time.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use gpucause_abi::ProcId;
use gpucause_engine::EngineInput;
use gpucause_investigations::accounts::rebuild;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_trace::recording::{NodeIndex, Process, ProcessIndex, Recording, RecordingError};

use super::place::Place;
use super::recorded::{Recorded, RecordedSampler};
use super::source::ReplaySource;

/// Ends a replay when it is dropped.
pub(super) struct Stop(#[expect(dead_code, reason = "dropping it is the signal")] Sender<()>);

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
    pub(super) source: Arc<ReplaySource>,
    pub(super) stopped: Receiver<()>,
    pub(super) place: Option<Place>,
}

/// The first snapshot, and when it was served.
#[derive(Debug, Clone, Copy)]
struct Begin {
    recorded_seconds: f64,
    at: Instant,
}

impl Player {
    /// Serves one observation after the other until the recording is over or stopped.
    pub(super) fn play(self, mut sampler: RecordedSampler) -> anyhow::Result<()> {
        let recorded = self.recording.chains()?;
        let own = recorded.into_iter().filter(|chain| chain.node == self.node);
        let chains: Vec<_> = own.map(|chain| chain.chain).collect();
        let names = self.kernel_names()?;
        let (mut begin, mut has_snapshots, mut stopped) = (None, false, false);
        let mut session = None;
        self.recording.snapshots(&mut |look| {
            if look.node != self.node {
                return ControlFlow::Continue(());
            }
            // Process numbers are valid within one session.
            if session.replace(look.session) != Some(look.session) {
                self.begin(&mut sampler);
                // The pause between two runs of the recorder is skipped.
                begin = None;
            }
            has_snapshots = true;
            let flow = self.wait(&mut begin, look.input.unix_seconds);
            stopped = flow.is_break();
            if !stopped {
                let processes = self.processes(&look.processes);
                let known = look.processes.iter();
                let kernels = known
                    .filter_map(|(id, index)| Some((*id, names.get(index)?.clone())))
                    .collect();
                let input = look.input;
                let recorded = Recorded { input, processes, kernels, chains: None };
                self.source.set_current(Some(sampler.serve(recorded)));
            }
            flow
        })?;
        if !has_snapshots && !stopped {
            self.play_events(&mut sampler, &mut begin, &chains)?;
        }
        if matches!(self.stopped.try_recv(), Err(TryRecvError::Empty)) {
            tracing::info!("the recording is over");
        }
        Ok(())
    }

    /// Accounts that are rebuilt from events are not complete enough to find causes: the recorded chains are served from the time
    /// when they were first seen.
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
        rebuild(&*self.recording, self.node, EVALUATE_EVERY, &mut |snapshot| {
            let unix_seconds = snapshot.unix_ns as f64 / 1e9;
            let flow = self.wait(begin, unix_seconds);
            if flow.is_continue() {
                let input = EngineInput::new(Arc::new(snapshot.snapshot), unix_seconds);
                let seen = chains.iter().filter(|chain| chain.first_seen <= unix_seconds);
                let chains = Some(seen.cloned().collect());
                let (kernels, processes) = (HashMap::new(), processes.clone());
                let recorded = Recorded { input, processes, kernels, chains };
                self.source.set_current(Some(sampler.serve(recorded)));
            }
            flow
        })
    }

    /// Another run of the recorder begins: nothing is served until its first snapshot.
    fn begin(&self, sampler: &mut RecordedSampler) {
        sampler.begin();
        self.source.set_current(None);
    }

    /// Waits until it is time to serve what was recorded at this time, in seconds since the Unix epoch.
    fn wait(&self, begin: &mut Option<Begin>, recorded_seconds: f64) -> ControlFlow<()> {
        let begin = *begin.get_or_insert_with(|| Begin { recorded_seconds, at: Instant::now() });
        if let Some(place) = &self.place {
            place.at(recorded_seconds);
        }
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
