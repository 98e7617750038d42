//! Isolation of collectors, identity of series, and what the families add up to.

use gpucause_http::web_config::WebConfigState;
use gpucause_observe::clock::WallClock;
use gpucause_observe::kernel_launches::KernelLaunches;
use gpucause_page::family::Sample;
use gpucause_page::metric::{
    CAUSAL_CHAIN_SECONDS, CUDA_CALL_DURATION, CUDA_CALL_ERRORS, CUDA_CALL_STALLED, DISPATCHER_LOST,
    DISPATCHER_TIME, DISPATCHER_WALL, KERNEL_LAUNCHES, Metric, PROCESSES_OBSERVED, STALL_SECONDS,
};

use super::*;
use crate::daemon_state::{ConfigState, DaemonState};
use crate::otlp::OtlpCounts;
use crate::peers::PeersState;
use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::{OpId, op_of_symbol};
use gpucause_abi::record::{COMM_LEN, PHASES, STATES, SelfCounter};
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::chain::Cause;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;

fn comm(name: &str) -> Comm {
    let mut raw = [0; COMM_LEN];
    raw[..name.len()].copy_from_slice(name.as_bytes());
    Comm(raw)
}

fn launch() -> OpId {
    op_of_symbol("cudaLaunchKernel").unwrap()
}

fn process(id: u32, started: u64, calls: u64) -> ProcessSnapshot {
    let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
    let durations = Histogram {
        sum: Nanos(calls * 10_000),
        max: Nanos(10_000),
        slots: vec![(slot, calls)].into(),
    };
    ProcessSnapshot {
        started_boottime: Nanos(started),
        first_seen: Nanos(u64::from(id) * SECOND),
        dispatches: true,
        calls: vec![CallSnapshot::unstalled(launch(), false, durations)],
        ..ProcessSnapshot::new(ProcId(id), Tgid(42), comm("train"))
    }
}

fn observation(processes: Vec<ProcessSnapshot>) -> Observation {
    let snapshot = Snapshot { processes, ..Snapshot::default() };
    Observation::new(snapshot, Nanos(0), WallClock::with_origin(Duration::from_secs(1_000)))
}

fn samples(families: &[Family], metric: &Metric) -> Vec<Sample> {
    let family = families.iter().find(|family| family.metric == metric).unwrap();
    family.samples.clone()
}

fn call_counts(processes: Vec<ProcessSnapshot>) -> Vec<(u64, Option<f64>)> {
    samples(&Collectors::default().collect(&observation(processes)), &CUDA_CALL_DURATION)
        .iter()
        .map(|sample| match &sample.value {
            Value::Histogram(histogram) => (histogram.count(), sample.created),
            other => panic!("{other:?} is no histogram"),
        })
        .collect()
}

#[test]
fn images_of_one_process_add_up_and_begin_with_the_first() {
    let counts = call_counts(vec![process(8, 5, 3), process(7, 5, 4)]);
    assert_eq!(counts, [(7, Some(1_007.0))]);
}

#[test]
fn of_processes_that_share_pid_and_name_the_youngest_is_exported() {
    let counts = call_counts(vec![process(9, 6, 3), process(7, 5, 4), process(8, 5, 1)]);
    assert_eq!(counts, [(3, Some(1_009.0))]);
}

#[test]
fn names_that_look_alike_are_one_series() {
    let (mut one, mut other) = (process(1, 5, 3), process(2, 5, 4));
    one.comm.0[0] = 0xff;
    other.comm.0[0] = 0xfe;
    assert_eq!(call_counts(vec![one, other]), [(7, Some(1_001.0))]);
}

#[test]
fn a_new_name_is_a_new_series() {
    let mut renamed = process(2, 5, 4);
    renamed.comm = comm("python");
    assert_eq!(call_counts(vec![process(1, 5, 3), renamed]).len(), 2);
}

#[test]
fn no_two_samples_of_a_family_have_the_same_labels() {
    let mut process = process(1, 5, 3);
    process.errors = vec![(launch(), 5_000, 1), (launch(), 6_000, 2), (launch(), 2, 3)];
    let families = Collectors::default().collect(&observation(vec![process]));
    for family in &families {
        for (index, sample) in family.samples.iter().enumerate() {
            assert_eq!(sample.labels.len(), family.metric.labels.len(), "{}", family.metric.name);
            let twice = family.samples[..index].iter().any(|other| other.labels == sample.labels);
            assert!(!twice, "{} {:?}", family.metric.name, sample.labels);
        }
    }
    let errors = samples(&families, &CUDA_CALL_ERRORS);
    let total: u64 = errors
        .iter()
        .map(|sample| if let Value::Integer(count) = sample.value { count } else { 0 })
        .sum();
    assert_eq!((errors.len(), total), (2, 6));
}

#[test]
fn an_op_that_never_stalled_says_so() {
    let families = Collectors::default().collect(&observation(vec![process(1, 5, 3)]));
    let stalled = samples(&families, &CUDA_CALL_STALLED);
    assert_eq!(stalled.len(), 1);
    assert_eq!(stalled[0].value, Value::Integer(0));
}

#[test]
fn every_metric_of_the_table_has_a_collector() {
    let mut full = observation(vec![process(1, 5, 3)]);
    let daemon = DaemonState {
        config: ConfigState::default(),
        web_config: Some(WebConfigState::default()),
        flights: Some([("written", 1), ("suppressed", 0), ("failed", 0)]),
        otlp: Some(OtlpCounts::default()),
        peers: Some(PeersState { age: Some(Duration::ZERO), ..PeersState::default() }),
    };
    Arc::make_mut(&mut full.snapshot).counters =
        SelfCounter::ALL.iter().map(|&counter| (counter, 1)).collect();
    let families =
        Collectors::default().collect(Content { daemon: &daemon, ..Content::from(&full) });
    for metric in gpucause_page::metric::ALL {
        let count = families.iter().filter(|family| family.metric == *metric).count();
        assert_eq!(count, 1, "{}", metric.name);
    }
}

fn nanos(sample: &Sample) -> u64 {
    match sample.value {
        Value::Seconds(time) => time.0,
        ref other => panic!("{other:?} is no time"),
    }
}

#[test]
fn every_cause_that_can_take_or_lose_time_has_a_series_from_the_start_and_no_other() {
    let families = Collectors::default().collect(&observation(vec![process(1, 5, 3)]));
    let causes = |metric| -> Vec<_> {
        let samples = samples(&families, metric);
        samples.iter().map(|sample| sample.labels[2].as_str().to_owned()).collect()
    };
    let that = |can: fn(Cause) -> bool| -> Vec<_> {
        Cause::ALL.iter().filter(|&&cause| can(cause)).map(|cause| cause.label()).collect()
    };
    assert_eq!(causes(&CAUSAL_CHAIN_SECONDS), that(Cause::takes_time));
    assert_eq!(causes(&STALL_SECONDS), that(Cause::loses_time));
    assert!(!causes(&CAUSAL_CHAIN_SECONDS).iter().any(|cause| cause == "oom_kill"));
    assert!(!causes(&STALL_SECONDS).iter().any(|cause| cause == "implicit_sync"));
}

proptest! {
    #[test]
    fn sums_of_the_time_account_are_those_of_its_cells(
        cells in prop::collection::vec(0u64..1_000_000, PHASES * STATES),
    ) {
        let mut process = process(1, 5, 3);
        let account = process.dispatcher_time.0.iter_mut().flatten();
        account.zip(&cells).for_each(|(cell, time)| *cell = Nanos(*time));
        let families = Collectors::default().collect(&observation(vec![process]));
        let times = samples(&families, &DISPATCHER_TIME);
        let wall = samples(&families, &DISPATCHER_WALL);
        let all: u64 = times.iter().map(nanos).sum();
        prop_assert_eq!(wall.iter().map(nanos).sum::<u64>(), all);
        // The definition in the help text.
        let is_lost = |phase: &str, state: &str| match state {
            "runqueue" => true,
            "preempted" | "lock" | "kernel_lock" | "io" | "page_fault" => phase != "sync",
            _ => false,
        };
        let mut expected = BTreeMap::new();
        for time in &times {
            let (phase, state) = (time.labels[2].as_str(), time.labels[3].as_str());
            if is_lost(phase, state) {
                *expected.entry(state.to_owned()).or_insert(0) += nanos(time);
            }
        }
        let lost = samples(&families, &DISPATCHER_LOST);
        let lost: BTreeMap<_, _> =
            lost.iter().map(|lost| (lost.labels[2].as_str().to_owned(), nanos(lost))).collect();
        prop_assert_eq!(lost, expected);
    }
}

struct Broken;

impl Collector for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn collect<'a>(&'a self, _input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        Err(CollectError::Unreadable("anything"))
    }
}

struct Panicking;

impl Collector for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn collect<'a>(&'a self, _input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        panic!("a bug");
    }
}

/// Panics once its first family is made.
struct HalfWay;

impl Collector for HalfWay {
    fn name(&self) -> &'static str {
        "half way"
    }

    fn collect<'a>(&'a self, _input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let first = Family::single(&PROCESSES_OBSERVED, Value::Integer(7), None);
        Ok(Box::new(std::iter::once(first).chain(std::iter::once_with(|| panic!("a bug")))))
    }
}

#[test]
fn a_collector_that_fails_half_way_is_reported_and_keeps_the_families_it_made() {
    let collectors = Collectors::new(vec![Box::new(HalfWay), Box::new(calls::Calls)]);
    let families = collectors.collect(&observation(vec![process(1, 5, 3)]));
    let successes = samples(&families, &SCRAPE_COLLECTOR_SUCCESS).into_iter();
    let successes: Vec<_> = successes.map(|sample| sample.value).collect();
    assert_eq!(successes, [Value::Integer(0), Value::Integer(1)]);
    let observed: Vec<_> = samples(&families, &PROCESSES_OBSERVED);
    assert_eq!(observed.len(), 1);
    assert_eq!(samples(&families, &CUDA_CALL_DURATION).len(), 1);
}

#[test]
fn a_page_that_goes_nowhere_is_made_no_further() {
    struct Gone(usize);
    impl Sink for Gone {
        fn own(&mut self, _: Family) -> io::Result<()> {
            self.0 += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn foreign(
            &mut self,
            _: &[std::sync::Arc<gpucause_page::foreign::ForeignFamily>],
        ) -> io::Result<()> {
            Ok(())
        }
    }
    let mut gone = Gone(0);
    let observation = observation(vec![process(1, 5, 3)]);
    let error = Collectors::default().write(&observation, &Scope::full(), &mut gone).unwrap_err();
    assert_eq!((error.kind(), gone.0), (io::ErrorKind::BrokenPipe, 1));
}

#[test]
fn a_collector_that_fails_takes_no_other_along() {
    let collectors =
        Collectors::new(vec![Box::new(Broken), Box::new(Panicking), Box::new(calls::Calls)]);
    let families = collectors.collect(&observation(vec![process(1, 5, 3)]));
    let successes: Vec<_> = samples(&families, &SCRAPE_COLLECTOR_SUCCESS)
        .into_iter()
        .map(|sample| (sample.labels[0].as_str().to_owned(), sample.value))
        .collect();
    let expected = [("broken", 0), ("panicking", 0), ("calls", 1)]
        .map(|(name, success)| (name.to_owned(), Value::Integer(success)));
    assert_eq!(successes, expected);
    assert_eq!(samples(&families, &SCRAPE_COLLECTOR_DURATION).len(), 3);
    assert_eq!(samples(&families, &CUDA_CALL_DURATION).len(), 1);
}

fn launches(observation: &Observation) -> Vec<(String, u64)> {
    let families = Collectors::default().collect(observation);
    let of = |sample: Sample| match sample.value {
        Value::Integer(count) => (sample.labels[2].as_str().to_owned(), count),
        other => panic!("{other:?} is no count"),
    };
    samples(&families, &KERNEL_LAUNCHES).into_iter().map(of).collect()
}

#[test]
fn launches_of_all_images_of_a_process_add_up_by_name() {
    let mut observation = observation(vec![process(1, 5, 0), process(2, 5, 0)]);
    let image = |name: &str, other| KernelLaunches {
        by_name: vec![("gemm".into(), 5), (name.into(), 1)],
        other,
        total: 6 + other,
        ..KernelLaunches::default()
    };
    observation.kernels = [(ProcId(1), image("a", 2)), (ProcId(2), image("b", 0))].into();
    let expected = [("gemm", 10), ("a", 1), ("b", 1), ("other", 2)];
    assert_eq!(launches(&observation), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn launches_of_aggregated_processes_are_in_other() {
    let mut observation = observation(Vec::new());
    let mut other = process(1, 5, 0);
    (other.kernels, other.measures.other_launches) = (vec![(0x10, 3), (0x20, 4)], 2);
    observation.overflow = Some(other);
    assert_eq!(launches(&observation), [("other".to_owned(), 9)]);
}

#[test]
fn series_under_names_of_dcgm_count_as_those_of_their_collector() {
    let mut observation = observation(Vec::new());
    let page = b"DCGM_A{gpu=\"0\"} 1\nDCGM_A{gpu=\"1\"} 2\nDCGM_B 3\n";
    let families = gpucause_observe::dcgm::parse(page).unwrap();
    observation.gpus.families = families.into_iter().map(Arc::new).collect();
    let mut exported = Exported::default();
    Collectors::default().write(&observation, &Scope::full(), &mut exported).unwrap();
    assert_eq!(exported.foreign.len(), 2);
    let counts = samples(&exported.own, &SCRAPE_SERIES).into_iter();
    let own = counts.filter(|sample| sample.labels[0].as_str() == FOREIGN);
    assert_eq!(own.map(|sample| sample.value).collect::<Vec<_>>(), [Value::Integer(3)]);
}
