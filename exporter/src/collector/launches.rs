//! Durations and counts of the outermost launches of a process, over all ops and layers. Rules evaluate tails on this sum, and
//! need not add up every op of a fleet's processes bucket by bucket.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{
    CALL_SAMPLING, CALLS_OBSERVED, CALLS_UNOBSERVED, CALLS_UNTIMED, LAUNCH_DURATION, LAUNCH_RATE,
    LAUNCH_RATE_ERROR, LAUNCH_SAMPLING, LAUNCHES, LAUNCHES_TIMED,
};

use super::{CollectError, Collector, Families, Input, Series, eager};
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::Class;

/// Launches of graphs take time in proportion to their size: they have a series of their own.
const KINDS: [(&str, Class); 2] = [("kernel", Class::Launch), ("graph", Class::Graph)];

pub(super) struct Launches;

impl Collector for Launches {
    fn name(&self) -> &'static str {
        "launches"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut families = vec![durations(input)];
        families.extend(counts(input));
        families.extend(observed(input));
        families.extend(rates(input));
        families.extend(sampled(input));
        Ok(eager(families))
    }
}

fn durations(input: &Input<'_>) -> Family {
    let mut family = Family::new(&LAUNCH_DURATION);
    for series in &input.series {
        for (kind, class) in KINDS {
            let all = warm_launches(series, class);
            if all.count() > 0 {
                let labels = [(&series.pid).into(), (&series.comm).into(), kind.into()];
                family.push_created(labels, Value::Histogram(all), series.created);
            }
        }
    }
    family
}

/// Launches, timed launches and the sampling step; no series for a process without launches.
fn counts(input: &Input<'_>) -> [Family; 3] {
    let mut all = Family::new(&LAUNCHES);
    let mut timed = Family::new(&LAUNCHES_TIMED);
    let mut sampling = Family::new(&LAUNCH_SAMPLING);
    for series in &input.series {
        let process = &series.process;
        let launches = process.launches();
        if launches == 0 {
            continue;
        }
        let labels = || [(&series.pid).into(), (&series.comm).into()];
        all.push_created(labels(), Value::Integer(launches), series.created);
        timed.push_created(labels(), Value::Integer(process.timed_launches()), series.created);
        let [pid, comm] = labels();
        let step = process.launches.step;
        sampling.push([pid, comm, step.label().into()], Value::Float(step.timed_share()));
    }
    [all, timed, sampling]
}

/// For how long calls were counted, and for how long not; no series for a process without launches.
fn observed(input: &Input<'_>) -> [Family; 2] {
    let mut observed = Family::new(&CALLS_OBSERVED);
    let mut unobserved = Family::new(&CALLS_UNOBSERVED);
    for series in input.series.iter().filter(|series| series.process.launches() > 0) {
        let launches = &series.process.launches;
        let labels = || [(&series.pid).into(), (&series.comm).into()];
        observed.push_created(labels(), Value::Seconds(launches.observed), series.created);
        unobserved.push_created(labels(), Value::Seconds(launches.unobserved), series.created);
    }
    [observed, unobserved]
}

/// The rate of partly observed processes, where it is known.
fn rates(input: &Input<'_>) -> [Family; 2] {
    let (mut rates, mut errors) = (Family::new(&LAUNCH_RATE), Family::new(&LAUNCH_RATE_ERROR));
    for series in &input.series {
        if let Some(rate) = series.process.launches.rate {
            let labels = || [(&series.pid).into(), (&series.comm).into()];
            rates.push(labels(), Value::Float(rate.per_second));
            errors.push(labels(), Value::Float(rate.error));
        }
    }
    [rates, errors]
}

/// Classes of calls that are timed less, and the calls that were not.
fn sampled(input: &Input<'_>) -> [Family; 2] {
    let mut sampling = Family::new(&CALL_SAMPLING);
    let mut untimed = Family::new(&CALLS_UNTIMED);
    for series in &input.series {
        let launches = &series.process.launches;
        let queries = if launches.without_queries { 0.0 } else { 1.0 };
        let asyncs = launches.step.observed_share() / f64::from(launches.async_one_in.max(1));
        if launches.without_queries || launches.async_one_in > 1 {
            for (class, share) in [("query", queries), ("async", asyncs)] {
                let labels = [(&series.pid).into(), (&series.comm).into(), class.into()];
                sampling.push(labels, Value::Float(share));
            }
        }
        for &(id, calls) in &series.process.untimed_calls {
            let Some(op) = id.op() else { continue };
            let [pid, comm] = [(&series.pid).into(), (&series.comm).into()];
            let labels = [pid, comm, op.api.label().into(), op.name.into()];
            untimed.push_created(labels, Value::Integer(calls), series.created);
        }
    }
    [sampling, untimed]
}

fn warm_launches(series: &Series<'_>, class: Class) -> Histogram {
    let mut all = Histogram::default();
    for call in series.process.calls.iter().filter(|call| call.is_launch() && !call.cold) {
        if call.op.op().is_some_and(|op| op.class == class) {
            all.merge(&call.durations);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gpucause_observe::clock::WallClock;
    use gpucause_observe::observation::Observation;
    use gpucause_page::metric::Level;

    use super::*;
    use gpucause_abi::hist::slot_of;
    use gpucause_abi::op::{OPS, OpId, op_of_symbol};
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{
        CallSnapshot, Comm, LaunchSampling, LaunchStep, ProcessSnapshot, Snapshot,
    };
    use gpucause_abi::{Nanos, ProcId, Tgid};
    use std::time::Duration;

    fn call(op: OpId, cold: bool, calls: u64) -> CallSnapshot {
        let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
        let sum = Nanos(calls * 10_000);
        let durations = Histogram { sum, max: Nanos(10_000), slots: vec![(slot, calls)].into() };
        CallSnapshot::unstalled(op, cold, durations)
    }

    /// Launches by kind of a process that made these calls.
    fn launches_of(calls: Vec<CallSnapshot>) -> Vec<(String, u64)> {
        let process = ProcessSnapshot {
            calls,
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'a'; COMM_LEN]))
        };
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let observation = Observation::new(snapshot, Nanos(0), clock);
        let input = Input::of((&observation).into(), Level::Full);
        let count = |value: &Value| match value {
            Value::Histogram(histogram) => histogram.count(),
            other => panic!("{other:?} is no histogram"),
        };
        let exported = durations(&input).samples;
        exported.iter().map(|own| (own.labels[2].as_str().to_owned(), count(&own.value))).collect()
    }

    fn launches_of_ops(calls: &[(&str, bool, u64)]) -> Vec<(String, u64)> {
        let of = |&(name, cold, calls): &(&str, bool, u64)| {
            call(op_of_symbol(name).unwrap(), cold, calls)
        };
        launches_of(calls.iter().map(of).collect())
    }

    fn kinds(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|&(kind, count)| (kind.to_owned(), count)).collect()
    }

    #[test]
    fn warm_launches_of_all_operations_are_together_and_graphs_apart() {
        let exported = launches_of_ops(&[
            ("cudaLaunchKernel", false, 5),
            ("cudaLaunchKernel", true, 100),
            ("cudaLaunchKernelExC", false, 2),
            ("cudaGraphLaunch", false, 1),
            ("cudaMemcpyAsync", false, 100),
            ("cudaLaunchHostFunc", false, 100),
            ("cudaGraphInstantiate", false, 100),
        ]);
        assert_eq!(exported, kinds(&[("kernel", 7), ("graph", 1)]));
    }

    #[test]
    fn launches_of_all_layers_are_together_and_those_within_a_launch_are_part_of_it() {
        let of =
            |name, nested| CallSnapshot { nested, ..call(op_of_symbol(name).unwrap(), false, 5) };
        let exported = launches_of(vec![
            of("cudaLaunchKernel", false),
            of("cuLaunchKernel", true),
            of("cuLaunchKernelEx", false),
            of("cuGraphLaunch", true),
        ]);
        assert_eq!(exported, kinds(&[("kernel", 10)]));
    }

    #[test]
    fn launches_that_were_not_timed_are_counted() {
        let launches = LaunchSampling {
            step: LaunchStep::Sampled { one_in: 64 },
            untimed: 63,
            ..LaunchSampling::default()
        };
        let process = ProcessSnapshot {
            calls: vec![call(op_of_symbol("cuLaunchKernel").unwrap(), true, 1)],
            launches,
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'a'; COMM_LEN]))
        };
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let observation = Observation::new(snapshot, Nanos(0), clock);
        let [all, timed, sampling] = counts(&Input::of((&observation).into(), Level::Full));
        assert_eq!(all.samples[0].value, Value::Integer(64));
        assert_eq!(timed.samples[0].value, Value::Integer(1));
        assert_eq!(sampling.samples[0].value, Value::Float(1.0 / 64.0));
        assert_eq!(sampling.samples[0].labels[2].as_str(), "sampled");
    }

    #[test]
    fn every_operation_that_launches_kernels_or_graphs_counts_and_no_other() {
        for (id, op) in OpId::all().zip(OPS) {
            let launches = op.name.contains("Launch") && !op.name.ends_with("LaunchHostFunc");
            assert_eq!(!launches_of(vec![call(id, false, 1)]).is_empty(), launches, "{}", op.name);
        }
    }
}
