//! All that is known of this host now, as a trace file without events.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_abi::ProcId;
use gpucause_engine::chain::Chain;
use gpucause_observe::chains::engine_input;
use gpucause_observe::observation::Observation;
use gpucause_trace::recording::OBSERVATION;
use gpucause_trace::trace::{Start, WriteError, Writer};

use crate::version::VERSION;

/// Probes that are listed when they are not attached.
const MAX_PROBES: usize = 20;
/// Detail of a process: the GPUs that it uses, joined by commas.
const GPU_UUIDS: &str = "gpu_uuids";

/// Returns the file, with these chains and names of kernels.
///
/// # Errors
/// When memory does not suffice.
pub fn node_snapshot(
    node: &str,
    observation: &Observation,
    chains: &[Chain],
    kernels: &[(ProcId, u64, Arc<str>)],
) -> Result<Vec<u8>, WriteError> {
    let input = engine_input(observation, HashMap::new());
    let mut writer = Writer::in_memory(&start(node, observation))?;
    let mut rows = HashMap::new();
    for process in &input.snapshot.processes {
        let row = writer.process(process.id, process.tgid, &process.comm.to_text())?;
        rows.insert(process.id, row);
        let known = observation.details.get(&process.id);
        let mut details = known.map(|details| details.named()).unwrap_or_default();
        if let Some(uuids) = observation.gpu_uuids.get(&process.id) {
            details.push((GPU_UUIDS.to_owned(), uuids.to_string()));
        }
        writer.describe_process(row, &details)?;
    }
    for (id, handle, name) in kernels {
        if let Some(&row) = rows.get(id) {
            writer.name_kernel(row, *handle, name)?;
        }
    }
    writer.add_snapshot(&input, chains)?;
    writer.into_bytes()
}

fn start(node: &str, observation: &Observation) -> Start {
    let state = serde_json::to_string(&observation.state).unwrap_or_default();
    let is_attached = |verdict: &str| verdict == "attached";
    let (attached, others): (Vec<_>, Vec<_>) =
        observation.probes.iter().partition(|probe| is_attached(probe.verdict));
    let others = others.iter().take(MAX_PROBES).map(|probe| {
        let library = Some(&*probe.library).filter(|library| !library.is_empty());
        let on = library.map(|library| format!(" on {library}")).unwrap_or_default();
        format!("{}{on}: {}", probe.probe, probe.verdict)
    });
    let maps = observation.snapshot.maps.iter().filter(|usage| usage.refused > 0);
    let maps = maps.map(|usage| format!("{}: {} times", usage.map, usage.refused));
    let counters = &observation.snapshot.counters;
    let sum = |prefix: &str| -> u64 {
        let own = counters.iter().filter(|(counter, _)| counter.label().starts_with(prefix));
        own.map(|(_, count)| count).sum()
    };
    let details = [
        (OBSERVATION, state),
        ("probes_attached", attached.len().to_string()),
        ("probes_not_attached", others.collect::<Vec<_>>().join(", ")),
        ("maps_that_were_full", maps.collect::<Vec<_>>().join(", ")),
        ("probe_duty_ratio", observation.duty_ratio.to_string()),
        ("probe_hits", sum("hit_").to_string()),
        ("probe_cost_ns", sum("cost_").to_string()),
    ];
    let details = details.into_iter().filter(|(_, value)| !value.is_empty());
    Start {
        node: node.to_owned(),
        recorder: format!("gpucause {VERSION}"),
        started_ns: observation.clock.unix_nanos(observation.since),
        details: details.map(|(name, value)| (name.to_owned(), value)).collect(),
        size_limit: None,
        overwrite: false,
    }
}
