//! One scenario from start to end: the trainer, the probes, the engine, and its chains after each evaluation.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_engine::chain::Chain;
use gpucause_engine::settings::Settings;
use gpucause_engine::{Engine, EngineInput};
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_observe::throttling::Throttling;
use gpucause_probes::registry::LibraryVerdict;
use gpucause_probes::{Options, Probes};

use crate::alone::alone;
use crate::trainer::{Trainer, libraries};

/// Time limit of the search for the libraries.
const FIND_DEADLINE: Duration = Duration::from_secs(30);

/// Loaded once; each run asks for its own processes only.
static PROBES: LazyLock<Probes> =
    LazyLock::new(|| Probes::start(Options::default()).expect("needs root and a kernel with BTF"));

/// A scenario and how it is evaluated.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// Further faults at the same time.
    pub(crate) and: &'static [&'static str],
    pub(crate) strength: f64,
    /// Healthy time before the injection, in seconds: five evaluations, after which the program counts as warm.
    pub(crate) baseline: f64,
    /// Time from then on, in seconds.
    pub(crate) seconds: f64,
    /// True if an unrelated process keeps the other CPU busy.
    pub(crate) beside_noise: bool,
    /// Between two evaluations: a part of the daemon's interval, as every round waits for several.
    pub(crate) evaluate_every: Duration,
    pub(crate) settings: Settings,
}

impl Plan {
    pub(crate) fn of(name: &'static str) -> Self {
        // A single round has as many evaluations, in a third of the time.
        let part = if rounds() == 1 { 3 } else { 1 };
        Self {
            name,
            and: &[],
            strength: 0.4,
            baseline: 4.0 / f64::from(part),
            seconds: 5.5 / f64::from(part),
            beside_noise: false,
            evaluate_every: EVALUATE_EVERY / (2 * part),
            settings: Settings::default(),
        }
    }
}

/// The chains of the trainer and its ranks after an evaluation, the worst first.
#[derive(Debug, Clone)]
pub(crate) struct Evaluation {
    /// On the monotonic clock, in nanoseconds.
    pub(crate) at_ns: u64,
    pub(crate) chains: Vec<Chain>,
}

/// The results of a run.
pub(crate) struct Outcome {
    pub(crate) trainer: Trainer,
    pub(crate) evaluations: Vec<Evaluation>,
    /// The processes of the trainer in the last snapshot.
    pub(crate) processes: Vec<ProcessSnapshot>,
    /// The longest time from when an evaluation was due until its thread ran, and that of a snapshot.
    pub(crate) late: Duration,
    pub(crate) snapshot: Duration,
}

fn until_attached(probes: &Probes, library: &std::path::Path) {
    let deadline = Instant::now() + FIND_DEADLINE;
    loop {
        let libraries = probes.status().libraries;
        if libraries
            .iter()
            .any(|own| own.path == library && own.verdict == LibraryVerdict::Attached)
        {
            return;
        }
        assert!(Instant::now() < deadline, "{} has no probes: {libraries:#?}", library.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Accounts of earlier runs would make each snapshot longer: this thread would compete with the trainer for a CPU.
fn remove_earlier(probes: &Probes) {
    let ended = probes.ended().unwrap().into_iter().map(|(id, _)| id);
    probes.remove(&ended.collect()).unwrap();
}

/// Runs it. Every test of this program runs alone, here and in other checkouts.
pub(crate) fn run(plan: &Plan) -> Outcome {
    let _alone = alone();
    let libraries = libraries();
    let mut arguments = vec![
        plan.name.to_owned(),
        format!("--strength={}", plan.strength),
        format!("--baseline={}", plan.baseline),
        format!("--seconds={}", plan.seconds),
    ];
    if !plan.and.is_empty() {
        arguments.push(format!("--and={}", plan.and.join(",")));
    }
    // Neighbours and CPU limits cannot disturb an undisturbed thread.
    let by_scheduler = |name: &&str| matches!(*name, "incident" | "cpu-contention" | "cpu-limit");
    if ![plan.name].iter().chain(plan.and).any(by_scheduler) {
        arguments.push("--undisturbed".into());
    }
    if plan.beside_noise {
        arguments.push("--beside-noise".into());
    }
    let mut trainer = Trainer::start(&libraries, &arguments);
    let probes = &*PROBES;
    remove_earlier(probes);
    until_attached(probes, &libraries.join("libcudart.so.12"));
    if plan.name == "nccl-straggler" {
        until_attached(probes, &libraries.join("libnccl.so.2"));
    }
    let mut engine = Engine::new(plan.settings.clone());
    let mut throttling = Throttling::at("/proc");
    let mut outcome = Outcome {
        trainer,
        evaluations: Vec::new(),
        processes: Vec::new(),
        late: Duration::ZERO,
        snapshot: Duration::ZERO,
    };
    trainer = outcome.trainer;
    trainer.go();
    let mut next = Instant::now();
    loop {
        next += plan.evaluate_every;
        if !trainer.listen_until(next) {
            break;
        }
        let late = next.elapsed();
        let snapshot = Arc::new(probes.snapshot().unwrap());
        outcome.late = outcome.late.max(late);
        outcome.snapshot = outcome.snapshot.max(next.elapsed().saturating_sub(late));
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let at_ns = snapshot.taken_at.0;
        let mut input = EngineInput::new(Arc::clone(&snapshot), unix);
        let throttled = throttling.refresh(&snapshot.processes).into_iter();
        input.throttled_cgroups = throttled.map(|(id, throttled)| (id, throttled.time)).collect();
        engine.evaluate(&input);
        // The host may have CUDA processes of other tests.
        let leader = nix::unistd::Pid::from_raw(trainer.pid().cast_signed());
        let own = |pid: u32| {
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            nix::unistd::getpgid(Some(pid)).is_ok_and(|group| group == leader)
        };
        let chains = engine.chains().into_iter().filter(|chain| own(chain.victim.pid));
        outcome.evaluations.push(Evaluation { at_ns, chains: chains.cloned().collect() });
        let processes = snapshot.processes.iter().filter(|process| own(process.tgid.0));
        outcome.processes = processes.cloned().collect();
    }
    outcome.trainer = trainer;
    outcome
}

/// Attempts at each scenario. In a single round there are two: other work on the host may cause detections that are right but
/// not expected. In many rounds, no run is repeated.
pub(crate) fn tries() -> u32 {
    if rounds() == 1 { 2 } else { 1 }
}

/// Runs of each scenario.
pub(crate) fn rounds() -> u32 {
    let rounds = std::env::var("GPUCAUSE_SCENARIO_ROUNDS").ok();
    rounds.map_or(1, |rounds| rounds.parse().expect("a number of rounds"))
}

impl Outcome {
    /// A report of the run, to find out why it failed.
    pub(crate) fn report(&self) -> String {
        let mut text = format!("injected: {:?}\n", self.trainer.injected);
        let _ = writeln!(text, "the trainer has ended: {:?}", self.trainer.ended);
        let _ =
            writeln!(text, "evaluations late by {:?}, snapshots {:?}", self.late, self.snapshot);
        for evaluation in &self.evaluations {
            let _ = writeln!(text, "evaluation at {:.3} s:", evaluation.at_ns as f64 / 1e9);
            for chain in &evaluation.chains {
                let _ = writeln!(
                    text,
                    "  {} {} {} {:?} explained {:.2} took {:.3} s, lost {:.3} s: {}",
                    chain.severity,
                    chain.cause,
                    chain.effect,
                    chain.culprit,
                    chain.explained,
                    chain.attributed_seconds(),
                    chain.lost_seconds,
                    chain.sentence
                );
            }
        }
        for process in &self.processes {
            let _ = writeln!(text, "{} {}", process.tgid, process.comm.to_text());
            for phase in gpucause_abi::state::Phase::ALL {
                for state in gpucause_abi::state::State::all() {
                    let time = process.dispatcher_time.at(*phase, state);
                    if time.0 > 1_000_000 {
                        let _ = writeln!(text, "  {phase:?} {state:?} {:.3} s", time.as_secs_f64());
                    }
                }
            }
            for wait in process.waits.iter().filter(|wait| wait.total.0 > 5_000_000) {
                let _ = writeln!(
                    text,
                    "  {:?} {:?} {:.3} held {:.3} {:?} {}",
                    wait.reason,
                    wait.phase,
                    wait.total.as_secs_f64(),
                    wait.held.as_secs_f64(),
                    wait.relation,
                    wait.on.to_text()
                );
            }
        }
        text
    }
}
