//! The engine in the daemon: evaluates the accounts periodically, and logs new chains.

mod busy_threads;
pub(crate) mod by_group;
pub mod code;
mod competition;
mod evaluated;
mod idle_cpus;
mod limit_users;
mod locator;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpucause_abi::ProcId;
use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_engine::activity::{Activities, TimelinePoint};
use gpucause_engine::chain::{Chain, Culprit};
use gpucause_engine::peers::Peers;
use gpucause_engine::settings::Settings;
use gpucause_engine::{Engine, EngineInput, Findings};
use parking_lot::{Mutex, MutexGuard};

use crate::host_name::node_name;
use crate::observation::Observation;
use crate::process_details::Details;

use code::{CodeSampler, StackSampler};
use evaluated::Evaluated;
use locator::Locator;

/// Between two evaluations. A chain needs two consecutive ones that show all of it, so that it is reported within three of them,
/// 5 s; each costs a snapshot of the accounts.
pub const EVALUATE_EVERY: Duration = Duration::from_millis(1500);

/// An observation as the engine reads it.
pub fn engine_input(
    observation: &Observation,
    throttled_gpus: HashMap<String, f64>,
) -> EngineInput {
    let mut snapshot = Arc::clone(&observation.snapshot);
    rank_by_launcher(&mut snapshot, &observation.details);
    let unix_seconds = observation.clock.unix_seconds(snapshot.taken_at);
    let mut input = EngineInput::new(snapshot, unix_seconds);
    input.throttled_cgroups =
        observation.throttled.iter().map(|(&id, throttled)| (id, throttled.time)).collect();
    input.throttled_gpus = throttled_gpus;
    input
}

/// A process that joined its communicator before it was observed has the rank that its launcher set. Workers inherit that without
/// being ranks: they take no part in collectives.
fn rank_by_launcher(snapshot: &mut Arc<Snapshot>, details: &Details) {
    let rank = |process: &ProcessSnapshot| {
        let unknown = process.rank.is_none() && !process.collectives.is_empty();
        details.get(&process.id).filter(|_| unknown)?.launched_as()
    };
    let ranks = snapshot.processes.iter().map(rank).enumerate();
    let ranks: Vec<_> = ranks.filter(|(_, rank)| rank.is_some()).collect();
    if ranks.is_empty() {
        return;
    }
    let processes = &mut Arc::make_mut(snapshot).processes;
    for (index, rank) in ranks {
        processes[index].rank = rank;
    }
}

/// The target of log lines of chains.
pub const LOG_TARGET: &str = "gpucause::chains";

/// Chains whose tasks are located at each evaluation at most, the worst.
const MAX_LOCATED: usize = 32;

/// The engine, shared between evaluations and scrapes.
#[derive(Debug)]
pub struct Chains {
    engine: Mutex<Engine>,
    /// `None` where the accounts are of another host.
    locator: Option<Mutex<Locator>>,
    /// `None` where the accounts are of another host.
    code: Option<Mutex<CodeSampler>>,
    /// The processes of the last evaluation; `None` before the first.
    evaluated: Mutex<Option<Vec<Evaluated>>>,
    /// PIDs of the processes whose chains are logged; all where there is none.
    logged: OnceLock<Vec<u32>>,
}

impl Chains {
    /// Evaluates accounts that need not be of this host.
    pub fn new(settings: Settings) -> Self {
        Self::of(Engine::new(settings))
    }

    /// Evaluates accounts of this host.
    pub fn of_this_host(settings: Settings, sampler: Box<dyn StackSampler>) -> Self {
        let engine = Engine::new(settings).on_host(&node_name());
        let code = Some(Mutex::new(CodeSampler::new(sampler)));
        Self { locator: Some(Mutex::default()), code, ..Self::of(engine) }
    }

    fn of(engine: Engine) -> Self {
        let (engine, evaluated, logged) = (Mutex::new(engine), Mutex::default(), OnceLock::new());
        Self { engine, locator: None, code: None, evaluated, logged }
    }

    /// Logs only chains of these processes, and those that they cause; the first call counts.
    pub fn log_only(&self, pids: &[u32]) {
        self.logged.get_or_init(|| pids.to_vec());
    }

    fn is_logged(&self, chain: &Chain) -> bool {
        let pids = self.logged.get().map_or(&[][..], Vec::as_slice);
        let culprit = chain.culprit.as_ref().and_then(Culprit::local_pid);
        pids.is_empty() || pids.iter().any(|pid| *pid == chain.victim.pid || Some(*pid) == culprit)
    }

    /// Sets the address of the exporter in commands.
    pub fn set_url(&self, url: &str) {
        self.engine().set_url(url);
    }

    /// Sets what is known of ranks on other hosts.
    pub fn set_peers(&self, peers: Peers) {
        self.engine().set_peers(peers);
    }

    /// Applies other settings from now on; chains stay.
    pub fn set_settings(&self, settings: Settings) {
        self.engine().set_settings(settings);
    }

    /// Evaluates the accounts; logs new chains. Returns all chains.
    pub fn evaluate(&self, input: &EngineInput) -> Vec<Chain> {
        let known = self.ids();
        let processes = Evaluated::of(&input.snapshot.processes);
        self.engine().evaluate(input);
        self.set_evaluated(processes);
        self.locate();
        self.sample_code(&input.snapshot);
        // Without the engine's lock: a log that nobody reads must not hold up scrapes.
        let chains = self.chains();
        let is_new = |chain: &&Chain| !known.contains(&chain.id);
        for chain in chains.iter().filter(is_new).filter(|chain| self.is_logged(chain)) {
            log(chain);
        }
        chains
    }

    /// No process is observed. Returns all chains; none where no process was observed before either.
    pub fn end(&self) -> Vec<Chain> {
        let was_empty = self.evaluated().is_some_and(|pids| pids.is_empty());
        self.engine().end_chains();
        if let Some(code) = &self.code {
            code.lock().stop();
        }
        self.set_evaluated(Vec::new());
        if was_empty { Vec::new() } else { self.chains() }
    }

    fn set_evaluated(&self, processes: Vec<Evaluated>) {
        *self.evaluated.lock() = Some(processes);
    }

    fn ids(&self) -> HashSet<String> {
        self.engine().chains().iter().map(|chain| chain.id.clone()).collect()
    }

    /// The worst of the ongoing chains.
    fn ongoing(&self) -> Vec<Chain> {
        let is_ongoing = |chain: &&Chain| chain.ongoing == Some(true);
        let worst = |chains: Vec<&Chain>| {
            chains.into_iter().filter(is_ongoing).take(MAX_LOCATED).cloned().collect()
        };
        worst(self.engine().chains())
    }

    /// Finds out which functions the threads of ongoing chains run, without the engine's lock.
    fn sample_code(&self, snapshot: &Snapshot) {
        let Some(code) = &self.code else { return };
        let (ongoing, computing) = (self.ongoing(), self.engine().computing().to_vec());
        let mut sampler = code.lock();
        let code = sampler.update(&ongoing, &computing, snapshot);
        drop(sampler);
        if !code.is_empty() {
            self.engine().set_code(code);
        }
    }

    /// Finds out where the tasks of ongoing chains run, without the engine's lock.
    fn locate(&self) {
        let Some(locator) = &self.locator else { return };
        let ongoing = self.ongoing();
        let evaluated = self.evaluated.lock().clone();
        let observed = evaluated.unwrap_or_default();
        let (cpus, places) = locator.lock().locate(&ongoing, &observed);
        if !ongoing.is_empty() {
            self.engine().set_places(cpus, &places);
        }
    }

    /// Returns what the processes did in the last evaluations; `None` while no process is observed.
    pub fn activities(&self) -> Option<Activities> {
        let is_any = self.evaluated().is_some_and(|pids| !pids.is_empty());
        self.engine().activities().filter(|_| is_any)
    }

    /// Returns what all processes did in each of the last evaluations.
    pub fn timeline(&self) -> Vec<TimelinePoint> {
        self.engine().timeline().copied().collect()
    }

    /// The chains alone.
    pub fn chains(&self) -> Vec<Chain> {
        self.engine().chains().into_iter().cloned().collect()
    }

    /// PIDs of the processes of the last evaluation.
    pub fn evaluated(&self) -> Option<Vec<u32>> {
        let evaluated = self.evaluated.lock();
        evaluated.as_ref().map(|processes| processes.iter().map(|own| own.pid).collect())
    }

    /// Names of those that have not ended, by PID.
    pub fn names(&self) -> BTreeMap<u32, String> {
        let evaluated = self.evaluated.lock().clone();
        let live = evaluated.into_iter().flatten();
        live.filter_map(|own| Some((own.pid, own.comm?.to_text()))).collect()
    }

    /// Chains, counts and stalls so far, of processes that are observed and those before.
    pub fn findings(&self) -> Findings {
        self.engine().findings()
    }

    /// Adds the chains of these processes to those of `other` from now on.
    pub fn aggregate(&self, processes: &HashSet<ProcId>) {
        if !processes.is_empty() {
            self.engine().aggregate(processes);
        }
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }
}

/// Logs a chain with its culprit and fix.
fn log(chain: &Chain) {
    let culprit = chain.culprit.as_ref();
    tracing::warn!(
        target: LOG_TARGET,
        chain_id = chain.id,
        cause = chain.cause.label(),
        effect = chain.effect.label(),
        severity = chain.severity.label(),
        pid = chain.victim.pid,
        cpus = chain.victim.place.cpus,
        culprit_pid = culprit.and_then(Culprit::local_pid),
        culprit_tid = culprit.and_then(|own| own.tid),
        culprit = culprit.map(Culprit::name),
        culprit_owner = culprit.and_then(|own| own.place.owner()),
        culprit_cpus = culprit.map(|own| &*own.place.cpus),
        fix = chain.fix,
        "{}",
        chain.sentence
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_details::ProcessDetails;
    use gpucause_abi::op::OpId;
    use gpucause_abi::snapshot::Comm;
    use gpucause_abi::{Nanos, Tgid};

    fn process(id: u32) -> ProcessSnapshot {
        ProcessSnapshot::new(ProcId(id), Tgid(1), Comm(*b"train\0\0\0\0\0\0\0\0\0\0\0"))
    }

    fn ranks(launched_as: [&str; 2], processes: &[ProcessSnapshot]) -> Vec<Option<(u32, u32)>> {
        let [rank, world_size] = launched_as.map(Into::into);
        let details = Arc::new(ProcessDetails { rank, world_size, ..ProcessDetails::default() });
        let details = processes.iter().map(|process| (process.id, Arc::clone(&details))).collect();
        let mut snapshot =
            Arc::new(Snapshot { processes: processes.to_vec(), ..Snapshot::default() });
        rank_by_launcher(&mut snapshot, &details);
        snapshot.processes.iter().map(|process| process.rank).collect()
    }

    #[test]
    fn processes_that_have_ended_are_observed_and_not_named() {
        let ended = ProcessSnapshot { tgid: Tgid(2), ended: Some(Nanos(1)), ..process(2) };
        let snapshot = Snapshot { processes: vec![process(1), ended], ..Snapshot::default() };
        let chains = Chains::new(Settings::default());
        chains.evaluate(&EngineInput::new(Arc::new(snapshot), 1.0));
        assert_eq!(chains.evaluated(), Some(vec![1, 2]));
        assert_eq!(chains.names(), [(1, "train".to_owned())].into());
    }

    #[test]
    fn chains_of_the_recorded_processes_are_logged_and_those_that_they_cause() {
        let chain = |victim: u32, culprit: u32| -> Chain {
            let chain = serde_json::json!({"id": "1", "cause": "lock_wait", "effect": "hang",
                "severity": "low", "victim": {"pid": victim, "tid": 1, "comm": ""},
                "culprit": {"pid": culprit, "comm": ""}, "explained": 1.0, "lost_seconds": 1.0,
                "evidence": {}, "path": [], "sentence": "", "fix": "",
                "first_seen": 1.0, "last_seen": 2.0});
            serde_json::from_value(chain).unwrap()
        };
        let logged = |pids: &[u32]| {
            let chains = Chains::new(Settings::default());
            chains.log_only(pids);
            [(7, 9), (8, 7), (8, 9)].map(|(victim, by)| chains.is_logged(&chain(victim, by)))
        };
        assert_eq!(logged(&[7]), [true, true, false]);
        assert_eq!(logged(&[]), [true; 3]);
    }

    #[test]
    fn a_rank_that_joined_before_it_was_observed_is_the_launchers_and_its_workers_are_none() {
        let mut rank = process(1);
        rank.collectives = vec![(OpId(0), 8)];
        assert_eq!(ranks(["2", "4"], &[rank, process(2)]), [Some((2, 4)), None]);
    }

    #[test]
    fn the_rank_of_an_observed_communicator_wins_over_the_launchers() {
        let mut rank = process(1);
        (rank.collectives, rank.rank) = (vec![(OpId(0), 8)], Some((1, 2)));
        assert_eq!(ranks(["2", "4"], &[rank]), [Some((1, 2))]);
    }

    #[test]
    fn a_launcher_that_sets_no_rank_or_an_impossible_one_gives_none() {
        let mut rank = process(1);
        rank.collectives = vec![(OpId(0), 8)];
        for launched_as in [["", ""], ["1", ""], ["", "4"], ["4", "4"]] {
            assert_eq!(ranks(launched_as, std::slice::from_ref(&rank)), [None]);
        }
    }
}
