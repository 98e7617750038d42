//! Traced calls: how long they take, how they fail, and what keeps them from running.

use super::{CollectError, Collector, Input, Series, launches};
use crate::error_name::error_name;
use crate::family::{Family, LabelValue, Value};
use crate::metric::{
    CALLS_ABANDONED, CUDA_CALL_DURATION, CUDA_CALL_ERRORS, CUDA_CALL_OFFCPU, CUDA_CALL_STALLED,
};
use gpucause_abi::Nanos;
use gpucause_abi::op::{Op, OpId};
use gpucause_abi::state::Reason;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Calls;

impl Collector for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn collect(&self, input: &Input<'_>) -> Result<Vec<Family>, CollectError> {
        let mut families = Families {
            durations: Family::new(&CUDA_CALL_DURATION),
            errors: Family::new(&CUDA_CALL_ERRORS),
            stalled: Family::new(&CUDA_CALL_STALLED),
            offcpu: Family::new(&CUDA_CALL_OFFCPU),
            abandoned: Family::new(&CALLS_ABANDONED),
        };
        for series in &input.series {
            families.add_durations(series);
            families.add_errors(series);
            families.add_stalls(series);
            families.abandoned.push_created(
                [(&series.pid).into(), (&series.comm).into()],
                Value::Integer(series.process.abandoned_calls),
                series.created,
            );
        }
        let Families { durations, errors, stalled, offcpu, abandoned } = families;
        Ok(vec![durations, errors, stalled, offcpu, abandoned, launches::durations(input)])
    }
}

struct Families {
    durations: Family,
    errors: Family,
    stalled: Family,
    offcpu: Family,
    abandoned: Family,
}

/// The labels that every series of an op leads with.
fn op_labels(series: &Series<'_>, op: &'static Op) -> [LabelValue; 4] {
    [(&series.pid).into(), (&series.comm).into(), op.api.label().into(), op.name.into()]
}

fn with(labels: [LabelValue; 4], last: LabelValue) -> [LabelValue; 5] {
    let [pid, comm, api, op] = labels;
    [pid, comm, api, op, last]
}

impl Families {
    fn add_durations(&mut self, series: &Series<'_>) {
        for call in &series.process.calls {
            let Some(op) = call.op.op() else { continue };
            let cold = if call.cold { "true" } else { "false" };
            self.durations.push_created(
                with(op_labels(series, op), cold.into()),
                Value::Histogram(call.durations.clone()),
                series.created,
            );
        }
    }

    fn add_errors(&mut self, series: &Series<'_>) {
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
                self.errors.push_created(
                    with(op_labels(series, op), error),
                    Value::Integer(count),
                    series.created,
                );
            }
        }
    }

    /// Every op that was called has a `stalled` series, at zero if need be: a ratio to the calls then always exists.
    fn add_stalls(&mut self, series: &Series<'_>) {
        let process = &series.process;
        let called = process.calls.iter().map(|call| call.op);
        let stalled = process.stalls.iter().map(|stall| stall.op);
        for id in called.chain(stalled).collect::<BTreeSet<_>>() {
            let Some(op) = id.op() else { continue };
            let of_op = || process.stalls.iter().filter(|stall| stall.op == id);
            self.stalled.push_created(
                op_labels(series, op),
                Value::Integer(of_op().map(|stall| stall.calls).sum()),
                series.created,
            );
            let total =
                |reason: Reason| Nanos(of_op().map(|stall| stall.offcpu[reason as usize].0).sum());
            let times = Reason::ALL.iter().map(|&reason| (reason, total(reason)));
            for (reason, time) in times.filter(|(_, time)| time.0 > 0) {
                self.offcpu.push_created(
                    with(op_labels(series, op), reason.label().into()),
                    Value::Seconds(time),
                    series.created,
                );
            }
        }
    }
}
