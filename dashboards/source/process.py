"""One process, or a few: how long its calls take, why they are late, and which culprits delay them."""

import grafana
from account import account
from grafana import (
    RED,
    REASONS,
    bars,
    coloured,
    dashboard as make,
    dashed,
    heatmap,
    instances,
    override,
    query,
    steps,
    table,
    timeseries,
    variable,
)

ON = 'instance=~"$instance", comm=~"$comm", pid=~"$pid"'
CALLS = "gpucause_cuda_call_duration_seconds"
NAME = "{{comm}} {{pid}}"
# A panel draws either classic buckets or native histograms.
HEATMAP = (
    " Needs classic buckets. A Prometheus that stores native histograms gets them with metrics.classic_buckets: always in the exporter's"
    " configuration, and keeps them with scrape_classic_histograms (from 2.45) or always_scrape_classic_histograms (from 3.0)."
)
LOCKS = 'reason=~"lock|kernel_lock"'
WARM = 'cold="false"'
# All reasons together are a series of their own.
ONE_REASON = 'reason!="all"'


def rate(metric, by, more=""):
    return grafana.rate(metric, by, f"{ON}, {more}" if more else ON)


# Prometheus stores histograms as classic series, as native ones, or as both; classic ones are preferred. Where there are no buckets,
# the mean takes their place.
def p99(metric, by, more=""):
    classic, native = rate(metric + "_bucket", f"{by}, le", more), rate(metric, by, more)
    return f"(histogram_quantile(0.99, {classic}) > 0 or histogram_quantile(0.99, {native}) > 0 or {mean(metric, by, more)})"


def part(name, metric, by, more=""):
    """The rate of the `count` or `sum` of a classic or native histogram."""
    selector = f"{ON}, {more}" if more else ON
    classic, native = (f"rate({one}{{{selector}}}[$__rate_interval])" for one in (f"{metric}_{name}", metric))
    return f"sum by ({by}) ({classic} or histogram_{name}({native}))"


def mean(metric, by, more=""):
    return f"{part('sum', metric, by, more)} / ({part('count', metric, by, more)} > 0)"


def _who():
    columns = {
        "instance": "Instance",
        "pid": "PID",
        "comm": "Process",
        "exe": "Executable",
        "user": "User",
        "rank": "Rank",
        "world_size": "Of",
        "slurm_job": "Slurm job",
        "namespace": "Namespace",
        "pod": "Pod",
        "UUID": "GPU",
    }
    info = f"gpucause_process_info{{{ON}}}"
    # Where the target has labels of the exporter's own pod, Prometheus renames those of the process.
    for name in ("namespace", "pod"):
        info = f'label_replace({info}, "{name}", "$1", "exported_{name}", "(.+)")'
    identity = "job, instance, pid, comm"
    described = ", ".join(name for name in columns if name not in ("instance", "pid", "comm", "UUID"))
    info = (
        f"gpucause_process_gpu_info{{{ON}}} * on ({identity}) group_left ({described}) {info}"
        f" or on ({identity}) {info}"
    )
    return [
        table(
            "Processes",
            "The selected processes, as their hosts report them: one row for each GPU of a process.",
            [query(f"max by ({', '.join(columns)}) ({info})", "process", table=True)],
            columns,
            h=5,
            overrides=[override("/PID|Rank|Of/", unit="none", custom__width=80), override("GPU", custom__width=330)],
        ),
        *account(ON),
    ]


def _launches():
    return [
        timeseries(
            "Launches",
            "Kernel launches per second. Dashed: the usual rate, the median over the last hour.",
            [
                query(f"process:gpucause_launches:rate1m{{{ON}}}", NAME),
                query(f"process:gpucause_launches:past_rate1m{{{ON}}}", NAME + " usual"),
            ],
            unit="ops",
            legend=("lastNotNull",),
            runbooks=["GpucauseUtilisationMisleading"],
            overrides=[dashed("/usual$/")],
        ),
        timeseries(
            "Duration of warm launches",
            "p50 and p99 of launches over a minute, without first launches, which load the kernel.",
            [
                query(f"process:gpucause_launch_duration_seconds:p99_1m{{{ON}}}", NAME + " p99"),
                query(f"process:gpucause_launch_duration_seconds:p50_1m{{{ON}}}", NAME + " p50"),
            ],
            unit="s",
            log=True,
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        timeseries(
            "p99 spread",
            "p99 over p50 of warm launches over a minute. The alert fires above the line.",
            [query(f"process:gpucause_launch_p99_spread:ratio_1m{{{ON}}}", NAME)],
            unit="suffix:x",
            log=True,
            lines=steps("transparent", (8, RED)),
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
    ]


def _latency():
    return [
        heatmap(
            "Duration of $op",
            "Duration of calls by histogram bucket; brighter is more calls. A second band far above the first is a tail with a"
            " cause of its own." + HEATMAP,
            [
                query(
                    f'sum by (le) (increase({CALLS}_bucket{{{ON}, op="$op", cold="false"}}[$__rate_interval]))',
                    "{{le}}",
                    heatmap=True,
                )
            ],
            w=24,
            repeat="op",
            repeatDirection="h",
            maxPerRow=3,
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        heatmap(
            "Time between launches",
            "From one launch's return to the next launch's entry on the same thread. The GPU may idle for this time." + HEATMAP,
            [
                query(
                    f"sum by (le) (increase(gpucause_launch_gap_seconds_bucket{{{ON}}}[$__rate_interval]))",
                    "{{le}}",
                    heatmap=True,
                )
            ],
            w=12,
            scheme="Blues",
            runbooks=["GpucauseDispatcherStarved"],
        ),
        heatmap(
            "Copies",
            "Duration of copies of all directions and sizes, by histogram bucket." + HEATMAP,
            [
                query(
                    f"sum by (le) (increase(gpucause_memcpy_duration_seconds_bucket{{{ON}}}[$__rate_interval]))",
                    "{{le}}",
                    heatmap=True,
                )
            ],
            w=12,
            scheme="Greens",
            runbooks=["GpucauseInefficientProgram"],
        ),
        timeseries(
            "Mean durations",
            "How long warm calls took on average, of the operations with the longest calls, and the time between launches.",
            [
                query(f"topk(8, {mean(CALLS, 'op', WARM)} > 0)", "{{op}}"),
                query(mean("gpucause_launch_gap_seconds", "instance"), "between launches on {{instance}}"),
            ],
            unit="s",
            log=True,
            w=24,
            legend=("mean", "max"),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
    ]


def _stalls():
    return [
        timeseries(
            "Off the CPU inside calls, by reason",
            "Time that dispatcher threads (the threads that call CUDA to feed the GPU) were off the CPU inside of calls, by reason, without waits"
            " for the GPU. 1 s/s is one thread all of the time.",
            [
                query(
                    rate("gpucause_dispatcher_seconds_total", "state", 'phase!~"host|sync", state!="running"') + " > 0",
                    "{{state}}",
                )
            ],
            unit="suffix: s/s",
            stack=True,
            overrides=coloured(REASONS),
            runbooks=["GpucauseDispatcherStarved", "GpucauseLaunchP99SpreadHigh"],
        ),
        timeseries(
            "Calls that stalled",
            "Share of the calls of each operation during which the thread left the CPU.",
            [
                query(
                    f"topk(8, {rate('gpucause_cuda_call_stalled_total', 'op')} /"
                    f" {part('count', CALLS, 'op')} > 0)",
                    "{{op}}",
                )
            ],
            unit="percentunit",
            high=1,
            legend=("mean",),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        timeseries(
            "Oldest call in flight",
            "Age of the oldest call that has not returned, by operation. A call that waits for the GPU may be old, a launch should"
            " not be.",
            [query(f"max by (op) (gpucause_inflight_call_age_seconds{{{ON}}})", "{{op}}")],
            unit="s",
            legend=("lastNotNull", "max"),
            lines=steps("transparent", (10, RED)),
            runbooks=["GpucauseCallHung"],
        ),
        timeseries(
            "Run-queue latency, p99",
            "p99 of the time that runnable threads waited for a CPU, by role: dispatcher threads call CUDA to feed the GPU, helpers are other threads"
            " of the process, workers are threads of its child processes.",
            [query(p99("gpucause_runqueue_latency_seconds", "role"), "{{role}}")],
            unit="s",
            log=True,
            legend=("mean", "max"),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "Off the CPU, by role and reason",
            "Time off the CPU of the threads of each role, by the reason that ended it. sleep and poll are usually idle threads.",
            [
                query(
                    f"topk(10, {part('sum', 'gpucause_offcpu_duration_seconds', 'role, reason', ONE_REASON)} > 0)", "{{role}} {{reason}}"
                )
            ],
            unit="suffix: s/s",
            legend=("mean",),
            runbooks=["GpucauseDataloaderStarvation"],
        ),
        timeseries(
            "Context switches",
            "Context switches per second: voluntary when a thread blocks, involuntary when it is preempted.",
            [query(rate("gpucause_context_switches_total", "role, switch_type"), "{{role}} {{switch_type}}")],
            unit="ops",
            legend=("mean",),
            runbooks=["GpucauseDispatcherStarved"],
        ),
    ]


def _culprits():
    return [
        timeseries(
            "Culprits: tasks that had the CPU",
            "Time per second that dispatcher threads and workers were runnable but had no CPU, by the task that had it.",
            [query(f"topk(8, {rate('gpucause_preempted_by_seconds_total', 'culprit')} > 0)", "{{culprit}}")],
            unit="suffix: s/s",
            w=12,
            stack=True,
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "Holders: threads that ended a wait for a lock",
            "Time per second that dispatcher threads and workers were blocked on locks, by the thread that released them.",
            [query(f"topk(8, {rate('gpucause_blocked_on_seconds_total', 'waker', LOCKS)} > 0)", "{{waker}}")],
            unit="suffix: s/s",
            w=12,
            stack=True,
            runbooks=["GpucauseLockHolder", "GpucauseDataloaderStarvation"],
        ),
        bars(
            "Culprits",
            "The same over the selected time range, in seconds.",
            [
                query(
                    f"topk(8, sum by (culprit) (increase(gpucause_preempted_by_seconds_total{{{ON}}}[$__range])) > 0)",
                    "{{culprit}}",
                    instant=True,
                )
            ],
            unit="s",
            w=8,
            h=7,
            decimals=1,
            thresholds=steps(REASONS["preempted"]),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        bars(
            "Holders",
            "The same over the selected time range, in seconds.",
            [
                query(
                    f'topk(8, sum by (waker) (increase(gpucause_blocked_on_seconds_total{{{ON}, {LOCKS}, waker!~"kernel|other|idle"}}[$__range]))'
                    " > 0)",
                    "{{waker}}",
                    instant=True,
                )
            ],
            unit="s",
            w=8,
            h=7,
            decimals=1,
            thresholds=steps(REASONS["lock"]),
            runbooks=["GpucauseLockHolder"],
        ),
        bars(
            "Other waits",
            "Time blocked on anything but locks over the selected time range, by reason and by the thread that ended the wait.",
            [
                query(
                    f"topk(8, sum by (reason, waker) (increase(gpucause_blocked_on_seconds_total{{{ON},"
                    ' reason!~"lock|kernel_lock|sleep"}[$__range])) > 0)',
                    "{{reason}}: {{waker}}",
                    instant=True,
                )
            ],
            unit="s",
            w=8,
            h=7,
            decimals=1,
            thresholds=steps(REASONS["io"]),
            runbooks=["GpucauseDispatcherStarved"],
        ),
    ]


def _memory():
    return [
        timeseries(
            "Device memory in use",
            "Device memory that each process has allocated and not freed. Growth without an end is a leak.",
            [query(f"gpucause_device_memory_live_bytes{{{ON}}}", NAME)],
            unit="bytes",
            w=6,
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseMemoryLeak"],
        ),
        timeseries(
            "Device memory allocated and freed",
            "Bytes per second. When both are high and alike, the program allocates in each step.",
            [
                query(rate("gpucause_device_memory_allocated_bytes_total", "job"), "allocated"),
                query(rate("gpucause_device_memory_freed_bytes_total", "job"), "freed"),
            ],
            unit="Bps",
            w=6,
            legend=("mean", "max"),
            runbooks=["GpucauseFragmentationPressure", "GpucauseInefficientProgram"],
        ),
        timeseries(
            "Copies, by direction",
            "Bytes per second of successful copies.",
            [query(rate("gpucause_memcpy_bytes_total", "direction") + " > 0", "{{direction}}")],
            unit="Bps",
            w=6,
            stack=True,
            runbooks=["GpucauseInefficientProgram"],
        ),
        timeseries(
            "Duration of copies, p99",
            "p99 of copies, by direction and upper bound of the size in bytes.",
            [query(p99("gpucause_memcpy_duration_seconds", "direction, size"), "{{direction}} up to {{size}} B")],
            unit="s",
            w=6,
            log=True,
            legend=("mean",),
            runbooks=["GpucauseInefficientProgram"],
        ),
    ]


def _programme():
    return [
        timeseries(
            "Kernels, by launches",
            "Launches per second of the most launched kernels.",
            [query(f"topk(8, {rate('gpucause_kernel_launches_total', 'kernel')})", "{{kernel}}")],
            unit="ops",
            stack=True,
            legend=("mean",),
            runbooks=["GpucauseInefficientProgram"],
        ),
        timeseries(
            "Kernels, p99 of their launches",
            "p99 of warm launches of each timed kernel.",
            [query(f"topk(8, {p99('gpucause_kernel_launch_duration_seconds', 'kernel')})", "{{kernel}}")],
            unit="s",
            log=True,
            legend=("mean", "max"),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        timeseries(
            "Timed calls, by operation",
            "Calls per second of the most called operations of the runtime, the driver and NCCL. Untimed launches are not included.",
            [query(f"topk(8, {part('count', CALLS, 'api, op')})", "{{op}} ({{api}})")],
            unit="ops",
            legend=("mean",),
            runbooks=["GpucauseInefficientProgram"],
        ),
        timeseries(
            "Collectives",
            "Bytes per second passed to collectives, sends and receives.",
            [query(rate("gpucause_nccl_bytes_total", "op"), "{{op}}")],
            unit="Bps",
            stack=True,
            runbooks=["GpucauseNcclLateRank"],
        ),
        timeseries(
            "First launches",
            "Timed launches per second that had to load their kernel, which makes them slow.",
            [query(part("count", CALLS, "op", 'cold="true"'), "{{op}}")],
            unit="ops",
            legend=("mean", "max"),
            runbooks=["GpucauseInefficientProgram"],
        ),
        timeseries(
            "Errors",
            "Calls that returned an error in the last five minutes. \"Not ready\" is not counted.",
            [query(f"sum by (op, error) (op:gpucause_cuda_call_errors:increase5m{{{ON}}}) > 0", "{{op}}: {{error}}")],
            unit="short",
            legend=("lastNotNull",),
            runbooks=["GpucauseCudaErrors", "GpucauseFragmentationPressure"],
        ),
    ]


def _host():
    return [
        timeseries(
            "Block I/O, time",
            "Time of the block I/O requests of the process's threads, by device. Parallel requests add up.",
            [query(rate("gpucause_block_io_seconds_total", "device, io_direction"), "{{device}} {{io_direction}}")],
            unit="suffix: s/s",
            w=6,
            legend=("mean",),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "Block I/O, bytes",
            "Bytes per second of these requests.",
            [query(rate("gpucause_block_io_bytes_total", "device, io_direction"), "{{device}} {{io_direction}}")],
            unit="Bps",
            w=6,
            legend=("mean",),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "Host memory allocated",
            "Bytes per second of pages that the kernel allocated to the process's threads.",
            [query(rate("gpucause_page_alloc_bytes_total", "job"), "pages allocated")],
            unit="Bps",
            w=6,
            legend=("mean", "max"),
            runbooks=["GpucauseProcessOomKilled"],
        ),
        timeseries(
            "Page faults",
            "Page faults per second. Minor ones were served from memory, major ones from a disk.",
            [query(rate("gpucause_page_faults_total", "fault_type"), "{{fault_type}}")],
            unit="ops",
            w=6,
            log=True,
            legend=("mean", "max"),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "CPU quota and direct reclaim",
            "Time per second that the cgroup of the process was throttled by its CPU quota, summed over CPUs, and time that its"
            " threads spent in direct reclaim.",
            [
                query(rate("gpucause_cgroup_throttled_seconds_total", "comm, pid"), "throttled {{comm}} {{pid}}"),
                query(rate("gpucause_direct_reclaim_seconds_total", "job") + " > 0", "direct reclaim"),
            ],
            unit="suffix: s/s",
            w=12,
            legend=("mean", "max"),
            runbooks=["GpucauseDispatcherStarved"],
        ),
        timeseries(
            "OOM kills and TCP retransmissions",
            "Processes that the OOM killer killed, and TCP segments that were sent again, per minute.",
            [
                query(f"60 * {rate('gpucause_oom_kills_total', 'job')}", "OOM kills"),
                query(f"60 * {rate('gpucause_tcp_retransmits_total', 'job')}", "retransmissions"),
            ],
            unit="short",
            w=12,
            legend=("mean", "max"),
            runbooks=["GpucauseProcessOomKilled"],
        ),
    ]


def dashboard():
    here = 'gpucause_process_info{instance=~"$instance"'
    variables = [
        instances(),
        variable("comm", "Process", f"label_values({here}}}, comm)", description="Names of processes."),
        variable(
            "pid", "PID", f'label_values({here}, comm=~"$comm"}}, pid)', description="Processes by their PID on the host."
        ),
        variable(
            "op",
            "Operation",
            # The counts of classic histograms, or native ones.
            f'label_values({{__name__=~"{CALLS}_count|{CALLS}", {ON}}}, op)',
            description="Operations with a heatmap of their own.",
            default=["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"],
        ),
    ]
    return make(
        "gpucause-process",
        "gpucause / Process",
        "How long the calls of a process take, why they are late, and which culprits delay them.",
        variables,
        [
            ("Account", _who()),
            ("Launches", _launches()),
            ("Latency", _latency()),
            ("Culprits and holders", _culprits()),
            ("Stalls", _stalls()),
            ("Memory and copies", _memory()),
            ("Kernels and calls", _programme()),
            ("Host", _host()),
        ],
        alerts=["Launches", "Duration of warm launches", "p99 spread"],
    )
