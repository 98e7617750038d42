//! The law of counters: while a series has the same time of creation, it never steps back, whatever processes, probes and limits
//! do. Random histories go the way from the kernel maps to the families of the page.

mod kernel;
mod law;

use super::*;
use crate::chains::{Chains, moment};
use crate::clock::WallClock;
use crate::collector::Collectors;
use crate::family::{Family, Value};
use crate::kernel_names::KernelNames;
use crate::metric::{BLOCKED_ON, Kind, PREEMPTED_BY};
use crate::observation::Observation;
use crate::retention::Policy;
use crate::wait_names::WaitNames;
use gpucause_abi::snapshot::Snapshot;
use gpucause_engine::Stall;
use gpucause_engine::chain::Cause;
use gpucause_engine::settings::Settings;
use kernel::{KEYS, Kernel, Work, comm};
use law::Law;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Counters that the histories leave alone: of the daemon as a whole, or not from the kernel maps.
const ELSEWHERE: [&str; 15] = [
    "process_",
    "gpucause_cgroup_",
    "gpucause_flight_",
    "gpucause_calls_cut",
    "gpucause_calls_on_other_stack",
    "gpucause_calls_too_deep",
    "gpucause_calls_unmatched_returns",
    "gpucause_clock_underflow",
    "gpucause_dcgm_",
    "gpucause_duplicate_hits",
    "gpucause_map_full",
    "gpucause_missed_arrivals",
    "gpucause_mmap_events_lost",
    "gpucause_probe_",
    "gpucause_web_",
];

/// What the daemon does with snapshots, without the daemon's probes and its `/proc`.
struct Pipeline {
    kernel: Kernel,
    life_cycle: LifeCycle,
    wait_names: WaitNames,
    kernel_names: KernelNames,
    chains: Chains,
    wait_limit: usize,
    collectors: Collectors,
}

impl Pipeline {
    fn new(live_processes: usize, wait_limit: usize) -> Self {
        let mut life_cycle = LifeCycle::default();
        life_cycle.folding.set_limit(live_processes);
        life_cycle.retention.set_policy(Policy { keep_for: Duration::from_secs(20), max_ended: 2 });
        Self {
            kernel: Kernel::default(),
            life_cycle,
            wait_names: WaitNames::default(),
            kernel_names: KernelNames::default(),
            chains: Chains::new(Settings::default()),
            wait_limit,
            collectors: Collectors::default(),
        }
    }

    fn drop_ended(&mut self, snapshot: &mut Snapshot) {
        let due = self.life_cycle.due(snapshot.taken_at, &mut snapshot.processes);
        self.kernel.remove(&due.gone);
        let folded = self.life_cycle.remove(&due, &mut snapshot.processes, |_| true);
        self.chains.fold(&folded);
    }

    fn name_kernels(&mut self, processes: &[ProcessSnapshot]) {
        self.kernel_names.update(processes, &mut self.kernel.names);
    }

    fn time_kernels(&mut self, processes: &[ProcessSnapshot]) {
        for (id, handle, name) in self.kernel_names.untimed(processes) {
            self.kernel.time(id, handle);
            self.kernel_names.timed(id, handle, name);
        }
    }

    fn page(&mut self, short: u64) -> Vec<Family> {
        let mut snapshot = self.kernel.snapshot(short);
        self.drop_ended(&mut snapshot);
        let folded = self.life_cycle.page(&mut snapshot.processes);
        self.name_kernels(&snapshot.processes);
        let kernels = self.kernel_names.launches(&snapshot.processes);
        self.time_kernels(&snapshot.processes);
        let waits =
            self.wait_names.update(snapshot.processes.iter().chain(&folded), self.wait_limit);
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let mut observation = Observation::new(snapshot, Nanos(0), clock);
        observation.processes_folded = self.life_cycle.folded();
        observation.waits = waits;
        observation.wait_names_folded = self.wait_names.folded();
        observation.kernels = kernels;
        observation.kernel_names_folded = self.kernel_names.folded();
        observation.folded = folded;
        observation.findings = self.chains.findings();
        observation.findings.stalls = stalls(&observation);
        self.collectors.gather(&observation)
    }

    /// As the daemon does it between pages.
    fn reap(&mut self) {
        let mut launches = self.kernel.snapshot(0).processes;
        self.life_cycle.folding.assign(&launches);
        self.life_cycle.folding.leave_untold(&mut launches);
        self.name_kernels(&launches);
        self.time_kernels(&launches);
        let mut snapshot = self.kernel.snapshot(0);
        self.drop_ended(&mut snapshot);
    }

    fn look(&mut self) {
        let mut snapshot = self.kernel.snapshot(0);
        self.life_cycle.folding.assign(&snapshot.processes);
        self.life_cycle.folding.leave_untold(&mut snapshot.processes);
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let (details, throttled, gpus) = Default::default();
        self.chains.look(moment(snapshot, &details, clock, throttled, gpus));
    }

    fn take(&mut self, step: &Step) -> Option<Vec<Family>> {
        match *step {
            Step::Begin { pid, name, worker } => self.kernel.begin(pid, name, worker),
            Step::Work { pid, seed, times } => self.kernel.work_at_random(pid, seed, times),
            Step::Exec { pid, name } => self.kernel.exec(pid, name),
            Step::End { pid } => self.kernel.end(pid),
            Step::Probes => self.kernel.toggle(),
            Step::Pass { seconds } => self.kernel.pass(Nanos(seconds * SECOND)),
            Step::Module { handle, name } => self.kernel.load(handle, name),
            Step::Limits { live, waits } => {
                self.life_cycle.folding.set_limit(live);
                self.wait_limit = waits;
            }
            Step::Reap => self.reap(),
            Step::Look => self.look(),
            Step::Page { short } => return Some(self.page(short)),
        }
        None
    }
}

/// The engine finds too little in nonsense to lose any time by it: so each process loses some for every abandoned call.
fn stalls(observation: &Observation) -> Vec<Stall> {
    let all = observation.snapshot.processes.iter().chain(&observation.folded);
    let stall = |process: &ProcessSnapshot| Stall {
        process: process.id,
        cause: Cause::BlockIo,
        attributed: Nanos(process.abandoned_calls),
        lost: Nanos(process.abandoned_calls),
        last_id: String::new(),
        last_attributed: Nanos(0),
        last_lost: Nanos(0),
    };
    all.map(stall).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Begin {
        pid: u32,
        name: usize,
        worker: bool,
    },
    Work {
        pid: u32,
        seed: u64,
        times: usize,
    },
    Exec {
        pid: u32,
        name: usize,
    },
    End {
        pid: u32,
    },
    /// Detaches all probes, or attaches them again.
    Probes,
    Pass {
        seconds: u64,
    },
    /// A handle of a kernel becomes another kernel's.
    Module {
        handle: u64,
        name: usize,
    },
    Limits {
        live: usize,
        waits: usize,
    },
    Reap,
    Look,
    /// What is still going on is reported short by so much.
    Page {
        short: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let pid = || 1..4u32;
    prop_oneof![
        4 => (pid(), 0..2usize, any::<bool>()).prop_map(|(pid, name, worker)| Step::Begin { pid, name, worker }),
        8 => (pid(), any::<u64>(), 1..30usize).prop_map(|(pid, seed, times)| Step::Work { pid, seed, times }),
        2 => (pid(), 0..2usize).prop_map(|(pid, name)| Step::Exec { pid, name }),
        2 => pid().prop_map(|pid| Step::End { pid }),
        1 => Just(Step::Probes),
        3 => (1..15u64).prop_map(|seconds| Step::Pass { seconds }),
        2 => (0..KEYS as u64, 0..30usize).prop_map(|(handle, name)| Step::Module { handle, name }),
        1 => (0..4usize, 0..3usize).prop_map(|(live, waits)| Step::Limits { live, waits }),
        2 => Just(Step::Reap),
        3 => Just(Step::Look),
        6 => (0..SECOND).prop_map(|short| Step::Page { short }),
    ]
}

#[test]
fn no_counter_of_a_page_steps_back_while_its_time_of_creation_is_the_same() {
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let histories = (0..4usize, 1..3usize, prop::collection::vec(step(), 1..120));
    let outcome = runner.run(&histories, |(live, waits, steps)| {
        let (mut pipeline, mut law) = (Pipeline::new(live, waits), Law::default());
        for step in &steps {
            let Some(page) = pipeline.take(step) else { continue };
            seen.borrow_mut().extend(law.hold(&page).map_err(TestCaseError::fail)?);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    let counts = |metric: &&&crate::metric::Metric| {
        matches!(metric.kind, Kind::Counter | Kind::Histogram)
            && !ELSEWHERE.iter().any(|name| metric.name.starts_with(name))
    };
    let idle: Vec<_> = crate::metric::ALL
        .iter()
        .filter(counts)
        .filter(|metric| !seen.contains(metric.name))
        .map(|metric| metric.name)
        .collect();
    assert_eq!(idle, [""; 0], "no history made these count");
}

#[test]
fn calls_of_processes_that_a_younger_one_of_their_pid_and_name_hides_are_those_of_other() {
    let mut pipeline = Pipeline::new(4, 10);
    for _ in 0..5 {
        pipeline.kernel.begin(1, 0, false);
        pipeline.kernel.work(1, Work::Preempted, 1, 5);
        pipeline.kernel.end(1);
    }
    for _ in 0..2 {
        let page = pipeline.page(0);
        let expected = [("1 train b".to_owned(), 5), ("other other other".to_owned(), 4 * 5)];
        assert_eq!(times(&page, &PREEMPTED_BY), expected);
        assert_eq!(pipeline.life_cycle.folded(), 4);
    }
}

fn times(page: &[Family], metric: &crate::metric::Metric) -> Vec<(String, u64)> {
    let family = page.iter().find(|family| family.metric == metric).unwrap();
    let time = |value: &Value| match value {
        Value::Seconds(time) => time.0,
        other => panic!("{other:?} is no time"),
    };
    let labels = |labels: &[crate::family::LabelValue]| {
        labels.iter().map(|label| label.as_str()).collect::<Vec<_>>().join(" ")
    };
    family.samples.iter().map(|own| (labels(&own.labels), time(&own.value))).collect()
}

#[test]
fn waits_of_processes_that_are_aggregated_are_those_of_other() {
    let mut pipeline = Pipeline::new(0, 10);
    for pid in [1, 2] {
        pipeline.kernel.begin(pid, 0, false);
        pipeline.kernel.work(pid, Work::Preempted, 1, 5);
        pipeline.kernel.work(pid, Work::Blocked, 2, 7);
    }
    for _ in 0..2 {
        let page = pipeline.page(0);
        assert_eq!(times(&page, &PREEMPTED_BY), [("other other other".to_owned(), 10)]);
        assert_eq!(times(&page, &BLOCKED_ON), [("other other futex other".to_owned(), 14)]);
        pipeline.kernel.end(1);
    }
}

#[test]
fn waits_of_a_process_go_on_over_an_exec_of_itself_and_a_restart_of_the_probes() {
    let mut pipeline = Pipeline::new(4, 10);
    let mut expected = 0;
    let mut wait = |pipeline: &mut Pipeline| {
        pipeline.kernel.work(1, Work::Preempted, 1, 5);
        expected += 5;
        let told = times(&pipeline.page(0), &PREEMPTED_BY);
        assert_eq!(told, [("1 train b".to_owned(), expected)]);
    };
    pipeline.kernel.begin(1, 0, false);
    wait(&mut pipeline);
    pipeline.kernel.exec(1, 0);
    wait(&mut pipeline);
    pipeline.kernel.toggle();
    pipeline.kernel.toggle();
    wait(&mut pipeline);
}

#[test]
fn page_faults_never_step_back_nor_vanish_while_a_process_is_told_of() {
    let mut told = HashMap::new();
    let mut look = |id: u32, faults: Option<[u64; FAULTS]>| {
        let mut process = ProcessSnapshot::new(ProcId(id), gpucause_abi::Tgid(1), comm("train"));
        process.host.page_faults = faults;
        let mut processes = [process];
        keep_faults_up(&mut told, &mut processes);
        let [process] = processes;
        process.host.page_faults
    };
    assert_eq!(look(1, Some([10, 1])), Some([10, 1]));
    assert_eq!(look(1, Some([8, 2])), Some([10, 2]));
    assert_eq!(look(1, None), Some([10, 2]));
    assert_eq!(look(2, None), None);
}
