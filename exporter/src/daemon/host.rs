//! This host as a source of accounts: its kernel maps, and what `/proc` says of the processes in them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpucause_abi::sample::{Sample, SampledThread};
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};
use gpucause_observe::chains::code::StackSampler;
use gpucause_observe::clock::WallClock;
use gpucause_observe::gpus::Gpus;
use gpucause_observe::kernel_launches::NameSource;
use gpucause_observe::nvml::GpusByPid;
use gpucause_observe::observation::Observation;
use gpucause_observe::pipeline::AccountSource;
use gpucause_observe::process_details::{Details, DetailsCache};
use gpucause_observe::process_identity::is_running;
use gpucause_observe::throttling::{Throttled, Throttling};
use gpucause_probes::ReadError;
use gpucause_probes::kernel_symbols::{FunctionName, HostFunctions};
use gpucause_probes::samples::SampleError;

use super::Shared;
use super::probe_states::{attach_gaps, nvml_state, probe_states};

/// State that is kept from sample to sample.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    pub(super) gpus: Arc<Gpus>,
    details: DetailsCache,
    throttling: Throttling,
    functions: HostFunctions,
    clock: WallClock,
    /// UUIDs of the GPUs that processes use.
    gpu_uuids: HashMap<ProcId, Arc<str>>,
}

impl Host {
    pub(super) fn new(shared: Arc<Shared>, gpus: Arc<Gpus>) -> Self {
        let (details, throttling, functions, gpu_uuids) = Default::default();
        let clock = WallClock::now();
        Self { shared, gpus, details, throttling, functions, clock, gpu_uuids }
    }
}

impl AccountSource for Host {
    type Error = ReadError;

    fn snapshot(&mut self) -> Result<Snapshot, ReadError> {
        self.shared.probes.snapshot()
    }

    fn remove(&mut self, gone: &HashSet<ProcId>) -> Result<(), ReadError> {
        self.shared.probes.remove(gone)
    }

    fn time_kernel(&mut self, id: ProcId, handle: u64) -> Result<bool, ReadError> {
        self.shared.probes.time_kernel(id, handle)
    }

    fn details(&mut self, processes: &[ProcessSnapshot]) -> Details {
        self.details.refresh(processes)
    }

    fn throttled(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, Throttled> {
        self.throttling.refresh(processes)
    }

    fn clock(&mut self, _taken_at: Nanos) -> WallClock {
        self.clock = self.clock.refreshed();
        self.clock
    }

    fn complete(&mut self, observation: &mut Observation) {
        let status = self.shared.probes.status();
        let gpus = self.gpus.view();
        keep_gpus(&mut self.gpu_uuids, &gpus.gpus_by_pid, &observation.snapshot.processes);
        observation.gpu_uuids.clone_from(&self.gpu_uuids);
        observation.state = self.shared.observing.update(&status);
        observation.probes = probe_states(&status);
        observation.probes.extend(gpus.nvml.as_ref().map(nvml_state));
        observation.gpus = gpus;
        observation.attach_gaps = attach_gaps(&status.libraries);
        observation.hit_cost = status.hit_cost;
        observation.entry_cost = status.entry_cost;
        observation.step_cost = status.step_cost;
        observation.duty_ratio = status.duty_ratio;
        observation.mmap_events_lost = status.discovery.lost_events;
    }
}

/// Samples threads by the probes of this daemon.
#[derive(Debug)]
pub(super) struct ThreadSampler(pub(super) Arc<Shared>);

impl StackSampler for ThreadSampler {
    fn choose(&self, threads: &[SampledThread]) -> Result<(), SampleError> {
        self.0.probes.sampler().choose(threads)
    }

    fn take(&self) -> Result<Vec<Sample>, SampleError> {
        self.0.probes.sampler().take()
    }
}

impl NameSource for Host {
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName> {
        self.shared.probes.handle_name(id, handle).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot name a kernel");
            None
        })
    }

    fn function_names(
        &mut self,
        process: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        if process.ended.is_some() {
            return BTreeMap::new();
        }
        let names = self.functions.names(process.tgid, addresses).unwrap_or_else(|error| {
            tracing::debug!(pid = process.tgid.0, %error, "cannot name kernels");
            BTreeMap::new()
        });
        // Last: a PID that was reused before or during the reads shows here.
        if is_running(process.tgid, process.started_boottime) { names } else { BTreeMap::new() }
    }
}

/// The driver forgets a process with its end, but its series must keep their labels.
fn keep_gpus(
    known: &mut HashMap<ProcId, Arc<str>>,
    gpus_by_pid: &GpusByPid,
    processes: &[ProcessSnapshot],
) {
    let keep = |process: &ProcessSnapshot| {
        let now = gpus_by_pid.get(&process.tgid.0).filter(|_| process.ended.is_none());
        Some((process.id, Arc::clone(now.or_else(|| known.get(&process.id))?)))
    };
    *known = processes.iter().filter_map(keep).collect();
}
