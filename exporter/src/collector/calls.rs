//! Traced calls: durations, off-CPU time, and errors, which alerts need.

use super::{CollectError, Collector, Families, Input, Series, eager};
use crate::error_name::error_name;
use crate::family::{Family, LabelValue, Value};
use crate::metric::{
    CALLS_ABANDONED, CUDA_CALL_DURATION, CUDA_CALL_ERRORS, CUDA_CALL_OFFCPU, CUDA_CALL_STALLED,
    Level, Metric,
};
use gpucause_abi::Nanos;
use gpucause_abi::op::{Op, OpId};
use gpucause_abi::snapshot::StallSnapshot;
use gpucause_abi::state::Reason;
use std::collections::{BTreeMap, BTreeSet};

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
            input.series.iter().for_each(|series| add(&mut family, series, level));
            family
        });
        Ok(Box::new(of_ops))
    }
}

/// Adds the samples of a process.
type Add = fn(&mut Family, &Series<'_>, Level);

/// The families of calls. They are most of a page, so they are produced lazily.
const FAMILIES: [(&Metric, Add); 4] = [
    (&CUDA_CALL_DURATION, add_durations),
    (&CUDA_CALL_STALLED, add_stalled),
    (&CUDA_CALL_OFFCPU, add_offcpu),
    (&CALLS_ABANDONED, add_abandoned),
];

/// The first labels of every series of an op.
fn op_labels(series: &Series<'_>, op: &'static Op) -> [LabelValue; 4] {
    [(&series.pid).into(), (&series.comm).into(), op.api.label().into(), op.name.into()]
}

fn with(labels: [LabelValue; 4], last: LabelValue) -> [LabelValue; 5] {
    let [pid, comm, api, op] = labels;
    [pid, comm, api, op, last]
}

/// Below the full level, an op that the process itself never called has none: it is part of the calls of other layers.
fn add_durations(family: &mut Family, series: &Series<'_>, level: Level) {
    let own: BTreeSet<OpId> =
        series.process.calls.iter().filter(|call| !call.nested).map(|call| call.op).collect();
    for (id, cold, durations) in series.process.calls_by_op() {
        let Some(op) = id.op().filter(|_| level == Level::Full || own.contains(&id)) else {
            continue;
        };
        let cold = if cold { "true" } else { "false" };
        family.push_created(
            with(op_labels(series, op), cold.into()),
            Value::Histogram(durations),
            series.created,
        );
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
                with(op_labels(series, op), error),
                Value::Integer(count),
                series.created,
            );
        }
    }
}

/// Ops that were called or have stalled, with their stalls.
fn stalls<'s>(
    series: &'s Series<'_>,
) -> impl Iterator<Item = (&'static Op, impl Iterator<Item = &'s StallSnapshot> + Clone)> {
    let process = &series.process;
    let called = process.calls.iter().map(|call| call.op);
    let stalled = process.stalls.iter().map(|stall| stall.op);
    let ids: BTreeSet<_> = called.chain(stalled).collect();
    ids.into_iter().filter_map(|id| {
        Some((id.op()?, process.stalls.iter().filter(move |stall| stall.op == id)))
    })
}

/// Every op that was called has a series, if only at zero: the ratio to its calls then always exists.
fn add_stalled(family: &mut Family, series: &Series<'_>, _: Level) {
    for (op, stalls) in stalls(series) {
        let calls = stalls.map(|stall| stall.calls).sum();
        family.push_created(op_labels(series, op), Value::Integer(calls), series.created);
    }
}

fn add_offcpu(family: &mut Family, series: &Series<'_>, _: Level) {
    for (op, stalls) in stalls(series) {
        for &reason in Reason::ALL {
            let time = Nanos(stalls.clone().map(|stall| stall.offcpu[reason as usize].0).sum());
            if time.0 > 0 {
                family.push_created(
                    with(op_labels(series, op), reason.label().into()),
                    Value::Seconds(time),
                    series.created,
                );
            }
        }
    }
}

fn add_abandoned(family: &mut Family, series: &Series<'_>, _: Level) {
    family.push_created(
        [(&series.pid).into(), (&series.comm).into()],
        Value::Integer(series.process.measures.abandoned_calls),
        series.created,
    );
}
