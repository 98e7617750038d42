//! Every metric there is. Nowhere else is a name, help text, unit or label key written.

use super::Kind::{Counter, Gauge, Histogram, Info};
use super::Unit::{Bytes, Seconds};
use super::{Metric, Unit};
use gpucause_abi::measure::Measures;

/// The position of a measure, by its name.
macro_rules! position {
    () => {
        None
    };
    ($measure:ident) => {
        Some(std::mem::offset_of!(Measures, $measure) / size_of::<u64>())
    };
}

/// Declares the rows, and [`ALL`] of them in the order of the page.
macro_rules! metrics {
    ($($row:ident: $kind:ident $name:literal, $unit:expr, [$($label:literal),*], $help:literal $(, of $measure:ident)?;)+) => {
        $(
            #[doc = $help]
            pub static $row: Metric =
                Metric {
                    name: $name,
                    help: $help,
                    unit: $unit,
                    kind: $kind,
                    measure: position!($($measure)?),
                    labels: &[$($label),*],
                };
        )+

        /// Every metric, in the order in which a page shows them.
        pub static ALL: &[&Metric] = &[$(&$row),+];
    };
}

const SECONDS: Option<Unit> = Some(Seconds);
const BYTES: Option<Unit> = Some(Bytes);

metrics! {
    CUDA_CALL_DURATION: Histogram "gpucause_cuda_call_duration_seconds", SECONDS,
        ["pid", "comm", "api", "op", "cold"],
        "Time from entry to return of traced calls; cold is true for the first launch of a kernel function.";
    CUDA_CALL_ERRORS: Counter "gpucause_cuda_call_errors", None,
        ["pid", "comm", "api", "op", "error"],
        "Traced calls that returned an error; not ready and in progress are none.";
    CUDA_CALL_STALLED: Counter "gpucause_cuda_call_stalled", None,
        ["pid", "comm", "api", "op"],
        "Traced calls whose thread was off the CPU at any time between entry and return.";
    CUDA_CALL_OFFCPU: Counter "gpucause_cuda_call_offcpu_seconds", SECONDS,
        ["pid", "comm", "api", "op", "reason"],
        "Off-CPU time between entry and return of traced calls, by reason.";
    INFLIGHT_CALL_AGE: Gauge "gpucause_inflight_call_age_seconds", SECONDS,
        ["pid", "comm", "op"],
        "Age of the oldest call of each operation that has not returned.";
    LAUNCHES: Counter "gpucause_launches", None,
        ["pid", "comm"],
        "Launches of kernels and graphs: outermost calls of every layer, cold ones too; exact, but estimated for the time in which a process over its probe budget is not observed.";
    LAUNCHES_TIMED: Counter "gpucause_launches_timed", None,
        ["pid", "comm"],
        "Those launches whose duration was measured; over the probe budget, one in so many.";
    LAUNCH_SAMPLING: Gauge "gpucause_launch_sampling_ratio", None,
        ["pid", "comm", "step"],
        "Share of a process's launches that are timed now, and how they are observed: full, driver_only, sampled or part_time.";
    LAUNCH_DURATION: Histogram "gpucause_launch_duration_seconds", SECONDS,
        ["pid", "comm", "kind"],
        "Time from entry to return of warm launches of kernels, or of graphs: outermost calls of every layer, and a sample of them where gpucause_launches_timed_total grows less than gpucause_launches_total.";
    LAUNCH_GAP: Histogram "gpucause_launch_gap_seconds", SECONDS,
        ["pid", "comm"],
        "Time from one launch's return to the next launch's entry on the same thread.";
    DISPATCHER_TIME: Counter "gpucause_dispatcher_seconds", SECONDS,
        ["pid", "comm", "phase", "state"],
        "Wall time of the threads that make traced calls, all of it, by what they were doing and by running or off-CPU reason.";
    DISPATCHER_WALL: Counter "gpucause_dispatcher_wall_seconds", SECONDS,
        ["pid", "comm"],
        "The sum of gpucause_dispatcher_seconds_total over phases and states: as many seconds a second as there are such threads.";
    DISPATCHER_LOST: Counter "gpucause_dispatcher_lost_seconds", SECONDS,
        ["pid", "comm", "state"],
        "GPU-feeding time lost: the part of gpucause_dispatcher_seconds_total in the states preempted, runqueue, futex, io and page_fault outside of phase sync, and in runqueue in sync; summed over phases.";
    PREEMPTED_BY: Counter "gpucause_preempted_by_seconds", SECONDS,
        ["pid", "comm", "culprit"],
        "Time that dispatcher and worker threads could have run, by who had the CPU.";
    BLOCKED_ON: Counter "gpucause_blocked_on_seconds", SECONDS,
        ["pid", "comm", "reason", "waker"],
        "Time that dispatcher and worker threads were blocked, by reason and by who ended the wait.";
    WAIT_NAMES_FOLDED: Counter "gpucause_wait_names_folded", None,
        ["metric"],
        "Names whose time was added to other because a process had too many; each time one is added again counts.";
    KERNEL_LAUNCHES: Counter "gpucause_kernel_launches", None,
        ["pid", "comm", "kernel"],
        "Launches by kernel: the most launched of a process by name, those without a name as unknown, the rest as other.";
    KERNEL_LAUNCH_DURATION: Histogram "gpucause_kernel_launch_duration_seconds", SECONDS,
        ["pid", "comm", "kernel"],
        "Time from entry to return of warm launches of the first kernels of a process to become its most launched, from the moment that each did.";
    KERNEL_NAMES_FOLDED: Counter "gpucause_kernel_names_folded", None,
        [],
        "Kernels whose launches were added to other because a process had too many; each time one is added again counts.";
    MEMCPY_BYTES: Counter "gpucause_memcpy_bytes", BYTES,
        ["pid", "comm", "kind"],
        "Bytes that successful copies moved, by direction.";
    MEMCPY_DURATION: Histogram "gpucause_memcpy_duration_seconds", SECONDS,
        ["pid", "comm", "kind", "size"],
        "Time from entry to return of successful copies, by direction and by the upper bound of their size class in bytes.";
    DEVICE_MEMORY_ALLOCATED: Counter "gpucause_device_memory_allocated_bytes", BYTES,
        ["pid", "comm"],
        "Device memory that the process has taken.";
    DEVICE_MEMORY_FREED: Counter "gpucause_device_memory_freed_bytes", BYTES,
        ["pid", "comm"],
        "Device memory that the process has given back, at its end all of it.";
    DEVICE_MEMORY_LIVE: Gauge "gpucause_device_memory_live_bytes", BYTES,
        ["pid", "comm"],
        "Device memory in use, of what the process took since it was first seen; what a device reset frees stays in it until given out again.";
    NCCL_BYTES: Counter "gpucause_nccl_bytes", BYTES,
        ["pid", "comm", "op"],
        "Bytes that successful collectives, sends and receives were given, by this rank's own count.";
    OFFCPU_DURATION: Histogram "gpucause_offcpu_duration_seconds", SECONDS,
        ["pid", "comm", "role", "reason"],
        "Stretches of off-CPU time of the process's threads, by the one reason each is charged to.";
    RUNQUEUE_LATENCY: Histogram "gpucause_runqueue_latency_seconds", SECONDS,
        ["pid", "comm", "role"],
        "Time that the process's threads were runnable before they got a CPU.";
    CONTEXT_SWITCHES: Counter "gpucause_context_switches", None,
        ["pid", "comm", "role", "kind"],
        "Times that the process's threads left a CPU: voluntary when blocking, involuntary when runnable.";
    BLOCK_IO_TIME: Counter "gpucause_block_io_seconds", SECONDS,
        ["pid", "comm", "device", "operation"],
        "Time from submission to completion of the block I/O requests of the process's threads, summed over requests.";
    BLOCK_IO_BYTES: Counter "gpucause_block_io_bytes", BYTES,
        ["pid", "comm", "device", "operation"],
        "Bytes of those requests that succeeded.";
    BLOCK_IO_REQUESTS: Counter "gpucause_block_io_requests", None,
        ["pid", "comm", "device", "operation"],
        "Those requests, failed ones included.";
    PAGE_FAULTS: Counter "gpucause_page_faults", None,
        ["pid", "comm", "kind"],
        "Page faults of the process since it began: minor ones were served from memory, major ones from a disk.";
    PAGE_ALLOC_BYTES: Counter "gpucause_page_alloc_bytes", BYTES,
        ["pid", "comm"],
        "Pages that the process's threads took from the kernel, for themselves, the page cache or kernel memory.",
        of page_alloc_bytes;
    DIRECT_RECLAIM: Counter "gpucause_direct_reclaim_seconds", SECONDS,
        ["pid", "comm"],
        "Time that the process's threads spent freeing memory, of the host or of their cgroup, before they got theirs.",
        of direct_reclaim;
    OOM_KILLS: Counter "gpucause_oom_kills", None,
        ["pid", "comm"],
        "Times that the kernel chose the process to be killed for lack of memory.",
        of oom_kills;
    TCP_RETRANSMITS: Counter "gpucause_tcp_retransmits", None,
        ["pid", "comm"],
        "Times that a segment of a socket that the process connected, or was the last to receive from, was sent again.",
        of tcp_retransmits;
    NUMA_MIGRATIONS: Counter "gpucause_numa_migrations", None,
        ["pid", "comm"],
        "Times that a thread that makes traced calls got a CPU of another NUMA node than the one before; 0 on hosts with one node.",
        of numa_migrations;
    CGROUP_THROTTLED_TIME: Counter "gpucause_cgroup_throttled_seconds", SECONDS,
        ["pid", "comm"],
        "Time, summed over CPUs, for which the process's cgroup and those above it were out of CPU quota since the process was first scraped.";
    CGROUP_THROTTLED_PERIODS: Counter "gpucause_cgroup_throttled_periods", None,
        ["pid", "comm"],
        "Quota periods in which they ran out of it.";
    CALLS_ABANDONED: Counter "gpucause_calls_abandoned", None,
        ["pid", "comm"],
        "Traced calls that never returned: unwound, or cut short by exit or exec.",
        of abandoned_calls;
    CAUSAL_CHAINS: Counter "gpucause_causal_chains", None,
        ["pid", "comm", "cause", "effect", "severity"],
        "Causal chains found, each counted once for every severity it reaches; the exemplar names the last.";
    CAUSAL_CHAIN_INFO: Info "gpucause_causal_chain_info", None,
        ["pid", "comm", "cause", "chain_id", "culprit", "culprit_unit", "culprit_pod", "cpus", "culprit_cpus"],
        "Ongoing causal chains: whom to act on, and the CPUs that victim and culprit may run on; a label is empty where it is not known, and the culprit's PID is at /api/v1/chains.";
    STALL_SECONDS: Counter "gpucause_stall_seconds", SECONDS,
        ["pid", "comm", "cause"],
        "GPU-feeding time lost to a proven cause: the part of gpucause_dispatcher_lost_seconds_total that causal chains attribute to it, over all causes never more than that.";
    CAUSAL_CHAIN_SECONDS: Counter "gpucause_causal_chain_seconds", SECONDS,
        ["pid", "comm", "cause"],
        "Time of dispatcher threads that causal chains attribute to the cause, lost or not: beside gpucause_stall_seconds_total what it took on a CPU, in collectives, in waits for the GPU or for a worker's data.";
    PROCESS_INFO: Info "gpucause_process_info", None,
        ["pid", "comm", "ns_pid", "exe", "container_id", "cgroup", "pod", "pod_uid", "namespace", "slurm_job", "user", "rank", "local_rank", "world_size", "gpu_uuid"],
        "What an observed process is; a label is empty where it could not be read.";
    PROCESSES_OBSERVED: Gauge "gpucause_processes_observed", None,
        [],
        "Live processes under observation.";
    PROCESSES_FOLDED: Counter "gpucause_processes_folded", None,
        [],
        "Processes that are told of under other alone: exited ones dropped before their retention time because too many had exited, and live ones beyond limits.live_processes.";

    PROCESSES_EXCLUDED: Gauge "gpucause_processes_excluded", None,
        [],
        "Live processes with CUDA calls that the configuration leaves out; nothing else tells of them.";

    CONFIG_SUCCESSFUL: Gauge "gpucause_config_last_reload_successful", None,
        [],
        "Whether the last attempt to load the configuration succeeded; while 0, an earlier one is in effect.";
    CONFIG_TAKEN_AT: Gauge "gpucause_config_last_reload_success_timestamp_seconds", SECONDS,
        [],
        "When the configuration was last loaded with success, since the Unix epoch.";
    BUILD_INFO: Info "gpucause_build_info", None,
        ["version", "revision", "rustversion", "arch"],
        "How this daemon was built.";
    OBSERVATION_STATE: Gauge "gpucause_observation_state", None,
        ["state"],
        "Whether this node is observed, 1 for the current state: attached (every launch is timed), partial (launches are sampled, or probes are missing) or disabled (nothing is observed).";
    OBSERVATION_STATE_CHANGED: Gauge "gpucause_observation_state_changed_timestamp_seconds", SECONDS,
        [],
        "When the current observation state began, since the Unix epoch.";
    OBSERVATION_TIMED: Gauge "gpucause_observation_timed_ratio", None,
        [],
        "Share of launches that is timed, 0 to 1; absent while probes are missing, since nobody knows how many launches those would see.";
    PROBE_INFO: Info "gpucause_probe_info", None,
        ["probe", "library", "verdict"],
        "What became of each probe; library is empty for probes in the kernel.";
    PROBE_HITS: Counter "gpucause_probe_hits", None,
        ["probe"],
        "Runs of each kernel program.";
    PROBE_COST: Counter "gpucause_probe_cost_seconds", SECONDS,
        ["probe"],
        "Time that probes took from the threads that hit them: of call, hits times what one costs; of the others, what one run in 64 took, times 64.";
    PROBE_HIT_COST: Gauge "gpucause_probe_hit_cost_seconds", SECONDS,
        ["probe"],
        "What a hit of a call probe costs, trap, program and return, as measured when the daemon started.";
    PROBE_DUTY: Gauge "gpucause_probe_duty_ratio", None,
        [],
        "The least share of the time for which launches of any process are observed, to keep to the budget; 0 while probes are disabled.";
    MAP_ENTRIES: Gauge "gpucause_map_entries", None,
        ["map"],
        "Entries in each bounded kernel map.";
    MAP_CAPACITY: Gauge "gpucause_map_capacity", None,
        ["map"],
        "Entries that each bounded kernel map can hold.";
    MAP_FULL: Counter "gpucause_map_full", None,
        ["map"],
        "Updates that a full kernel map refused: what they would have counted is missing; for kernels it counts as cold and as other, for kernel_hists each process counts once.";
    CALLS_UNMATCHED_RETURNS: Counter "gpucause_calls_unmatched_returns", None,
        [],
        "Returns without a known entry, such as of calls that were in flight at attach.";
    CALLS_CUT: Counter "gpucause_calls_cut", None,
        [],
        "Calls that were in flight when the probes went that would have seen them return; neither counted nor timed.";
    DUPLICATE_HITS: Counter "gpucause_duplicate_hits", None,
        [],
        "Second reports of one call through another mount of the same library; not counted as calls.";
    CALLS_TOO_DEEP: Counter "gpucause_calls_too_deep", None,
        [],
        "Traced calls nested too deep to be recorded; neither counted nor timed.";
    CALLS_ON_OTHER_STACK: Counter "gpucause_calls_on_other_stack", None,
        [],
        "Traced calls on another stack than that of the thread's open calls, as of coroutines and signal handlers; not timed, and only launches are counted.";
    CLOCK_UNDERFLOW: Counter "gpucause_clock_underflow", None,
        [],
        "Intervals that ended before they began, by clocks of different CPUs; not recorded.";
    MISSED_ARRIVALS: Counter "gpucause_missed_arrivals", None,
        [],
        "Off-CPU intervals whose end the kernel did not report; they are measured by the wakeup and the kernel's count of waits for a CPU.";
    DCGM_UP: Gauge "gpucause_dcgm_up", None,
        [],
        "Whether the last attempt to fetch dcgm-exporter's page brought one; absent without --dcgm.url.";
    DCGM_PAGE_AGE: Gauge "gpucause_dcgm_page_age_seconds", SECONDS,
        [],
        "Age of dcgm-exporter's metrics on this page; absent while there are none.";
    DCGM_FETCH_FAILURES: Counter "gpucause_dcgm_fetch_failures", None,
        ["reason"],
        "Attempts to fetch dcgm-exporter's page that brought none.";
    NVML_SAMPLE_AGE: Gauge "gpucause_nvml_sample_age_seconds", SECONDS,
        [],
        "Age of what the NVIDIA driver last said; absent while it says nothing.";
    LIBRARY_ATTACH_GAP: Gauge "gpucause_library_attach_gap_seconds", SECONDS,
        ["library"],
        "Time between a library's mapping and the attach of its probes; calls in it were not seen.";
    MMAP_EVENTS_LOST: Counter "gpucause_mmap_events_lost", None,
        [],
        "Notices of newly mapped files that were lost; the periodic scan finds those libraries later.";
    SCRAPE_COLLECTOR_DURATION: Gauge "gpucause_scrape_collector_duration_seconds", SECONDS,
        ["collector"],
        "Time that a collector took in this scrape.";
    SCRAPE_COLLECTOR_SUCCESS: Gauge "gpucause_scrape_collector_success", None,
        ["collector"],
        "Whether a collector succeeded in this scrape.";

    WEB_CONFIG_RELOAD_FAILURES: Counter "gpucause_web_config_reload_failures", None,
        [],
        "Changes of the web configuration, or of the certificates and keys that it names, that were not taken because something was wrong.";
    WEB_CONFIG_LAST_RELOAD_SUCCESSFUL: Gauge "gpucause_web_config_last_reload_successful", None,
        [],
        "Whether what the files of the web configuration say is in effect.";

    FLIGHT_RECORDS: Counter "gpucause_flight_records", None,
        ["outcome"],
        "Trace files of the flight recorder: written, suppressed because there is one of the same cause already, or failed, and then the log says why.";

    PROCESS_CPU: Counter "process_cpu_seconds", SECONDS,
        [],
        "User and system CPU time that this daemon has used.";
    PROCESS_OPEN_FDS: Gauge "process_open_fds", None,
        [],
        "Open file descriptors of this daemon.";
    PROCESS_MAX_FDS: Gauge "process_max_fds", None,
        [],
        "File descriptors that this daemon may open.";
    PROCESS_VIRTUAL_MEMORY: Gauge "process_virtual_memory_bytes", BYTES,
        [],
        "Virtual memory of this daemon.";
    PROCESS_RESIDENT_MEMORY: Gauge "process_resident_memory_bytes", BYTES,
        [],
        "Resident memory of this daemon.";
    PROCESS_START_TIME: Gauge "process_start_time_seconds", SECONDS,
        [],
        "When this daemon started, since the Unix epoch.";
    PROCESS_THREADS: Gauge "process_threads", None,
        [],
        "Threads of this daemon.";
}
