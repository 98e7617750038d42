//! Kernel programs and maps: their state, hits, cost and overflows.

use gpucause_observe::observation::Observation;
use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{
    EVENTS_DROPPED, LIBRARY_ATTACH_GAP, MAP_CAPACITY, MAP_ENTRIES, MAP_FULL, OBSERVATION_STATE,
    OBSERVATION_STATE_CHANGED, OBSERVATION_TIMED, PROBE_COST, PROBE_DUTY, PROBE_HIT_COST,
    PROBE_HITS, PROBE_STATUS,
};

use super::{CollectError, Collector, Families, Input, eager};
use gpucause_abi::Nanos;
use gpucause_abi::record::SelfCounter;
use gpucause_engine::observation::State;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Probes;

impl Collector for Probes {
    fn name(&self) -> &'static str {
        "probes"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let observation = input.observation;
        let since = Some(observation.clock.unix_seconds(observation.since));
        let mut families = Vec::from(observation_state(observation));
        families.push(probe_status(observation));
        families.extend(counters(observation, since));
        families.extend(cost(observation, since));
        families.extend(maps(observation, since));
        families.push(attach_gaps(observation));
        Ok(eager(families))
    }
}

fn observation_state(observation: &Observation) -> [Family; 3] {
    let current = &observation.state.current;
    let mut states = Family::new(&OBSERVATION_STATE);
    for state in State::ALL {
        states.push([state.label().into()], Value::Integer((state == current.state).into()));
    }
    let mut timed = Family::new(&OBSERVATION_TIMED);
    if let Some(share) = current.timed_share {
        timed.push([], Value::Float(share));
    }
    let changed = Family::single(&OBSERVATION_STATE_CHANGED, Value::Float(current.since), None);
    [states, changed, timed]
}

fn probe_status(observation: &Observation) -> Family {
    let mut status = Family::new(&PROBE_STATUS);
    for state in observation.probes.iter().collect::<BTreeSet<_>>() {
        status.push(
            [state.probe.clone().into(), state.library.clone().into(), state.verdict.into()],
            Value::Integer(1),
        );
    }
    status
}

/// Hits of probes, and events that were dropped.
fn counters(observation: &Observation, since: Option<f64>) -> [Family; 2] {
    let mut hits = Family::new(&PROBE_HITS);
    let mut dropped = Family::new(&EVENTS_DROPPED);
    for &(counter, count) in &observation.snapshot.counters {
        let value = Value::Integer(count);
        let reason = match counter {
            SelfCounter::HitCall
            | SelfCounter::HitSwitch
            | SelfCounter::HitWaking
            | SelfCounter::HitLifecycle
            | SelfCounter::HitBlock
            | SelfCounter::HitMemory
            | SelfCounter::HitPageAlloc
            | SelfCounter::HitNetwork
            | SelfCounter::HitSample
            | SelfCounter::HitLock => {
                let label = counter.label();
                let probe = label.strip_prefix("hit_").unwrap_or(label);
                hits.push_created([LabelValue::Fixed(probe)], value, since);
                continue;
            }
            SelfCounter::Truncated => "truncated",
            SelfCounter::DuplicateHit => "duplicate_hit",
            SelfCounter::Unmatched => "unmatched_return",
            SelfCounter::TooDeep => "too_deep",
            SelfCounter::OtherStack => "other_stack",
            SelfCounter::NoRecord => "no_thread_record",
            SelfCounter::ClockUnderflow => "clock_underflow",
            SelfCounter::MissedSwitchIn => "missed_switch_in",
            // Exported elsewhere or not at all: cost beside hits, abandoned calls by process, refused updates by map.
            SelfCounter::Abandoned
            | SelfCounter::LeftAtEntry
            | SelfCounter::SingleStepped
            | SelfCounter::Lookups
            | SelfCounter::LookupNs
            | SelfCounter::CostCall
            | SelfCounter::CostSwitch
            | SelfCounter::CostWaking
            | SelfCounter::CostLifecycle
            | SelfCounter::CostBlock
            | SelfCounter::CostMemory
            | SelfCounter::CostPageAlloc
            | SelfCounter::CostNetwork
            | SelfCounter::CostSample
            | SelfCounter::CostLock
            | SelfCounter::FullHists
            | SelfCounter::FullProcs
            | SelfCounter::FullStalls
            | SelfCounter::FullErrors
            | SelfCounter::FullKernels
            | SelfCounter::FullKernelNames
            | SelfCounter::FullAccounts
            | SelfCounter::FullBlame
            | SelfCounter::FullBytes
            | SelfCounter::FullAllocations
            | SelfCounter::FullBlockIo
            | SelfCounter::FullBlockRequests
            | SelfCounter::FullSockets
            | SelfCounter::FullThreads
            | SelfCounter::FullSamples => continue,
        };
        dropped.push_created([reason.into()], value, since);
    }
    let lost = Value::Integer(observation.mmap_events_lost);
    dropped.push_created(["lost_mmap".into()], lost, since);
    [hits, dropped]
}

/// The cost of probes, and the share of time that the budget allows.
fn cost(observation: &Observation, since: Option<f64>) -> [Family; 3] {
    let mut cost = Family::new(&PROBE_COST);
    let mut of_hit = Family::new(&PROBE_HIT_COST);
    let costs = [
        ("call", observation.hit_cost),
        ("call_entry", observation.entry_cost),
        ("call_step", observation.step_cost),
    ];
    for (hit, each) in costs {
        if let Some(each) = each {
            of_hit.push([hit.into()], Value::Seconds(each));
        }
    }
    for &(counter, nanos) in &observation.snapshot.counters {
        if let Some(probe) = counter.label().strip_prefix("cost_") {
            let time = Value::Seconds(Nanos(nanos));
            cost.push_created([LabelValue::Fixed(probe)], time, since);
        }
    }
    let mut duty = Family::new(&PROBE_DUTY);
    duty.push([], Value::Float(observation.duty_ratio));
    [cost, of_hit, duty]
}

fn maps(observation: &Observation, since: Option<f64>) -> [Family; 3] {
    let mut entries = Family::new(&MAP_ENTRIES);
    let mut capacity = Family::new(&MAP_CAPACITY);
    let mut full = Family::new(&MAP_FULL);
    let counters = &observation.snapshot.counters;
    for usage in &observation.snapshot.maps {
        entries.push([usage.map.into()], Value::Integer(usage.entries));
        capacity.push([usage.map.into()], Value::Integer(usage.capacity));
        full.push_created([usage.map.into()], Value::Integer(usage.refused), since);
    }
    // Socket storage has no fixed size, but the kernel can refuse a record. The entries of the other maps are not counted at
    // each scrape.
    for (counter, map) in [
        (SelfCounter::FullThreads, "hashed_threads"),
        (SelfCounter::FullSamples, "samples"),
        (SelfCounter::FullSockets, "sockets"),
        (SelfCounter::FullAllocations, "allocations"),
        (SelfCounter::FullBlockRequests, "block_requests"),
    ] {
        for &(_, refused) in counters.iter().filter(|&&(known, _)| known == counter) {
            full.push_created([map.into()], Value::Integer(refused), since);
        }
    }
    [entries, capacity, full]
}

/// Libraries at one path in different mount namespaces share a label, with the longest gap.
fn attach_gaps(observation: &Observation) -> Family {
    let mut longest = BTreeMap::new();
    for gap in &observation.attach_gaps {
        let entry = longest.entry(&gap.library).or_insert(gap.gap);
        *entry = gap.gap.max(*entry);
    }
    let mut family = Family::new(&LIBRARY_ATTACH_GAP);
    for (library, gap) in longest {
        family.push([library.clone().into()], Value::Seconds(gap));
    }
    family
}

#[cfg(test)]
mod tests {
    use gpucause_observe::clock::WallClock;

    use super::*;
    use gpucause_abi::snapshot::Snapshot;
    use gpucause_engine::observation::Period;

    #[test]
    fn every_reason_of_a_dropped_event_is_explained() {
        let all = SelfCounter::ALL.iter().map(|&counter| (counter, 1)).collect();
        let snapshot = Snapshot { counters: all, ..Snapshot::default() };
        let observation = Observation::new(snapshot, Nanos(0), WallClock::now());
        let [_, dropped] = counters(&observation, None);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("METRICS.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, section) = page.split_once("\n## Dropped events\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let explained: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | ").map(|row| row.0))
            .filter(|&name| name != "reason")
            .collect();
        let reasons: Vec<&str> = dropped.samples.iter().map(|own| own.labels[0].as_str()).collect();
        assert_eq!(BTreeSet::from_iter(reasons.clone()), BTreeSet::from_iter(explained));
        assert_eq!(reasons.len(), 9);
    }

    #[test]
    fn one_observation_state_is_1_with_its_start_and_the_timed_share_where_known() {
        let mut observation = Observation::new(Snapshot::default(), Nanos(0), WallClock::now());
        observation.state = Period::disabled(1_700_000_000.5, "SIGUSR1").into();
        let exported = |observation: &Observation| {
            let [states, changed, timed] = observation_state(observation);
            let is_one =
                |sample: &&gpucause_page::family::Sample| sample.value == Value::Integer(1);
            let ones: Vec<_> = states.samples.iter().filter(is_one).collect();
            let [one] = &ones[..] else { panic!("{states:?}") };
            let value = |family: Family| family.samples.first().map(|own| own.value.clone());
            (one.labels[0].clone(), value(changed), value(timed))
        };
        let since = Some(Value::Float(1_700_000_000.5));
        let none = Some(Value::Float(0.0));
        assert_eq!(exported(&observation), ("disabled".into(), since.clone(), none));
        let current = &mut observation.state.current;
        (current.state, current.timed_share) = (State::Partial, None);
        assert_eq!(exported(&observation), ("partial".into(), since, None));
    }
}
