//! While the creation time of a counter's series is the same, its value never decreases, whatever processes, probes and limits do.
//! Random histories run through the pipeline, from the kernel maps to the families of the page.

mod kernel;
mod law;

use gpucause_input::duration::Span;
use gpucause_observe::chains::{Chains, engine_input};
use gpucause_observe::observation::Observation;
use gpucause_observe::pipeline::Pipeline;
use gpucause_observe::sampler::observer::{Explained, Observer};
use gpucause_observe::series::groups::{GroupLabel, GroupLabels};
use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{BLOCKED_ON, CUDA_CALL_DURATION, Kind, PREEMPTED_BY, PROCESSES_FOLDED};

use super::{Collectors, Content};
use crate::config::Limits;
use gpucause_abi::Nanos;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_engine::chain::Cause;
use gpucause_engine::settings::Settings;
use gpucause_engine::{Findings, Stall};
use kernel::{KEYS, Kernel, Work};
use law::Law;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Counters that the histories leave alone: of the daemon as a whole, or not from the kernel maps.
const ELSEWHERE: [&str; 10] = [
    "process_",
    "gpucause_cgroup_",
    "gpucause_flight_",
    "gpucause_dcgm_",
    "gpucause_events_dropped",
    "gpucause_map_full",
    "gpucause_otlp_",
    "gpucause_peers_",
    "gpucause_probe_",
    "gpucause_web_",
];

/// The daemon's handling of snapshots, without its probes and its `/proc`.
struct Node {
    observer: Observer<Kernel>,
    chains: Arc<Chains>,
    config: crate::config::Config,
    collectors: Collectors,
}

impl Node {
    fn new(live_processes: usize, wait_names: usize, group_by: GroupLabels) -> Self {
        let chains = Arc::new(Chains::new(Settings::default()));
        let pipeline = Pipeline::new(Kernel::default(), Nanos(0));
        let observer = Observer::new(pipeline, Arc::clone(&chains));
        let limits = Limits { exited_processes: 2, ..Limits::default() };
        let retention = Span(Duration::from_secs(20));
        let config = crate::config::Config { limits, retention, ..Default::default() };
        let mut node = Self { observer, chains, config, collectors: Collectors::default() };
        node.config.metrics.group_by = group_by;
        node.limit(live_processes, wait_names);
        node
    }

    fn limit(&mut self, live_processes: usize, wait_names: usize) {
        self.config.limits.live_processes = live_processes;
        self.config.limits.wait_names = wait_names;
        self.config.limits.series_per_process =
            wait_names * gpucause_observe::series::op_limit::SERIES_PER_OP;
        self.observer.configure(&self.config.series());
    }

    fn kernel(&mut self) -> &mut Kernel {
        self.observer.source()
    }

    fn page(&mut self, short: u64) -> Vec<Family> {
        self.kernel().short = short;
        let now = self.kernel().now();
        let page = self.page_not_before(Nanos(now.0 + 1));
        self.kernel().short = 0;
        page
    }

    fn page_not_before(&mut self, not_before: Nanos) -> Vec<Family> {
        let Ok(explained) = self.observer.export(not_before);
        let Explained { observation, findings } = &*explained;
        let findings = Findings { stalls: stalls(observation), ..findings.clone() };
        self.collectors.collect(Content { findings: &findings, ..Content::from(&**observation) })
    }

    /// Reaps processes between pages, as the daemon does.
    fn reap(&mut self) {
        let launches = self.kernel().processes();
        self.observer.name_launched(launches);
        let (now, processes) = (self.kernel().now(), self.kernel().processes());
        let ended: Vec<_> =
            processes.iter().filter_map(|process| Some((process.id, process.ended?))).collect();
        let Ok(()) = self.observer.reap(now, &ended);
    }

    fn evaluate(&mut self) {
        let now = self.kernel().now();
        let Ok(explained) = self.observer.observe(Nanos(now.0 + 1));
        self.chains.evaluate(&engine_input(&explained.observation, HashMap::new()));
        self.observer.set_evaluated(&explained.observation.snapshot.processes);
    }

    fn take(&mut self, step: &Step) -> Option<Vec<Family>> {
        match *step {
            Step::Begin { pid, name, worker } => self.kernel().begin(pid, name, worker),
            Step::Work { pid, seed, times } => self.kernel().work_at_random(pid, seed, times),
            Step::Exec { pid, name } => self.kernel().exec(pid, name),
            Step::End { pid } => self.kernel().end(pid),
            Step::Probes => self.kernel().toggle(),
            Step::Pass { seconds } => self.kernel().pass(Nanos(seconds * SECOND)),
            Step::Module { handle, name } => self.kernel().load(handle, name),
            Step::Limits { live, waits } => self.limit(live, waits),
            Step::Reap => self.reap(),
            Step::Evaluate => self.evaluate(),
            Step::Page { short } => return Some(self.page(short)),
            Step::SharedPage => return Some(self.page_not_before(Nanos(0))),
        }
        None
    }
}

/// The engine finds no cause in random accounts: so each process loses some time for every abandoned call.
fn stalls(observation: &Observation) -> Vec<Stall> {
    let former = observation.groups.iter().map(|group| &group.former);
    let all = observation.snapshot.processes.iter().chain(&observation.overflow).chain(former);
    let stall = |process: &ProcessSnapshot| Stall {
        process: process.id,
        cause: Cause::BlockIo,
        attributed: Nanos(process.measures.abandoned_calls),
        lost: Nanos(process.measures.abandoned_calls),
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
    Evaluate,
    /// Current time slices are reported short by so much.
    Page {
        short: u64,
    },
    /// A page of the last observation.
    SharedPage,
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
        3 => Just(Step::Evaluate),
        6 => (0..SECOND).prop_map(|short| Step::Page { short }),
        2 => Just(Step::SharedPage),
    ]
}

fn group_by() -> impl Strategy<Value = GroupLabels> {
    prop_oneof![Just(vec![]), Just(vec![GroupLabel::Comm])].prop_map(GroupLabels)
}

#[test]
fn no_counter_of_a_page_decreases_while_its_creation_time_is_the_same() {
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let histories = (0..4usize, 1..3usize, group_by(), prop::collection::vec(step(), 1..120));
    let outcome = runner.run(&histories, |(live, waits, group_by, steps)| {
        let (mut node, mut law) = (Node::new(live, waits, group_by), Law::default());
        for step in &steps {
            let Some(page) = node.take(step) else { continue };
            seen.borrow_mut().extend(law.hold(&page).map_err(TestCaseError::fail)?);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    let counts = |metric: &&&gpucause_page::metric::Metric| {
        matches!(metric.kind, Kind::Counter | Kind::Histogram)
            && !ELSEWHERE.iter().any(|name| metric.name.starts_with(name))
    };
    let idle: Vec<_> = gpucause_page::metric::ALL
        .iter()
        .filter(counts)
        .filter(|metric| !seen.contains(metric.name))
        .map(|metric| metric.name)
        .collect();
    assert_eq!(idle, [""; 0], "no history made these count");
}

#[test]
fn calls_of_processes_that_a_younger_one_of_their_pid_and_name_hides_are_those_of_other() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    for _ in 0..5 {
        node.kernel().begin(1, 0, false);
        node.kernel().work(1, Work::Preempted, 1, 5);
        node.kernel().end(1);
    }
    for _ in 0..2 {
        let page = node.page(0);
        let expected = [("1 train b".to_owned(), 5), ("other other other".to_owned(), 4 * 5)];
        assert_eq!(times(&page, &PREEMPTED_BY), expected);
        assert_eq!(aggregated(&page), 4);
    }
}

#[test]
fn a_process_that_executes_itself_often_is_one_and_its_counters_go_on() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    node.kernel().begin(1, 0, false);
    for image in 1..=70 {
        node.kernel().work(1, Work::Preempted, 1, 5);
        // The next image is not counted before its first call.
        node.kernel().exec(1, 0);
        node.reap();
        let waits = times(&node.page(0), &PREEMPTED_BY);
        assert_eq!(waits, [("1 train b".to_owned(), 5 * image)]);
    }
    assert_eq!(aggregated(&node.page(0)), 0);
    node.kernel().end(1);
    for pid in 2..=4 {
        node.kernel().begin(pid, 0, false);
        node.kernel().work(pid, Work::Preempted, 1, 5);
        node.kernel().end(pid);
    }
    let page = node.page(0);
    let pids: Vec<_> = times(&page, &PREEMPTED_BY).into_iter().map(|(labels, _)| labels).collect();
    assert_eq!(pids, ["3 train b", "4 train b", "other other other"], "the oldest went as a whole");
    assert_eq!(aggregated(&page), 2);
}

fn aggregated(page: &[Family]) -> u64 {
    let family = page.iter().find(|family| *family.metric == PROCESSES_FOLDED).unwrap();
    match family.samples[0].value {
        Value::Integer(count) => count,
        ref other => panic!("{other:?} is no count"),
    }
}

fn times(page: &[Family], metric: &gpucause_page::metric::Metric) -> Vec<(String, u64)> {
    let family = page.iter().find(|family| family.metric == metric).unwrap();
    let time = |value: &Value| match value {
        Value::Seconds(time) => time.0,
        other => panic!("{other:?} is no time"),
    };
    let labels = |labels: &[gpucause_page::family::LabelValue]| {
        labels.iter().map(|label| label.as_str()).collect::<Vec<_>>().join(" ")
    };
    family.samples.iter().map(|own| (labels(&own.labels), time(&own.value))).collect()
}

#[test]
fn waits_of_processes_that_are_aggregated_are_those_of_other() {
    let mut node = Node::new(0, 10, GroupLabels::default());
    for pid in [1, 2] {
        node.kernel().begin(pid, 0, false);
        node.kernel().work(pid, Work::Preempted, 1, 5);
        node.kernel().work(pid, Work::Blocked, 2, 7);
    }
    for _ in 0..2 {
        let page = node.page(0);
        assert_eq!(times(&page, &PREEMPTED_BY), [("other other other".to_owned(), 10)]);
        assert_eq!(times(&page, &BLOCKED_ON), [("other other futex other".to_owned(), 14)]);
        node.kernel().end(1);
    }
}

/// A worker waits for the CPU that its owner has: that names nobody who delays the owner.
#[test]
fn waits_of_workers_are_not_those_of_their_owner() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    node.kernel().begin(1, 0, false);
    node.kernel().work(1, Work::Call, 1, 5);
    node.kernel().work(1, Work::Preempted, 1, 5);
    node.kernel().begin(2, 0, true);
    node.kernel().work(2, Work::Preempted, 2, 7);
    for _ in 0..2 {
        let preempted = times(&node.page(0), &PREEMPTED_BY);
        assert_eq!(preempted.iter().map(|(_, time)| time).sum::<u64>(), 5, "{preempted:?}");
        node.kernel().end(2);
    }
}

#[test]
fn a_worker_that_ended_is_kept_until_chains_are_evaluated() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    node.kernel().begin(1, 0, false);
    node.kernel().work(1, Work::Call, 1, 5);
    node.kernel().begin(2, 0, true);
    node.page(0);
    node.kernel().end(2);
    for _ in 0..3 {
        node.page(0);
        assert_eq!(node.kernel().processes().len(), 2);
    }
    node.evaluate();
    node.page(0);
    assert_eq!(node.kernel().processes().len(), 1);
}

#[test]
fn a_worker_that_ended_goes_after_ten_seconds_where_no_chains_are_evaluated() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    node.kernel().begin(1, 0, false);
    node.kernel().work(1, Work::Call, 1, 5);
    node.kernel().begin(2, 0, true);
    node.page(0);
    node.kernel().end(2);
    node.page(0);
    node.kernel().pass(Nanos(11 * SECOND));
    node.page(0);
    assert_eq!(node.kernel().processes().len(), 1);
}

#[test]
fn a_member_of_a_group_that_ended_is_kept_until_chains_are_evaluated() {
    let mut node = Node::new(4, 10, GroupLabels(vec![GroupLabel::Comm]));
    for pid in [1, 2] {
        node.kernel().begin(pid, 0, false);
        node.kernel().work(pid, Work::Call, 1, 5);
    }
    node.page(0);
    node.kernel().end(2);
    for _ in 0..3 {
        node.page(0);
        assert_eq!(node.kernel().processes().len(), 2);
    }
    node.evaluate();
    node.page(0);
    assert_eq!(node.kernel().processes().len(), 1);
}

#[test]
fn waits_of_a_process_go_on_over_an_exec_of_itself_and_a_restart_of_the_probes() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    let mut expected = 0;
    let mut wait = |node: &mut Node| {
        node.kernel().work(1, Work::Preempted, 1, 5);
        expected += 5;
        let waits = times(&node.page(0), &PREEMPTED_BY);
        assert_eq!(waits, [("1 train b".to_owned(), expected)]);
    };
    node.kernel().begin(1, 0, false);
    wait(&mut node);
    node.kernel().exec(1, 0);
    wait(&mut node);
    node.kernel().toggle();
    node.kernel().toggle();
    wait(&mut node);
}

#[test]
fn a_group_has_the_sum_of_its_processes_also_of_those_that_ended() {
    let mut node = Node::new(4, 10, GroupLabels(vec![GroupLabel::Comm]));
    for pid in [1, 2] {
        node.kernel().begin(pid, 0, false);
        node.kernel().work(pid, Work::Preempted, 1, 5);
    }
    let expected = |time| [("all train b".to_owned(), time)];
    assert_eq!(times(&node.page(0), &PREEMPTED_BY), expected(10));
    node.kernel().end(1);
    for _ in 0..3 {
        assert_eq!(times(&node.page(0), &PREEMPTED_BY), expected(10));
        node.kernel().pass(Nanos(30 * SECOND));
    }
    node.kernel().begin(3, 0, false);
    node.kernel().work(3, Work::Preempted, 1, 7);
    assert_eq!(times(&node.page(0), &PREEMPTED_BY), expected(17));
    assert_eq!(aggregated(&node.page(0)), 0);
}

#[test]
fn a_group_stays_for_the_retention_after_its_last_process_ended() {
    let mut node = Node::new(4, 10, GroupLabels(vec![GroupLabel::Comm]));
    let expected = |time| [("all train b".to_owned(), time)];
    node.kernel().begin(1, 0, false);
    node.kernel().work(1, Work::Preempted, 1, 5);
    assert_eq!(times(&node.page(0), &PREEMPTED_BY), expected(5));
    node.kernel().work(1, Work::Preempted, 1, 7);
    node.kernel().end(1);
    for _ in 0..2 {
        node.evaluate();
        node.reap();
        assert_eq!(times(&node.page(0), &PREEMPTED_BY), expected(12), "its last values");
    }
    node.kernel().pass(Nanos(30 * SECOND));
    assert_eq!(times(&node.page(0), &PREEMPTED_BY), []);
    assert_eq!(aggregated(&node.page(0)), 0);
}

#[test]
fn a_group_has_as_few_operations_as_a_process() {
    let ops = |page: &[Family]| -> BTreeSet<String> {
        let family = page.iter().find(|family| *family.metric == CUDA_CALL_DURATION).unwrap();
        family.samples.iter().map(|own| own.labels[3].as_str().to_owned()).collect()
    };
    for group_by in [vec![], vec![GroupLabel::Comm]] {
        let mut node = Node::new(4, 1, GroupLabels(group_by));
        node.kernel().begin(1, 0, false);
        for key in [0, 0, 1, 2] {
            node.kernel().work(1, Work::Call, key, 1_000);
        }
        let expected = ["cudaLaunchKernel", "other"].map(str::to_owned);
        assert_eq!(ops(&node.page(0)), expected.clone().into());
        node.kernel().begin(2, 0, false);
        node.kernel().end(1);
        node.page(0);
        node.kernel().pass(Nanos(30 * SECOND));
        node.kernel().work(2, Work::Call, 0, 1_000);
        let now = ops(&node.page(0));
        assert!(now.is_subset(&expected.into()), "{now:?}");
    }
}

#[test]
fn workers_do_not_count_as_observed_processes() {
    let mut node = Node::new(4, 10, GroupLabels::default());
    node.kernel().begin(1, 0, false);
    node.kernel().work(1, Work::Preempted, 1, 5);
    node.kernel().begin(2, 0, true);
    let Ok(explained) = node.observer.export(Nanos(u64::MAX));
    let observation = &explained.observation;
    assert_eq!(observation.snapshot.processes.len(), 2);
    assert_eq!(observation.processes_live, 1);
    let snapshot = gpucause_abi::snapshot::Snapshot::clone(&observation.snapshot);
    assert_eq!(Observation::new(snapshot, Nanos(0), observation.clock).processes_live, 1);
}
