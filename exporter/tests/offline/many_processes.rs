//! A host with as many processes as kernel maps hold: their series stay within the limit, and the sums have every call.

use gpucause::collector::Collectors;
use gpucause::config::Config;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_fixture::{crowd, ops};
use gpucause_observe::series::cardinality_limit::CardinalityLimit;
use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{CUDA_CALL_DURATION, Metric, PROCESSES_FOLDED, PROCESSES_OBSERVED};
use std::collections::BTreeMap;

const MANY: u32 = 10_000;
/// Few, so that as many processes are soon made.
const OPS: &[&str] = ops::OPS.split_at(2).0;

/// The families of a page, made as the daemon does.
fn page(cardinality: &mut CardinalityLimit, mut processes: Vec<ProcessSnapshot>) -> Vec<Family> {
    let live = processes.len() as u64;
    cardinality.assign(&processes);
    let overflow = cardinality.take_overflow(&mut processes);
    let mut observation = crowd::observation(processes);
    observation.processes_live = live;
    observation.processes_aggregated = cardinality.aggregated_total();
    observation.overflow = overflow;
    Collectors::default().collect(&observation)
}

fn family<'a>(families: &'a [Family], metric: &Metric) -> &'a Family {
    families.iter().find(|family| family.metric == metric).unwrap()
}

fn number(families: &[Family], metric: &Metric) -> Value {
    family(families, metric).samples[0].value.clone()
}

/// Samples of every metric.
fn samples(families: &[Family]) -> BTreeMap<&'static str, usize> {
    families.iter().map(|family| (family.metric.name, family.samples.len())).collect()
}

/// Calls of every process that has series, by the label `pid`.
fn calls(families: &[Family]) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for sample in &family(families, &CUDA_CALL_DURATION).samples {
        let Value::Histogram(durations) = &sample.value else { continue };
        *calls.entry(sample.labels[0].as_str()).or_default() += durations.count();
    }
    calls
}

#[test]
fn of_ten_thousand_processes_only_so_many_have_series_and_no_call_is_lost() {
    let limit = Config::default().limits.live_processes;
    let beyond = u64::from(MANY) - limit as u64;
    let processes = crowd::processes(MANY, OPS);
    let made = processes.iter().flat_map(|process| &process.calls);
    let made: u64 = made.map(|call| call.durations.count()).sum();
    let mut cardinality = CardinalityLimit::default();
    cardinality.set_limit(limit);
    let first = page(&mut cardinality, processes);
    assert_eq!(number(&first, &PROCESSES_OBSERVED), Value::Integer(MANY.into()));
    assert_eq!(number(&first, &PROCESSES_FOLDED), Value::Integer(beyond));
    let of = calls(&first);
    assert_eq!(of.len(), limit + 1, "the processes tracked individually, and `other`");
    assert_eq!(of.values().sum::<u64>(), made);
    assert!(of["other"] > 0);
}

#[test]
fn the_page_of_ten_thousand_processes_has_as_many_series_as_that_of_one_more_than_the_limit() {
    let limit = u32::try_from(Config::default().limits.live_processes).unwrap();
    let of = |count| {
        let mut cardinality = CardinalityLimit::default();
        cardinality.set_limit(limit as usize);
        samples(&page(&mut cardinality, crowd::processes(count, OPS)))
    };
    assert_eq!(of(MANY), of(limit + 1));
}
