//! Use of the host's disks, memory, network and CPU quota by observed processes.

use gpucause_observe::observation::Observation;
use gpucause_observe::series::grouping::Series;
use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{
    ALL, BLOCK_IO_BYTES, BLOCK_IO_REQUESTS, BLOCK_IO_TIME, CGROUP_THROTTLED_PERIODS,
    CGROUP_THROTTLED_TIME, Metric, PAGE_FAULTS, Unit,
};

use super::{CollectError, Collector, Families, Input, eager};
use gpucause_abi::Nanos;
use gpucause_abi::measure::MEASURES;
use gpucause_abi::state::Fault;

pub(super) struct Host;

impl Collector for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut families: Vec<Family> = block_io(&input.series).into();
        families.push(page_faults(&input.series));
        families.extend(ALL.iter().filter_map(|metric| measured(metric, input)));
        families.extend(throttled(input));
        Ok(eager(families))
    }
}

fn labels(series: &Series<'_>) -> [LabelValue; 2] {
    [(&series.pid).into(), (&series.comm).into()]
}

/// The family of a metric that host-wide programs count: while one of them does not run, without samples rather than zero.
fn measured(metric: &'static Metric, input: &Input<'_>) -> Option<Family> {
    let index = metric.measure?;
    let programs = MEASURES.get(index)?.programs;
    if programs.is_empty() {
        return None;
    }
    let mut family = Family::new(metric);
    let is_counted = !programs.iter().any(|program| lacks(input.observation, program));
    for series in input.series.iter().filter(|_| is_counted) {
        let amount = series.process.measures.amounts().get(index).copied()?;
        let value = match metric.unit {
            Some(Unit::Seconds) => Value::Seconds(Nanos(amount)),
            Some(Unit::Bytes) | None => Value::Integer(amount),
        };
        family.push_created(labels(series), value, series.created);
    }
    Some(family)
}

/// Returns true if a kernel program is known to be missing.
fn lacks(observation: &Observation, program: &str) -> bool {
    let states = &observation.probes;
    states.iter().any(|state| state.probe == program && state.verdict != "attached")
}

fn block_io(all: &[Series<'_>]) -> [Family; 3] {
    let mut time = Family::new(&BLOCK_IO_TIME);
    let mut bytes = Family::new(&BLOCK_IO_BYTES);
    let mut requests = Family::new(&BLOCK_IO_REQUESTS);
    for series in all {
        for io in &series.process.host.block_io {
            let [pid, comm] = labels(series);
            let labels = [pid, comm, io.device.to_text().into(), io.operation.label().into()];
            time.push_created(labels.clone(), Value::Seconds(io.time), series.created);
            bytes.push_created(labels.clone(), Value::Integer(io.bytes), series.created);
            requests.push_created(labels, Value::Integer(io.requests), series.created);
        }
    }
    [time, bytes, requests]
}

/// Includes faults from before the observation, so the start time is unknown.
fn page_faults(all: &[Series<'_>]) -> Family {
    let mut family = Family::new(&PAGE_FAULTS);
    for series in all {
        for &kind in Fault::ALL {
            let Some(faults) = series.process.host.page_faults(kind) else { continue };
            let [pid, comm] = labels(series);
            family.push([pid, comm, kind.label().into()], Value::Integer(faults));
        }
    }
    family
}

fn throttled(input: &Input<'_>) -> [Family; 2] {
    let mut time = Family::new(&CGROUP_THROTTLED_TIME);
    let mut periods = Family::new(&CGROUP_THROTTLED_PERIODS);
    for series in &input.series {
        let Some(throttled) = input.observation.throttled.get(&series.process.id) else {
            continue;
        };
        time.push_created(labels(series), Value::Seconds(throttled.time), series.created);
        periods.push_created(labels(series), Value::Integer(throttled.periods), series.created);
    }
    [time, periods]
}

#[cfg(test)]
mod tests {
    use gpucause_observe::clock::WallClock;
    use gpucause_observe::observation::ProbeState;
    use gpucause_page::metric::{OOM_KILLS, PAGE_ALLOC_BYTES};

    use super::*;
    use crate::collector::Collectors;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{Comm, ProcessSnapshot, Snapshot};
    use gpucause_abi::{ProcId, Tgid};
    use std::time::Duration;

    #[test]
    fn what_no_program_counts_is_absent_rather_than_zero() {
        let process = ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([0; COMM_LEN]));
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let clock = WallClock::with_origin(Duration::ZERO);
        let mut observation = Observation::new(snapshot, Nanos(0), clock);
        let state = |program: &str, verdict| ProbeState {
            probe: program.to_owned(),
            library: String::new(),
            verdict,
        };
        observation.probes =
            vec![state("oom_victim", "unsupported"), state("page_alloc", "attached")];
        let families = Collectors::default().collect(&observation);
        let samples = |metric: &Metric| {
            families
                .iter()
                .find(|family| family.metric == metric)
                .map(|family| family.samples.len())
        };
        assert_eq!(samples(&OOM_KILLS), Some(0));
        assert_eq!(samples(&PAGE_ALLOC_BYTES), Some(1));
        assert_eq!((samples(&PAGE_FAULTS), samples(&CGROUP_THROTTLED_TIME)), (Some(0), Some(0)));
    }
}
