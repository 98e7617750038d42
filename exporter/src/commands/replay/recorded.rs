//! A recording as a source of accounts: one recorded snapshot after the other, through the same pipeline as a live host.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_abi::snapshot::{HandleName, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::Period;
use gpucause_engine::settings::Settings;
use gpucause_engine::{EngineInput, Findings};
use gpucause_observe::chains::Chains;
use gpucause_observe::clock::WallClock;
use gpucause_observe::kernel_launches::NameSource;
use gpucause_observe::observation::Observation;
use gpucause_observe::pipeline::{AccountSource, Pipeline, Sampled};
use gpucause_observe::process_details::{Details, ProcessDetails};
use gpucause_trace::recording::Process;

use super::source::Current;
use crate::config::Config;
use crate::live_page::Processes;

/// A recorded snapshot.
pub(super) struct Recorded {
    pub(super) input: EngineInput,
    pub(super) processes: HashMap<ProcId, Process>,
    /// Names of kernel functions by handle.
    pub(super) kernels: HashMap<ProcId, HashMap<u64, String>>,
    /// The chains so far; without them the engine evaluates the snapshot, as on the node.
    pub(super) chains: Option<Vec<Chain>>,
}

/// Makes observations of recorded snapshots.
#[derive(Debug)]
pub(super) struct RecordedSampler {
    settings: Settings,
    wait_name_limit: usize,
    chains: Chains,
    pipeline: Pipeline<RecordedSource>,
    /// Time of the first snapshot of the run.
    begun: Option<Nanos>,
}

impl RecordedSampler {
    pub(super) fn new(config: &Config) -> Self {
        Self::with(config.chains.clone(), config.limits.wait_names)
    }

    fn with(settings: Settings, wait_name_limit: usize) -> Self {
        let chains = Chains::new(settings.clone());
        // Without limits: the recorder has applied them already.
        let mut pipeline = Pipeline::new(RecordedSource::default(), Nanos(0));
        pipeline.set_wait_name_limit(wait_name_limit);
        Self { settings, wait_name_limit, chains, pipeline, begun: None }
    }

    /// Forgets all processes: another run of the recorder begins.
    pub(super) fn begin(&mut self) {
        *self = Self::with(self.settings.clone(), self.wait_name_limit);
    }

    /// Observes a recorded snapshot as if it were taken now.
    fn observe(&mut self, recorded: Recorded) -> (Observation, Findings) {
        let Recorded { input, processes, kernels, chains } = recorded;
        let source = &mut self.pipeline.source;
        source.snapshot = Arc::clone(&input.snapshot);
        source.details = processes
            .iter()
            .map(|(id, own)| (*id, ProcessDetails::of_named(&own.details).into()))
            .collect();
        source.kernels = kernels;
        let Ok(Sampled { mut observation, aggregated, .. }) = self.pipeline.sample();
        self.chains.aggregate(&aggregated);
        let begun = *self.begun.get_or_insert(observation.snapshot.taken_at);
        // The served state begins with the run, however long the recorded host was up before.
        observation.state = Period::attached(observation.clock.unix_seconds(begun)).into();
        let findings = match chains {
            Some(chains) => Findings::of_recorded(chains, |chain| {
                let mut known = processes.iter();
                known.find(|(_, own)| own.pid == chain.victim.pid).map(|(id, _)| *id)
            }),
            None => {
                let snapshot = Arc::clone(&observation.snapshot);
                // The engine reports times by the wall clock; the series' clock stands still.
                let unix_seconds = clock_at(snapshot.taken_at).unix_seconds(snapshot.taken_at);
                self.chains.evaluate(&EngineInput { snapshot, unix_seconds, ..input });
                self.chains.findings()
            }
        };
        (observation, findings)
    }

    /// Observes a recorded snapshot, and adds the data that the live page shows beside it.
    pub(super) fn serve(&mut self, recorded: Recorded) -> Current {
        let (observation, findings) = self.observe(recorded);
        let live = Some(observation.processes_live);
        let processes = Processes::of(self.chains.activities().as_ref(), live);
        Current {
            observation: observation.into(),
            findings: findings.into(),
            processes,
            timeline: self.chains.timeline(),
        }
    }
}

/// The clock by which this time of the recording is now.
fn clock_at(taken_at: Nanos) -> WallClock {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallClock::with_origin(wall.saturating_sub(Duration::from_nanos(taken_at.0)))
}

#[derive(Debug, Default)]
struct RecordedSource {
    snapshot: Arc<Snapshot>,
    details: Details,
    kernels: HashMap<ProcId, HashMap<u64, String>>,
    /// Removed processes that later snapshots still have.
    gone: HashSet<ProcId>,
    /// The clock of creation times, which must not change within a run.
    clock: Option<WallClock>,
}

impl AccountSource for RecordedSource {
    type Error = Infallible;

    fn snapshot(&mut self) -> Result<Snapshot, Infallible> {
        let mut snapshot = Snapshot::clone(&self.snapshot);
        snapshot.processes.retain(|process| !self.gone.contains(&process.id));
        Ok(snapshot)
    }

    fn remove(&mut self, gone: &HashSet<ProcId>) -> Result<(), Infallible> {
        self.gone.extend(gone);
        Ok(())
    }

    fn details(&mut self, _processes: &[ProcessSnapshot]) -> Details {
        self.details.clone()
    }

    fn clock(&mut self, taken_at: Nanos) -> WallClock {
        *self.clock.get_or_insert_with(|| clock_at(taken_at))
    }
}

/// Names that were recorded.
impl NameSource for RecordedSource {
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName> {
        let name = self.kernels.get(&id)?.get(&handle)?;
        Some(HandleName::Text(name.as_bytes().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(sampler: &mut RecordedSampler, taken_at: Nanos) -> f64 {
        let snapshot = Arc::new(Snapshot { taken_at, ..Snapshot::default() });
        let input = EngineInput::new(snapshot, 1.7e9);
        let (processes, kernels) = Default::default();
        let recorded = Recorded { input, processes, kernels, chains: None };
        sampler.serve(recorded).observation.state.current.since
    }

    #[test]
    fn probes_are_attached_since_the_first_snapshot_and_not_since_the_recorded_host_is_up() {
        let config = Config::default();
        let now = || clock_at(Nanos(0)).unix_seconds(Nanos(0));
        let (mut sampler, before) = (RecordedSampler::new(&config), now());
        let hour = 3_600_000_000_000;
        let first = since(&mut sampler, Nanos(hour));
        assert!((before..=now()).contains(&first), "{first} is not now");
        assert_eq!(since(&mut sampler, Nanos(hour + 10)), first);
        sampler.begin();
        let again = since(&mut sampler, Nanos(7 * hour));
        assert!((first..=now()).contains(&again), "{again} is of the first run");
    }
}
