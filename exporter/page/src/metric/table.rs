//! All metrics: the only place that has their names, help texts, units and label keys.

use super::Kind::{Counter, Gauge, Histogram, Info};
use super::Unit::{Bytes, Seconds};
use super::{Level, Metric, Unit};
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

/// The first level that has a metric.
macro_rules! level {
    () => {
        Level::Standard
    };
    (fleet) => {
        Level::Fleet
    };
    (full) => {
        Level::Full
    };
}

/// Declares the rows, and [`ALL`] of them in the order of the page.
macro_rules! metrics {
    ($($row:ident: $kind:ident $name:literal, $unit:expr, [$($label:literal),*], $help:literal $(, of $measure:ident)? $(, at $level:ident)?;)+) => {
        $(
            #[doc = $help]
            pub static $row: Metric =
                Metric {
                    name: $name,
                    help: $help,
                    unit: $unit,
                    kind: $kind,
                    level: level!($($level)?),
                    measure: position!($($measure)?),
                    labels: &[$($label),*],
                };
        )+

        /// Every metric, in page order.
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
        "Traced calls that returned an error, other than not ready and in progress.";
    CUDA_CALL_STALLED: Counter "gpucause_cuda_call_stalled", None,
        ["pid", "comm", "api", "op"],
        "Traced calls whose thread was off the CPU at any time between entry and return.",
        at full;
    CUDA_CALL_OFFCPU: Counter "gpucause_cuda_call_offcpu_seconds", SECONDS,
        ["pid", "comm", "api", "op", "reason"],
        "Off-CPU time between entry and return of traced calls, by reason.",
        at full;
    INFLIGHT_CALL_AGE: Gauge "gpucause_inflight_call_age_seconds", SECONDS,
        ["pid", "comm", "op"],
        "Age of the oldest call of each operation that has not returned.",
        at fleet;
    LAUNCHES: Counter "gpucause_launches", None,
        ["pid", "comm"],
        "Launches of kernels and graphs that were seen: outermost calls of every layer, including cold ones; all there are unless gpucause_calls_unobserved_seconds_total grows.",
        at fleet;
    CALLS_OBSERVED: Counter "gpucause_calls_observed_seconds", SECONDS,
        ["pid", "comm"],
        "Time for which calls of the process were counted.",
        at fleet;
    CALLS_UNOBSERVED: Counter "gpucause_calls_unobserved_seconds", SECONDS,
        ["pid", "comm"],
        "Time for which they were not: a process whose calls cost more than the counting limit is partly observed (step part_time).",
        at fleet;
    LAUNCH_RATE: Gauge "gpucause_launch_rate_estimate", None,
        ["pid", "comm"],
        "Launches a second in the last 10 s of a partly observed process, where that can be known.";
    LAUNCH_RATE_ERROR: Gauge "gpucause_launch_rate_estimate_error_ratio", None,
        ["pid", "comm"],
        "How far gpucause_launch_rate_estimate may be off, as a share of it.";
    CALL_SAMPLING: Gauge "gpucause_call_sampling_ratio", None,
        ["pid", "comm", "class"],
        "Share of the process's calls that is timed, of classes that are timed less over the probe budget: query (attributes, occupancy) and async (copies to and between devices, asynchronous frees, memsets, events).",
        at full;
    CALLS_UNTIMED: Counter "gpucause_cuda_calls_untimed", None,
        ["pid", "comm", "api", "op"],
        "Outermost calls that were counted and not timed, without launches and without those in gpucause_cuda_call_duration_seconds.",
        at full;
    LAUNCHES_TIMED: Counter "gpucause_launches_timed", None,
        ["pid", "comm"],
        "Launches whose duration was measured: all of them, or one in N over the probe budget.",
        at fleet;
    LAUNCH_SAMPLING: Gauge "gpucause_launch_sampling_ratio", None,
        ["pid", "comm", "step"],
        "Share of the process's launches that is timed, by sampling step: full, driver_only, sampled or part_time.";
    LAUNCH_DURATION: Histogram "gpucause_launch_duration_seconds", SECONDS,
        ["pid", "comm", "launch_type"],
        "Time from entry to return of warm launches, outermost calls of every layer; a sample of them where gpucause_launches_timed_total grows less than gpucause_launches_total.",
        at fleet;
    LAUNCH_GAP: Histogram "gpucause_launch_gap_seconds", SECONDS,
        ["pid", "comm"],
        "Time from one launch's return to the next launch's entry on the same thread.";
    DISPATCHER_TIME: Counter "gpucause_dispatcher_seconds", SECONDS,
        ["pid", "comm", "phase", "state"],
        "Wall time of dispatcher threads by phase (what they do) and state (running, or an off-CPU reason).",
        at fleet;
    DISPATCHER_WALL: Counter "gpucause_dispatcher_wall_seconds", SECONDS,
        ["pid", "comm"],
        "The sum of gpucause_dispatcher_seconds_total over phases and states: its rate is the number of dispatcher threads.",
        at fleet;
    DISPATCHER_LOST: Counter "gpucause_dispatcher_lost_seconds", SECONDS,
        ["pid", "comm", "state"],
        "Dispatcher time lost: gpucause_dispatcher_seconds_total in the states preempted, runqueue, lock, kernel_lock, io and page_fault outside phase sync, and in runqueue within it.",
        at fleet;
    PREEMPTED_BY: Counter "gpucause_preempted_by_seconds", SECONDS,
        ["pid", "comm", "culprit"],
        "Time that dispatcher threads were runnable but not running, by the process on the CPU.";
    BLOCKED_ON: Counter "gpucause_blocked_on_seconds", SECONDS,
        ["pid", "comm", "reason", "waker"],
        "Time that dispatcher threads were blocked, by reason and by the process that woke them.";
    KERNEL_LAUNCHES: Counter "gpucause_kernel_launches", None,
        ["pid", "comm", "kernel"],
        "Launches by kernel: the most launched kernels by name, kernels without a name as unknown, the rest as other.",
        at full;
    KERNEL_LAUNCH_DURATION: Histogram "gpucause_kernel_launch_duration_seconds", SECONDS,
        ["pid", "comm", "kernel"],
        "Time from entry to return of warm launches of the most launched kernels of the process, from when each became one of them.",
        at full;
    MEMCPY_BYTES: Counter "gpucause_memcpy_bytes", BYTES,
        ["pid", "comm", "direction"],
        "Bytes that successful copies moved, by direction.";
    MEMCPY_DURATION: Histogram "gpucause_memcpy_duration_seconds", SECONDS,
        ["pid", "comm", "direction", "size"],
        "Time from entry to return of successful copies, by direction and by the upper bound of their size class in bytes.",
        at full;
    DEVICE_MEMORY_ALLOCATED: Counter "gpucause_device_memory_allocated_bytes", BYTES,
        ["pid", "comm"],
        "Device memory that the process has allocated.",
        at full;
    DEVICE_MEMORY_FREED: Counter "gpucause_device_memory_freed_bytes", BYTES,
        ["pid", "comm"],
        "Device memory that the process has freed; at its exit all of it.";
    DEVICE_MEMORY_LIVE: Gauge "gpucause_device_memory_live_bytes", BYTES,
        ["pid", "comm"],
        "Device memory allocated since the process was first seen and not freed; memory freed by a device reset counts until it is allocated again.";
    NCCL_BYTES: Counter "gpucause_nccl_bytes", BYTES,
        ["pid", "comm", "op"],
        "Bytes passed to successful collectives, sends and receives by this rank.";
    OFFCPU_DURATION: Histogram "gpucause_offcpu_duration_seconds", SECONDS,
        ["pid", "comm", "role", "reason"],
        "Off-CPU intervals of the process's threads, each charged to one reason; reason all is their sum.";
    RUNQUEUE_LATENCY: Histogram "gpucause_runqueue_latency_seconds", SECONDS,
        ["pid", "comm", "role"],
        "Time that the process's threads were runnable before they ran.",
        at full;
    CONTEXT_SWITCHES: Counter "gpucause_context_switches", None,
        ["pid", "comm", "role", "switch_type"],
        "Times that the process's threads left a CPU: voluntary when blocking, involuntary when runnable.",
        at full;
    BLOCK_IO_TIME: Counter "gpucause_block_io_seconds", SECONDS,
        ["pid", "comm", "device", "io_direction"],
        "Time from submission to completion of the block I/O requests of the process's threads, summed over requests.",
        at full;
    BLOCK_IO_BYTES: Counter "gpucause_block_io_bytes", BYTES,
        ["pid", "comm", "device", "io_direction"],
        "Bytes of successful block I/O requests.",
        at full;
    BLOCK_IO_REQUESTS: Counter "gpucause_block_io_requests", None,
        ["pid", "comm", "device", "io_direction"],
        "Block I/O requests, failed ones included.",
        at full;
    PAGE_FAULTS: Counter "gpucause_page_faults", None,
        ["pid", "comm", "fault_type"],
        "Page faults of the process since its start: minor ones were served from memory, major ones from disk.",
        at full;
    PAGE_ALLOC_BYTES: Counter "gpucause_page_alloc_bytes", BYTES,
        ["pid", "comm"],
        "Bytes of pages that the process's threads allocated, for themselves, the page cache or kernel memory.",
        of page_alloc_bytes,
        at full;
    DIRECT_RECLAIM: Counter "gpucause_direct_reclaim_seconds", SECONDS,
        ["pid", "comm"],
        "Time that the process's threads spent in direct reclaim of memory, of the host or of their cgroup.",
        of direct_reclaim,
        at full;
    OOM_KILLS: Counter "gpucause_oom_kills", None,
        ["pid", "comm"],
        "Times that the OOM killer chose the process.",
        of oom_kills,
        at fleet;
    TCP_RETRANSMITS: Counter "gpucause_tcp_retransmits", None,
        ["pid", "comm"],
        "TCP segments retransmitted on sockets that the process connected, or was the last to receive from.",
        of tcp_retransmits,
        at full;
    NUMA_MIGRATIONS: Counter "gpucause_numa_migrations", None,
        ["pid", "comm"],
        "Times that a dispatcher thread ran on a CPU of another NUMA node than before; 0 on hosts with one node.",
        of numa_migrations,
        at full;
    CGROUP_THROTTLED_TIME: Counter "gpucause_cgroup_throttled_seconds", SECONDS,
        ["pid", "comm"],
        "Time, summed over CPUs, that the process's cgroup and its ancestors were throttled by their CPU quota since the process was first scraped.";
    CGROUP_THROTTLED_PERIODS: Counter "gpucause_cgroup_throttled_periods", None,
        ["pid", "comm"],
        "Quota periods in which the process's cgroup or an ancestor was throttled.",
        at full;
    CALLS_ABANDONED: Counter "gpucause_calls_abandoned", None,
        ["pid", "comm"],
        "Traced calls that never returned: unwound, or ended by exit or exec.",
        of abandoned_calls,
        at full;
    CAUSAL_CHAINS: Counter "gpucause_causal_chains", None,
        ["pid", "comm", "cause", "effect", "severity"],
        "Causal chains detected, each counted once for every severity that it reaches; the exemplar names the last one.";
    CAUSAL_CHAIN_INFO: Info "gpucause_causal_chain_info", None,
        ["pid", "comm", "cause", "chain_id", "culprit", "culprit_unit", "culprit_pod", "cpus", "culprit_cpus"],
        "Ongoing causal chains: the culprit to act on, and the CPUs that the victim's thread and the culprit's thread may run on, or all of the culprit's threads where that is unknown; unknown labels are empty; the culprit's PID is at /api/v1/chains.",
        at fleet;
    STALL_SECONDS: Counter "gpucause_stall_seconds", SECONDS,
        ["pid", "comm", "cause"],
        "Dispatcher time lost to a proven cause: the part of gpucause_dispatcher_lost_seconds_total that causal chains attribute to it.",
        at fleet;
    CAUSAL_CHAIN_SECONDS: Counter "gpucause_causal_chain_seconds", SECONDS,
        ["pid", "comm", "cause"],
        "Time of dispatcher threads that causal chains attribute to the cause: gpucause_stall_seconds_total, and time on a CPU, in collectives, in waits for the GPU or for data of a worker, or, as unexplained, lost without a cause.",
        at fleet;
    PROCESS_INFO: Info "gpucause_process_info", None,
        ["pid", "comm", "ns_pid", "exe", "container_id", "cgroup", "pod", "pod_uid", "namespace", "slurm_job", "user", "rank", "local_rank", "world_size"],
        "Identity of an observed process; labels that could not be read are empty.",
        at fleet;
    PROCESS_GPU_INFO: Info "gpucause_process_gpu_info", None,
        ["pid", "comm", "UUID"],
        "GPUs and MIG instances that a process uses, one series each.",
        at fleet;
    PROCESSES_OBSERVED: Gauge "gpucause_processes_observed", None,
        [],
        "Live processes that are observed, without workers.",
        at fleet;
    PROCESSES_FOLDED: Counter "gpucause_processes_folded", None,
        [],
        "Processes aggregated into other: exited ones over the limit before their retention time was over, and live ones beyond limits.live_processes.",
        at fleet;
    LABEL_OVERFLOW: Counter "gpucause_label_overflow", None,
        ["metric"],
        "Times that a label value beyond the limit of its process was aggregated into other; of names of tasks and kernels, repetitions included.";
    PROCESSES_EXCLUDED: Gauge "gpucause_processes_excluded", None,
        [],
        "Live processes with CUDA calls that the configuration excludes from all other metrics.";

    CONFIG_SUCCESSFUL: Gauge "gpucause_config_last_reload_successful", None,
        [],
        "Whether the last configuration reload succeeded; while 0, the previous configuration is still active.",
        at fleet;
    CONFIG_LOADED_AT: Gauge "gpucause_config_last_reload_success_timestamp_seconds", SECONDS,
        [],
        "Unix time of the last successful configuration reload.";
    BUILD_INFO: Info "gpucause_build_info", None,
        ["version", "revision", "rustversion", "arch"],
        "Version, revision, compiler and architecture of this build.",
        at fleet;
    OBSERVATION_STATE: Gauge "gpucause_observation_state", None,
        ["state"],
        "Whether this node is observed, 1 for the current state: attached (every launch is timed), partial (launches are sampled, or probes are missing) or disabled (nothing is observed).",
        at fleet;
    OBSERVATION_STATE_CHANGED: Gauge "gpucause_observation_state_changed_timestamp_seconds", SECONDS,
        [],
        "Unix time at which the current observation state began.";
    OBSERVATION_TIMED: Gauge "gpucause_observation_timed_ratio", None,
        [],
        "Share of launches that is timed, 0 to 1; absent while probes are missing, since the number of launches is unknown.";
    PROBE_STATUS: Gauge "gpucause_probe_status", None,
        ["probe", "library", "verdict"],
        "Verdict of each probe: 1 for the current one, others have no series; library is empty for kernel probes.";
    PROBE_HITS: Counter "gpucause_probe_hits", None,
        ["probe"],
        "Runs of each kernel program.",
        at full;
    PROBE_COST: Counter "gpucause_probe_cost_seconds", SECONDS,
        ["probe"],
        "Time that probes cost the threads that hit them; for call: hits times the calibrated cost of one in caches as cold as they were on average; for others: one run in 64 is measured.";
    PROBE_HIT_COST: Gauge "gpucause_probe_hit_cost_seconds", SECONDS,
        ["probe"],
        "Cost of one hit of a call probe (trap, program, return) after other work, calibrated at the start of the daemon; an upper bound for programs whose data stays in the caches.",
        at full;
    PROBE_DUTY: Gauge "gpucause_probe_duty_ratio", None,
        [],
        "The smallest share of time over all processes in which launches are observed within the probe budget; 0 while probes are disabled.";
    MAP_ENTRIES: Gauge "gpucause_map_entries", None,
        ["map"],
        "Entries in each bounded kernel map.";
    MAP_CAPACITY: Gauge "gpucause_map_capacity", None,
        ["map"],
        "Entries that each bounded kernel map can hold.";
    MAP_FULL: Counter "gpucause_map_full", None,
        ["map"],
        "Updates that a full kernel map rejected, and which are missing; for kernels they count as cold and as other, for kernel_hists each process counts once.";
    EVENTS_DROPPED: Counter "gpucause_events_dropped", None,
        ["reason"],
        "Events that were dropped or never arrived, by reason.";
    DCGM_UP: Gauge "gpucause_dcgm_up", None,
        [],
        "Whether the last fetch of dcgm-exporter's page succeeded; absent without --dcgm.url.",
        at fleet;
    DCGM_PAGE_AGE: Gauge "gpucause_dcgm_page_age_seconds", SECONDS,
        [],
        "Age of dcgm-exporter's metrics on this page; absent while there are none.";
    DCGM_UTILIZATION_KNOWN: Gauge "gpucause_dcgm_utilization_known", None,
        [],
        "Whether dcgm-exporter's metrics on this page have the utilization of GPUs under a name that rules know; absent while there are none.",
        at fleet;
    DCGM_FETCH_FAILURES: Counter "gpucause_dcgm_fetch_failures", None,
        ["reason"],
        "Failed fetches of dcgm-exporter's page.";
    NVML_SAMPLE_AGE: Gauge "gpucause_nvml_sample_age_seconds", SECONDS,
        [],
        "Age of the last answer of the NVIDIA driver; absent while there is none.";
    LIBRARY_ATTACH_GAP: Gauge "gpucause_library_attach_gap_seconds", SECONDS,
        ["library"],
        "Time between the mapping of a library and the attach of its probes, in which calls are missed.";
    SCRAPE_COLLECTOR_DURATION: Gauge "gpucause_scrape_collector_duration_seconds", SECONDS,
        ["collector"],
        "Time that a collector took in this scrape.",
        at full;
    SCRAPE_SERIES: Gauge "gpucause_scrape_series", None,
        ["collector"],
        "Series that a collector has on this page.";
    SCRAPE_COLLECTOR_SUCCESS: Gauge "gpucause_scrape_collector_success", None,
        ["collector"],
        "Whether a collector succeeded in this scrape.",
        at fleet;

    WEB_CONFIG_RELOAD_FAILURES: Counter "gpucause_web_config_reload_failures", None,
        [],
        "Failed reloads of the web configuration, or of the certificates and keys that it names.";
    WEB_CONFIG_LAST_RELOAD_SUCCESSFUL: Gauge "gpucause_web_config_last_reload_successful", None,
        [],
        "Whether the last reload of the web configuration succeeded; while 0, the previous one is still active.",
        at fleet;

    FLIGHT_RECORDS: Counter "gpucause_flight_records", None,
        ["outcome"],
        "Trace files of the flight recorder: written, suppressed (there is one of the same cause), or failed (see the log).";
    OTLP_SENT: Counter "gpucause_otlp_records_sent", None,
        [],
        "Log records of causal chains that the OTLP endpoint accepted.";
    OTLP_LOST: Counter "gpucause_otlp_records_lost", None,
        ["reason"],
        "Log records of causal chains that were lost: spool_full (the oldest made room), spool_failed (no file could be written, and too many waited in memory), unreadable (a file of the spool is damaged), rejected (by the endpoint).";
    OTLP_FAILURES: Counter "gpucause_otlp_request_failures", None,
        ["reason"],
        "Requests to the OTLP endpoint that failed and are repeated, by reason.";
    OTLP_QUEUED_RECORDS: Gauge "gpucause_otlp_queued_records", None,
        [],
        "Log records of causal chains that wait to be sent.";
    OTLP_QUEUED_BYTES: Gauge "gpucause_otlp_queued_bytes", BYTES,
        [],
        "Size of the log records of causal chains that wait to be sent.";
    PEERS_REQUESTS: Counter "gpucause_peers_requests", None,
        ["result"],
        "Questions to the Prometheus of --peers.url about ranks on other hosts, by result: ok or error; absent without that flag.";
    PEERS_AGE: Gauge "gpucause_peers_age_seconds", SECONDS,
        [],
        "Age of what is known of ranks on other hosts; absent while nothing is, or it is older than 45 s.";

    PROCESS_CPU: Counter "process_cpu_seconds", SECONDS,
        [],
        "User and system CPU time of this daemon.",
        at fleet;
    PROCESS_OPEN_FDS: Gauge "process_open_fds", None,
        [],
        "Open file descriptors of this daemon.";
    PROCESS_MAX_FDS: Gauge "process_max_fds", None,
        [],
        "File descriptors that this daemon may open.",
        at full;
    PROCESS_VIRTUAL_MEMORY: Gauge "process_virtual_memory_bytes", BYTES,
        [],
        "Virtual memory of this daemon.",
        at full;
    PROCESS_RESIDENT_MEMORY: Gauge "process_resident_memory_bytes", BYTES,
        [],
        "Resident memory of this daemon.",
        at fleet;
    PROCESS_START_TIME: Gauge "process_start_time_seconds", SECONDS,
        [],
        "Start of this daemon, in Unix time.",
        at fleet;
    PROCESS_THREADS: Gauge "process_threads", None,
        [],
        "Threads of this daemon.";
}
