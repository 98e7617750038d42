//! What is shown at one moment of a replay, and asked for by scrapes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpucause_abi::record::FAULTS;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot, Snapshot, TimeAccount};
use gpucause_abi::{Nanos, ProcId};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_engine::settings::Settings;
use gpucause_engine::{ChainCount, Moment, Stall};
use gpucause_investigations::recording::Process;
use gpucause_probes::host_functions::FunctionName;

use crate::chains::{Chains, Findings};
use crate::clock::{WallClock, monotonic_now};
use crate::collector::{Collectors, Selection};
use crate::config::Config;
use crate::family::Sink;
use crate::kernel_names::{KernelNames, NameSource};
use crate::life_cycle::{keep_faults_up, keep_up};
use crate::observation::Observation;
use crate::process_details::ProcessDetails;
use crate::server::{Readiness, ScrapeError, Source};
use crate::wait_names::WaitNames;

/// What is to be seen from now on.
pub(super) struct Scene<'a> {
    pub(super) moment: Moment,
    pub(super) processes: HashMap<ProcId, Process>,
    /// Names of kernel functions by handle.
    pub(super) kernels: &'a HashMap<ProcId, HashMap<u64, String>>,
    /// The chains so far; without them they are looked for, as on the node.
    pub(super) chains: Option<Vec<Chain>>,
}

/// Stands where the daemon stands on a node.
#[derive(Debug)]
pub(super) struct Stage {
    collectors: Collectors,
    settings: Settings,
    wait_name_limit: usize,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    chains: Chains,
    wait_names: WaitNames,
    kernel_names: KernelNames,
    /// As last told, which the next must not fall behind.
    told_times: HashMap<ProcId, TimeAccount>,
    told_faults: HashMap<ProcId, [u64; FAULTS]>,
    /// Nothing before the first scene.
    observation: Option<Observation>,
    /// The time of the page's series, which must not change while they are the same.
    clock: Option<WallClock>,
}

impl Now {
    fn new(settings: &Settings) -> Self {
        let (wait_names, kernel_names, told_times, told_faults) = Default::default();
        let chains = Chains::new(settings.clone());
        let (observation, clock) = (None, None);
        Self { chains, wait_names, kernel_names, told_times, told_faults, observation, clock }
    }
}

/// As if the moment of the recording were now.
fn clock_at(taken_at: Nanos) -> WallClock {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallClock::with_origin(wall.saturating_sub(Duration::from_nanos(taken_at.0)))
}

impl Stage {
    pub(super) fn new(config: &Config) -> Self {
        let settings = config.chains.clone();
        let now = Mutex::new(Now::new(&settings));
        let wait_name_limit = config.limits.wait_names;
        Self { collectors: Collectors::default(), settings, wait_name_limit, now }
    }

    /// Another run of the recorder begins: nothing is known of its processes.
    pub(super) fn begin(&self) {
        *self.now() = Now::new(&self.settings);
    }

    /// From now on this is what there is.
    pub(super) fn show(&self, scene: Scene<'_>) {
        let Scene { moment, processes, kernels, chains } = scene;
        let mut snapshot = Snapshot::clone(&moment.snapshot);
        let now = &mut *self.now();
        keep_up(&mut now.told_times, &mut snapshot.processes);
        keep_faults_up(&mut now.told_faults, &mut snapshot.processes);
        // The engine tells its times by the wall clock, the series theirs by one that stands still.
        let live = clock_at(snapshot.taken_at);
        let clock = *now.clock.get_or_insert(live);
        let findings = match chains {
            Some(chains) => recorded(&chains, &processes),
            None => {
                let unix_seconds = live.unix_seconds(snapshot.taken_at);
                now.chains.look(Moment { unix_seconds, ..moment });
                now.chains.findings()
            }
        };
        now.kernel_names.update(&snapshot.processes, &mut Recorded(kernels));
        let kernels = now.kernel_names.launches(&snapshot.processes);
        let waits = now.wait_names.update(&snapshot.processes, self.wait_name_limit);
        let mut observation = Observation::new(snapshot, Nanos(0), clock);
        observation.details = processes
            .iter()
            .map(|(id, own)| (*id, ProcessDetails::of_named(&own.details).into()))
            .collect();
        observation.waits = waits;
        observation.wait_names_folded = now.wait_names.folded();
        observation.kernels = kernels;
        observation.kernel_names_folded = now.kernel_names.folded();
        observation.findings = findings;
        now.observation = Some(observation);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chains that the recording tells, of processes that it tells.
fn recorded(chains: &[Chain], processes: &HashMap<ProcId, Process>) -> Findings {
    let mut findings = Findings { chains: chains.to_vec(), ..Findings::default() };
    for chain in chains {
        let victim = processes.iter().find(|(_, process)| process.pid == chain.victim.pid);
        let Some((&process, _)) = victim else { continue };
        let Chain { cause, effect, severity, .. } = *chain;
        let same = findings.counts.iter_mut().find(|own| {
            (own.process, own.cause, own.effect, own.severity) == (process, cause, effect, severity)
        });
        match same {
            Some(own) => own.count += 1,
            None => findings.counts.push(ChainCount {
                process,
                cause,
                effect,
                severity,
                count: 1,
                last_id: chain.id.clone(),
            }),
        }
        let (attributed, lost) = (nanos(chain.attributed_seconds()), nanos(chain.lost_seconds));
        let same = |own: &&mut Stall| (own.process, own.cause) == (process, cause);
        match findings.stalls.iter_mut().find(same) {
            Some(own) => {
                own.attributed.0 = own.attributed.0.saturating_add(attributed.0);
                own.lost.0 = own.lost.0.saturating_add(lost.0);
            }
            None => findings.stalls.push(Stall {
                process,
                cause,
                attributed,
                lost,
                last_id: chain.id.clone(),
                last_attributed: attributed,
                last_lost: lost,
            }),
        }
    }
    findings
}

fn nanos(seconds: f64) -> Nanos {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Names that were found out when it was recorded.
struct Recorded<'a>(&'a HashMap<ProcId, HashMap<u64, String>>);

impl NameSource for Recorded<'_> {
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName> {
        let name = self.0.get(&id)?.get(&handle)?;
        Some(HandleName::Text(name.as_bytes().into()))
    }

    fn function_names(
        &mut self,
        _process: &ProcessSnapshot,
        _addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        BTreeMap::new()
    }
}

impl Source for Stage {
    fn collectors(&self) -> Vec<&'static str> {
        self.collectors.names()
    }

    fn scrape(&self, selection: &Selection, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let observation = self.now().observation.clone();
        let observation = observation
            .unwrap_or_else(|| Observation::new(Snapshot::default(), Nanos(0), WallClock::now()));
        Ok(self.collectors.write(&observation, selection, page)?)
    }

    fn chains(&self) -> Vec<Chain> {
        self.now().observation.as_ref().map(|own| own.findings.chains.clone()).unwrap_or_default()
    }

    /// A recorder keeps its probes attached: what a recording shows was observed.
    fn observation(&self) -> ObservationState {
        let now = self.now();
        let state = now.observation.as_ref().map(|observation| observation.state.clone());
        state.unwrap_or_else(|| {
            let now = WallClock::now().unix_seconds(monotonic_now());
            Period::disabled(now, "the recording is being read").into()
        })
    }

    fn ready(&self) -> Readiness {
        match self.now().observation {
            Some(_) => Readiness::Ready,
            None => Readiness::NotReady("the recording is being read".into()),
        }
    }
}
