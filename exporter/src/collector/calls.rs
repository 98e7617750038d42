//! Traced calls: durations, off-CPU time, and errors, which alerts need.

use gpucause_page::error_name::error_name;
use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{
    CALLS_ABANDONED, CUDA_CALL_DURATION, CUDA_CALL_ERRORS, CUDA_CALL_OFFCPU, CUDA_CALL_STALLED,
    Level, Metric,
};

use super::{CollectError, Collector, Families, Input, Series, eager};
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::StallSnapshot;
use gpucause_abi::state::Reason;
use std::collections::{BTreeMap, BTreeSet, HashSet};

pub(super) struct Calls;

/// Apart from the calls, which are most of a page.
pub(super) struct Errors;

impl Collector for Errors {
    fn name(&self) -> &'static str {
        "errors"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut family = Family::new(&CUDA_CALL_ERRORS);
        input.series.iter().for_each(|series| add_errors(&mut family, series));
        Ok(eager([family]))
    }
}

impl Collector for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let level = input.level;
        let of_level = FAMILIES.iter().filter(move |(metric, _)| metric.level <= level);
        let of_ops = of_level.map(move |(metric, add)| {
            let mut family = Family::new(metric);
            let none = HashSet::new();
            for series in &input.series {
                let others = input.observation.aggregated_ops.get(&series.process.id);
                add(&mut family, series, &Ops { others: others.map_or(&none, |own| own), level });
            }
            family
        });
        Ok(Box::new(of_ops))
    }
}

/// The operations that have series.
struct Ops<'a> {
    /// Operations that are part of `other`.
    others: &'a HashSet<OpId>,
    level: Level,
}

/// Adds the samples of a process.
type Add = fn(&mut Family, &Series<'_>, &Ops<'_>);

/// The families of calls. They are most of a page, so they are produced lazily.
const FAMILIES: [(&Metric, Add); 4] = [
    (&CUDA_CALL_DURATION, add_durations),
    (&CUDA_CALL_STALLED, add_stalled),
    (&CUDA_CALL_OFFCPU, add_offcpu),
    (&CALLS_ABANDONED, add_abandoned),
];

/// The labels `api` and `op`, in the order of the page.
type Name = (OpId, &'static str, &'static str);

/// The name of operations beyond the limit of their process.
const OTHER: &str = "other";

impl Ops<'_> {
    fn name(&self, id: OpId) -> Option<Name> {
        let op = id.op()?;
        if self.others.contains(&id) {
            return Some((OpId(u16::MAX), op.api.label(), OTHER));
        }
        Some((id, op.api.label(), op.name))
    }
}

/// When a series began. `other` has no beginning: what an operation did under its own name becomes part of it.
fn created(series: &Series<'_>, name: Name) -> Option<f64> {
    series.created.filter(|_| name.2 != OTHER)
}

/// The first labels of every series of an op.
fn op_labels(series: &Series<'_>, (_, api, op): Name) -> [LabelValue; 4] {
    [(&series.pid).into(), (&series.comm).into(), api.into(), op.into()]
}

fn with(labels: [LabelValue; 4], last: LabelValue) -> [LabelValue; 5] {
    let [pid, comm, api, op] = labels;
    [pid, comm, api, op, last]
}

/// Below the full level, an op that the process itself never called has none: it is part of the calls of other layers.
fn add_durations(family: &mut Family, series: &Series<'_>, ops: &Ops<'_>) {
    let own: BTreeSet<OpId> =
        series.process.calls.iter().filter(|call| !call.nested).map(|call| call.op).collect();
    let mut others: BTreeMap<(Name, bool), Histogram> = BTreeMap::new();
    let mut push = |name: Name, cold: bool, durations: Histogram| {
        let cold = if cold { "true" } else { "false" };
        let labels = with(op_labels(series, name), cold.into());
        family.push_created(labels, Value::Histogram(durations), created(series, name));
    };
    for (id, cold, durations) in series.process.calls_by_op() {
        let Some(name) = ops.name(id) else { continue };
        if ops.level < Level::Full && !own.contains(&id) {
            continue;
        }
        if name.2 == OTHER {
            others.entry((name, cold)).or_default().merge(&durations);
        } else {
            push(name, cold, durations);
        }
    }
    for ((name, cold), durations) in others {
        push(name, cold, durations);
    }
}

fn add_errors(family: &mut Family, series: &Series<'_>) {
    // Several codes may share the label "other".
    let mut counts: BTreeMap<OpId, Vec<(LabelValue, u64)>> = BTreeMap::new();
    for &(id, code, count) in &series.process.errors {
        let Some(op) = id.op() else { continue };
        let error = error_name(op.api, code);
        let of_op = counts.entry(id).or_default();
        match of_op.iter_mut().find(|(known, _)| *known == error) {
            Some((_, total)) => *total += count,
            None => of_op.push((error, count)),
        }
    }
    for (id, errors) in counts {
        let Some(op) = id.op() else { continue };
        for (error, count) in errors {
            family.push_created(
                with(op_labels(series, (id, op.api.label(), op.name)), error),
                Value::Integer(count),
                series.created,
            );
        }
    }
}

/// Ops that were called or have stalled, with their stalls.
fn stalls<'s>(series: &'s Series<'_>, ops: &Ops<'_>) -> BTreeMap<Name, Vec<&'s StallSnapshot>> {
    let process = &series.process;
    let mut stalls: BTreeMap<Name, Vec<&StallSnapshot>> = BTreeMap::new();
    for name in process.calls.iter().filter_map(|call| ops.name(call.op)) {
        stalls.entry(name).or_default();
    }
    for stall in &process.stalls {
        if let Some(name) = ops.name(stall.op) {
            stalls.entry(name).or_default().push(stall);
        }
    }
    stalls
}

/// Every op that was called has a series, if only at zero: the ratio to its calls then always exists.
fn add_stalled(family: &mut Family, series: &Series<'_>, ops: &Ops<'_>) {
    for (name, stalls) in stalls(series, ops) {
        let calls = stalls.iter().map(|stall| stall.calls).sum();
        family.push_created(op_labels(series, name), Value::Integer(calls), created(series, name));
    }
}

fn add_offcpu(family: &mut Family, series: &Series<'_>, ops: &Ops<'_>) {
    for (name, stalls) in stalls(series, ops) {
        for &reason in Reason::ALL {
            let time = Nanos(stalls.iter().map(|stall| stall.offcpu[reason as usize].0).sum());
            if time.0 > 0 {
                let labels = with(op_labels(series, name), reason.label().into());
                family.push_created(labels, Value::Seconds(time), created(series, name));
            }
        }
    }
}

fn add_abandoned(family: &mut Family, series: &Series<'_>, _: &Ops<'_>) {
    family.push_created(
        [(&series.pid).into(), (&series.comm).into()],
        Value::Integer(series.process.measures.abandoned_calls),
        series.created,
    );
}

#[cfg(test)]
mod tests {
    use gpucause_observe::clock::WallClock;
    use gpucause_observe::observation::Observation;

    use super::*;
    use gpucause_abi::hist::slot_of;
    use gpucause_abi::op::op_of_symbol;
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
    use gpucause_abi::{ProcId, Tgid};
    use std::sync::Arc;
    use std::time::Duration;

    /// Calls of each operation, with the beginning of their series.
    fn durations(observation: &Observation, level: Level) -> Vec<(String, u64, bool)> {
        let input = Input::of(observation.into(), level);
        let family = Calls.collect(&input).unwrap().next().unwrap();
        let count = |value: &Value| match value {
            Value::Histogram(histogram) => histogram.count(),
            other => panic!("{other:?} is no histogram"),
        };
        let samples = family.samples.iter();
        let row = |own: &gpucause_page::family::Sample| {
            (own.labels[3].as_str().to_owned(), count(&own.value), own.created.is_some())
        };
        samples.map(row).collect()
    }

    #[test]
    fn other_has_no_beginning_and_below_full_no_operation_that_a_process_never_called() {
        let op = |name| op_of_symbol(name).unwrap();
        let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
        let durations_of = |calls| Histogram {
            sum: Nanos(calls * 10_000),
            max: Nanos(10_000),
            slots: vec![(slot, calls)].into(),
        };
        let call = |name, nested, calls| CallSnapshot {
            nested,
            ..CallSnapshot::unstalled(op(name), false, durations_of(calls))
        };
        let calls = vec![
            call("cudaLaunchKernel", false, 1),
            call("cudaMalloc", false, 2),
            call("cudaFree", true, 4),
        ];
        let process = ProcessSnapshot {
            calls,
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'a'; COMM_LEN]))
        };
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let mut observation = Observation::new(snapshot, Nanos(0), clock);
        let others = HashSet::from([op("cudaMalloc"), op("cudaFree")]);
        observation.aggregated_ops.insert(ProcId(1), Arc::new(others));
        let expected =
            |other| [("cudaLaunchKernel".to_owned(), 1, true), ("other".to_owned(), other, false)];
        assert_eq!(durations(&observation, Level::Standard), expected(2));
        assert_eq!(durations(&observation, Level::Full), expected(2 + 4));
    }
}
