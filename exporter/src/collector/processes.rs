//! Identity and number of the observed processes.

use gpucause_page::family::{Family, LabelValue, Value};
use gpucause_page::metric::{
    BLOCKED_ON, CUDA_CALL_DURATION, KERNEL_LAUNCHES, LABEL_OVERFLOW, PREEMPTED_BY,
    PROCESS_GPU_INFO, PROCESS_INFO, PROCESSES_EXCLUDED, PROCESSES_FOLDED, PROCESSES_OBSERVED,
};

use super::{CollectError, Collector, Families, Input, eager};

pub(super) struct Processes;

impl Collector for Processes {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let observation = input.observation;
        let mut info = Family::new(&PROCESS_INFO);
        let mut gpus = Family::new(&PROCESS_GPU_INFO);
        for series in &input.series {
            let details = observation.details.get(&series.process.id).cloned().unwrap_or_default();
            // The rank in the communicator is more reliable than that of the environment.
            let (rank, world_size): (LabelValue, LabelValue) = match series.process.rank {
                Some((rank, ranks)) => (rank.to_string().into(), ranks.to_string().into()),
                None => ((&details.rank).into(), (&details.world_size).into()),
            };
            info.push(
                [
                    (&series.pid).into(),
                    (&series.comm).into(),
                    (&details.ns_pid).into(),
                    (&details.exe).into(),
                    (&details.container_id).into(),
                    (&details.cgroup).into(),
                    (&details.pod).into(),
                    (&details.pod_uid).into(),
                    (&details.namespace).into(),
                    (&details.slurm_job).into(),
                    (&details.user).into(),
                    rank,
                    (&details.local_rank).into(),
                    world_size,
                ],
                Value::Integer(1),
            );
            let uuids = observation.gpu_uuids.get(&series.process.id);
            let uuids = uuids.into_iter().flat_map(|uuids| uuids.split(','));
            for uuid in uuids.filter(|uuid| !uuid.is_empty()) {
                let labels = [(&series.pid).into(), (&series.comm).into(), uuid.to_owned().into()];
                gpus.push(labels, Value::Integer(1));
            }
        }
        let since = Some(observation.clock.unix_seconds(observation.since));
        let (preempted, blocked) = observation.wait_names_aggregated;
        let mut overflow = Family::new(&LABEL_OVERFLOW);
        for (metric, count) in [
            (&CUDA_CALL_DURATION, observation.ops_aggregated),
            (&PREEMPTED_BY, preempted),
            (&BLOCKED_ON, blocked),
            (&KERNEL_LAUNCHES, observation.kernel_names_aggregated),
        ] {
            overflow.push_created([metric.query_name().into()], Value::Integer(count), since);
        }
        Ok(eager([
            info,
            gpus,
            overflow,
            Family::single(&PROCESSES_OBSERVED, Value::Integer(observation.processes_live), None),
            Family::single(
                &PROCESSES_FOLDED,
                Value::Integer(observation.processes_aggregated),
                since,
            ),
            Family::single(
                &PROCESSES_EXCLUDED,
                Value::Integer(observation.processes_excluded),
                None,
            ),
        ]))
    }
}
