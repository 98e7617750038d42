//! How long it takes to hand the GPU its work: all launches of a process in one distribution, which is what rules judge tails
//! on. Summed up here, a fleet's rules need not add up every operation of every process, bucket by bucket.

use super::{Input, Series};
use crate::family::{Family, Value};
use crate::metric::LAUNCH_DURATION;
use gpucause_abi::hist::Histogram;
use gpucause_abi::op::{Api, Class, Op};

/// Launches of graphs take as long as the graphs are large: they are told apart from those of single kernels.
const KINDS: [(&str, Class); 2] = [("kernel", Class::Launch), ("graph", Class::Graph)];

pub(super) fn durations(input: &Input<'_>) -> Family {
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

/// Those of one layer alone. Cold calls count for which layer that is: a program's first launch decides it, before any warm
/// one of the driver's can have been told.
fn warm_launches(series: &Series<'_>, class: Class) -> Histogram {
    let launches = || {
        let calls = series.process.calls.iter();
        let known = calls.filter_map(|call| call.op.op().map(|op| (op, call)));
        known.filter(|(op, _)| op.class == class && hands_over_work(op))
    };
    let has_runtime = launches().any(|(op, _)| op.api == Api::Runtime);
    let mut all = Histogram::default();
    for (op, call) in launches() {
        if !call.cold && (op.api == Api::Runtime) == has_runtime {
            all.merge(&call.durations);
        }
    }
    all
}

/// A function that the host runs in its turn is none of the GPU's work.
fn hands_over_work(op: &Op) -> bool {
    op.feeds_gpu() && !op.name.ends_with("LaunchHostFunc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::collector::series::group;
    use crate::observation::Observation;
    use gpucause_abi::hist::slot_of;
    use gpucause_abi::op::{OPS, OpId, op_of_symbol};
    use gpucause_abi::record::COMM_LEN;
    use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
    use gpucause_abi::{Nanos, ProcId, Tgid};
    use std::time::Duration;

    fn call(op: OpId, cold: bool, calls: u64) -> CallSnapshot {
        let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
        let sum = Nanos(calls * 10_000);
        let durations = Histogram { sum, max: Nanos(10_000), slots: vec![(slot, calls)].into() };
        CallSnapshot::unstalled(op, cold, durations)
    }

    /// What is told of a process that made these calls: by kind, how many.
    fn told_of(calls: Vec<CallSnapshot>) -> Vec<(String, u64)> {
        let process = ProcessSnapshot {
            calls,
            ..ProcessSnapshot::new(ProcId(1), Tgid(1), Comm([b'a'; COMM_LEN]))
        };
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let clock = WallClock::with_origin(Duration::from_secs(1_000));
        let observation = Observation::new(snapshot, Nanos(0), clock);
        let input = Input { observation: &observation, series: group(&observation) };
        let count = |value: &Value| match value {
            Value::Histogram(histogram) => histogram.count(),
            other => panic!("{other:?} is no histogram"),
        };
        let told = durations(&input).samples;
        told.iter().map(|told| (told.labels[2].as_str().to_owned(), count(&told.value))).collect()
    }

    fn told_of_ops(calls: &[(&str, bool, u64)]) -> Vec<(String, u64)> {
        let of = |&(name, cold, calls): &(&str, bool, u64)| {
            call(op_of_symbol(name).unwrap(), cold, calls)
        };
        told_of(calls.iter().map(of).collect())
    }

    fn kinds(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|&(kind, count)| (kind.to_owned(), count)).collect()
    }

    #[test]
    fn warm_launches_of_all_operations_are_together_and_graphs_apart() {
        let told = told_of_ops(&[
            ("cudaLaunchKernel", false, 5),
            ("cudaLaunchKernel", true, 100),
            ("cudaLaunchKernelExC", false, 2),
            ("cudaGraphLaunch", false, 1),
            ("cudaMemcpyAsync", false, 100),
            ("cudaLaunchHostFunc", false, 100),
            ("cudaGraphInstantiate", false, 100),
        ]);
        assert_eq!(told, kinds(&[("kernel", 7), ("graph", 1)]));
    }

    #[test]
    fn what_the_driver_does_for_the_runtime_is_not_told_again() {
        let told = told_of_ops(&[("cudaLaunchKernel", false, 5), ("cuLaunchKernel", false, 5)]);
        assert_eq!(told, kinds(&[("kernel", 5)]));
    }

    #[test]
    fn a_process_that_is_seen_at_the_driver_alone_has_the_drivers_launches() {
        let told = told_of_ops(&[("cuLaunchKernel", false, 5), ("cuGraphLaunch", false, 2)]);
        assert_eq!(told, kinds(&[("kernel", 5), ("graph", 2)]));
    }

    #[test]
    fn the_first_launch_decides_the_layer_though_it_is_cold() {
        let told = told_of_ops(&[("cudaLaunchKernel", true, 1), ("cuLaunchKernel", false, 1)]);
        assert_eq!(told, kinds(&[]));
    }

    #[test]
    fn every_operation_that_launches_kernels_or_graphs_counts_and_no_other() {
        for (id, op) in OpId::all().zip(OPS) {
            let launches = op.name.contains("Launch") && !op.name.ends_with("LaunchHostFunc");
            assert_eq!(!told_of(vec![call(id, false, 1)]).is_empty(), launches, "{}", op.name);
        }
    }
}
