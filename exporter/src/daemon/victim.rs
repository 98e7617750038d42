//! The process of a chain's victim, as log records name it.

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_engine::chain::Victim;
use gpucause_observe::observation::Observation;

use crate::otlp::Process;

/// Returns the rank and the details of a victim's process.
pub(super) fn victim_process(
    victim: &Victim,
    snapshot: &Snapshot,
    observation: &Observation,
) -> Option<Process> {
    let is_victim = |process: &&ProcessSnapshot| {
        process.tgid.0 == victim.pid
            && victim.started.is_none_or(|at| process.started_boottime.as_secs_f64() == at)
    };
    // The last image of a process that executed another program.
    let process = snapshot.processes.iter().rfind(is_victim)?;
    let details = observation.details.get(&process.id);
    let mut details = details.map(|details| details.named()).unwrap_or_default();
    if let Some(gpus) = observation.gpu_uuids.get(&process.id) {
        details.push(("gpu_uuids".to_owned(), gpus.to_string()));
    }
    Some(Process { rank: process.rank.map(|(rank, _)| rank), details })
}
