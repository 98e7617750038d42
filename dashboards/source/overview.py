"""The first dashboard to open: what the GPUs report, beside what their hosts do to feed them."""

from account import LOSS, account
from grafana import (
    CAUSES,
    GREEN,
    ORANGE,
    RED,
    SEVERITIES,
    YELLOW,
    absolute,
    bars,
    cell,
    coloured,
    dashboard as make,
    instances,
    override,
    query,
    share_gauge,
    stat,
    steps,
    table,
    timeseries,
    to_process,
    values,
    variable,
)

ON = 'instance=~"$instance"'
LOST = steps(GREEN, (0.02, YELLOW), (0.1, ORANGE), (0.25, RED))
SPREAD = steps(GREEN, (4, YELLOW), (8, RED))
# Exporters name the label of the host in one of two ways.
BY_GPU = "max by (UUID, gpu, Hostname, hostname)"
GPU = "GPU {{gpu}} on {{Hostname}}{{hostname}}"
# GPU utilization from whichever GPU exporter Prometheus scrapes.
BUSY = 'gpu:gpucause_gpu_busy:ratio_avg2m{UUID=~"$gpu"}'


def smi(metric):
    """A metric of nvidia_gpu_exporter with DCGM's labels. Its only label is the UUID without `GPU-`: the first characters of that
    stand for the number, and the target for the host.
    """
    metric = f"max by (uuid, instance) ({metric})"
    for label, value, source, pattern in [
        ("UUID", "GPU-$1", "uuid", "(?:GPU-)?(.+)"),
        ("gpu", "$1", "UUID", "GPU-(.{1,8}).*"),
        ("Hostname", "$1", "instance", "(.+)"),
    ]:
        metric = f'label_replace({metric}, "{label}", "{value}", "{source}", "{pattern}")'
    return metric


def of_dcgm(old, new, to_old_unit=""):
    """A field of DCGM under the name that it had before 4.7, or else under its new one."""
    selector = '{UUID=~"$gpu"}'
    return f"DCGM_FI_DEV_{old}{selector} or on (UUID, instance) DCGM_FI_DEV_{new}{selector}{to_old_unit}"


def by_gpu(dcgm, of_smi):
    """A metric of DCGM, or of nvidia_gpu_exporter for GPUs that DCGM does not report."""
    return f"{BY_GPU} ({dcgm}) or on (UUID) {BY_GPU} ({smi(of_smi)} and on (UUID) {BUSY})"


def named(of_gpu):
    """A recorded series by GPU, whose only label is the UUID, with number and host."""
    names = f"DCGM_FI_DEV_GPU_UTIL ^ 0 or on (UUID) DCGM_FI_DEV_GPU_UTIL_RATIO ^ 0 or on (UUID) {smi('nvidia_smi_utilization_gpu_ratio')} ^ 0"
    return f"{of_gpu} * on (UUID) group_left (gpu, Hostname, hostname) topk by (UUID) (1, {names})"


def _state():
    return [
        stat(
            "GPU utilization (nvidia-smi / DCGM)",
            "As nvidia-smi and DCGM report it: average over two minutes of the share of time in which any kernel ran, however small."
            " It stays high when launches are late.",
            [query(f"avg({BUSY})", "utilization")],
            unit="percentunit",
            decimals=0,
            runbooks=["GpucauseUtilisationMisleading"],
        ),
        stat(
            "Launches",
            "Kernel launches per second of all processes, averaged over a minute.",
            [query(f"sum(instance:gpucause_launches:rate1m{{{ON}}})", "launches")],
            unit="ops",
        ),
        stat(
            "Worst p99 spread",
            "p99 over p50 of warm launches, of the process where it is largest.",
            [query(f"max(process:gpucause_launch_p99_spread:ratio_1m{{{ON}}})", "spread")],
            unit="suffix:x",
            decimals=1,
            thresholds=SPREAD,
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        stat(
            "Worst lost time",
            "Share of the last minute that dispatcher threads (the threads that call CUDA to feed the GPU) lost on the host, of the process where it"
            " is largest.",
            [query(f"max(process:gpucause_dispatcher_lost:ratio_rate1m{{{ON}}})", "lost")],
            unit="percentunit",
            decimals=0,
            thresholds=LOST,
            runbooks=["GpucauseDispatcherStarved"],
        ),
        stat(
            "Processes losing time",
            "Processes whose dispatcher threads lost more than 2 % of the last minute to proven causes.",
            [query(f"count(process:gpucause_proven_loss:ratio_rate1m{{{ON}}} > 0.02) or vector(0)", "processes")],
            unit="short",
            decimals=0,
            thresholds=steps(GREEN, (1, ORANGE)),
        ),
        stat(
            "Alerts firing",
            "Alerts of gpucause that are firing, on all hosts.",
            [query('count(ALERTS{alertname=~"Gpucause.*", alertstate="firing"}) or vector(0)', "alerts")],
            unit="short",
            decimals=0,
            thresholds=steps(GREEN, (1, RED)),
        ),
    ]


def _cause_side():
    return [
        timeseries(
            "GPU utilization (nvidia-smi / DCGM)",
            "Utilization of each GPU, averaged over two minutes: DCGM_FI_DEV_GPU_UTIL of dcgm-exporter or of this exporter's page, or"
            " that of nvidia_gpu_exporter. Compare it with the panels beside it: a busy GPU that gets fewer launches is starved.",
            [query(named(BUSY), GPU)],
            unit="percentunit",
            high=1,
            legend=("mean", "lastNotNull"),
            runbooks=["GpucauseUtilisationMisleading"],
        ),
        timeseries(
            "Launch p99 spread",
            "p99 over p50 of the warm launches of each process, over a minute. 1 is no tail; the alert fires above the line.",
            [query(f"process:gpucause_launch_p99_spread:ratio_1m{{{ON}}}", "{{comm}} {{pid}}")],
            unit="suffix:x",
            log=True,
            lines=steps("transparent", (8, RED)),
            legend=("mean", "max"),
            runbooks=["GpucauseLaunchP99SpreadHigh"],
        ),
        timeseries(
            "Launches",
            "Kernel launches per second of each process.",
            [query(f"process:gpucause_launches:rate1m{{{ON}}}", "{{comm}} {{pid}}")],
            unit="ops",
            legend=("mean", "lastNotNull"),
            runbooks=["GpucauseUtilisationMisleading"],
        ),
        *account(ON),
    ]


def _chains():
    severities = values({name: (name, colour) for name, colour in SEVERITIES.items()})
    chain_columns = {
        "instance": "Instance",
        "pid": "PID",
        "comm": "Process",
        "cause": "Cause",
        "effect": "Effect",
        "severity": "Severity",
        "Value #A": "Chains",
        "Value #B": "Taken",
        "Value #C": "Lost",
    }
    chain = f"max by (instance, pid, comm, cause, effect, severity) (gpucause_causal_chains_total{{{ON}}})"

    def time(metric):
        return f"{chain} ^ 0 * on (instance, pid, comm, cause) group_left () max by (instance, pid, comm, cause) ({metric}{{{ON}}})"

    return [
        table(
            "Causal chains",
            "Causal chains since the exporter started: a cause that was proven on the threads of the process (the victim), its effect,"
            " the time that the cause took, and the part of it that was lost. `gpucause explain` reports evidence, culprit and fix.",
            [
                query(chain, "chains", table=True),
                query(time("gpucause_causal_chain_seconds_total"), "taken", table=True),
                query(time("gpucause_stall_seconds_total"), "lost", table=True),
            ],
            chain_columns,
            w=14,
            h=11,
            sort="Taken",
            overrides=[
                override("Severity", mappings=[severities], custom__cellOptions=cell("color-background", mode="basic")),
                to_process(),
                override("Chains", decimals=0, custom__width=80),
                override("/Taken|Lost/", unit="s", decimals=1, custom__width=90),
            ],
            runbooks=LOSS,
        ),
        bars(
            "Total time taken by each cause",
            "Time of dispatcher threads that causal chains attribute to a cause, lost or not, over the selected time range.",
            [
                query(
                    f"sort_desc(sum by (cause) (increase(gpucause_causal_chain_seconds_total{{{ON}}}[$__range])) > 0)",
                    "{{cause}}",
                    instant=True,
                )
            ],
            unit="s",
            w=10,
            h=11,
            decimals=1,
            overrides=coloured(CAUSES),
            runbooks=["GpucauseDispatcherStarved", "GpucauseInefficientProgram", "GpucauseHostCode"],
        ),
    ]


def _processes():
    columns = {
        "instance": "Instance",
        "pid": "PID",
        "comm": "Process",
        "Value #A": "Launches",
        "Value #B": "p50",
        "Value #C": "p99",
        "Value #D": "Spread",
        "Value #E": "Lost",
        "Value #F": "Lost, cause proven",
        "Value #G": "GPU busy",
    }
    by = "max by (instance, pid, comm)"
    return [
        table(
            "Processes",
            "The last minute of each process that feeds a GPU. The PID links to its dashboard.",
            [
                query(f"{by} (process:gpucause_launches:rate1m{{{ON}}})", "launches", table=True),
                query(f"{by} (process:gpucause_launch_duration_seconds:p50_1m{{{ON}}})", "p50", table=True),
                query(f"{by} (process:gpucause_launch_duration_seconds:p99_1m{{{ON}}})", "p99", table=True),
                query(f"{by} (process:gpucause_launch_p99_spread:ratio_1m{{{ON}}})", "spread", table=True),
                query(f"{by} (process:gpucause_dispatcher_lost:ratio_rate1m{{{ON}}})", "lost", table=True),
                query(f"{by} (process:gpucause_proven_loss:ratio_rate1m{{{ON}}})", "proven", table=True),
                query(f"{by} (process:gpucause_gpu_busy:ratio_avg2m{{{ON}}})", "GPU busy", table=True),
            ],
            columns,
            h=8,
            sort="Lost",
            overrides=[
                to_process(),
                override("Launches", unit="ops", decimals=0),
                override("/p50|p99/", unit="s"),
                override(
                    "Spread",
                    unit="suffix:x",
                    decimals=1,
                    thresholds=absolute(SPREAD),
                    custom__cellOptions=cell("color-text"),
                ),
                share_gauge("/Lost.*/", thresholds=absolute(LOST)),
                override("GPU busy", unit="percentunit", decimals=0),
            ],
            runbooks=["GpucauseDispatcherStarved", "GpucauseLaunchP99SpreadHigh"],
        ),
    ]


def _gpus():
    gpu = 'UUID=~"$gpu"'
    return [
        timeseries(
            "Utilization beyond launches",
            "GPU utilization minus the launch rate of the process as a share of its usual rate. High: the GPU reports busy, but gets"
            " fewer launches than usual.",
            [query(f"clamp_min(process:gpucause_utilisation_gap:ratio{{{ON}}}, 0)", "{{comm}} {{pid}}")],
            unit="percentunit",
            high=1,
            w=6,
            lines=steps("transparent", (0.3, RED)),
            legend=("lastNotNull",),
            runbooks=["GpucauseUtilisationMisleading"],
        ),
        timeseries(
            "Throttled",
            "Share of two minutes in which heat, power or a fault lowered the clock of a GPU. Needs DCGM's field of clock reasons,"
            " which this exporter's page has and dcgm-exporter omits by default.",
            [query(named(f"gpu:gpucause_gpu_throttled:ratio_avg2m{{{gpu}}}"), GPU)],
            unit="percentunit",
            high=1,
            w=6,
            lines=steps("transparent", (0.5, RED)),
            legend=("lastNotNull",),
            runbooks=["GpucauseGpuThrottled"],
        ),
        timeseries(
            "Memory in use",
            "Device memory of each GPU that all processes use.",
            # Both in MiB.
            [query(by_gpu(of_dcgm("FB_USED", "FB_USED_BYTES", " / 1048576"), "nvidia_smi_memory_used_bytes / 1048576"), GPU)],
            unit="mbytes",
            w=6,
            legend=("lastNotNull",),
            runbooks=["GpucauseMemoryLeak"],
        ),
        timeseries(
            "Power",
            "Power draw of each GPU. A GPU that spins in a collective reports 100 % utilization but draws little.",
            [query(by_gpu(of_dcgm("POWER_USAGE", "BOARD_POWER_WATTS"), "nvidia_smi_power_draw_watts"), GPU)],
            unit="watt",
            w=6,
            legend=("lastNotNull",),
            runbooks=["GpucauseGpuThrottled"],
        ),
    ]


def dashboard():
    variables = [
        instances(),
        variable(
            "gpu",
            "GPU",
            "label_values(gpu:gpucause_gpu_busy:ratio_avg2m, UUID)",
            description="GPUs by UUID, of DCGM or of nvidia_gpu_exporter.",
        ),
    ]
    return make(
        "gpucause-overview",
        "gpucause / Overview",
        "What the GPUs report, beside what their hosts do to feed them.",
        variables,
        [
            ("Now", _state()),
            ("GPUs and their hosts", _cause_side()),
            ("Causes", _chains() + _processes()),
            ("GPUs", _gpus()),
        ],
        alerts=["GPU utilization (nvidia-smi / DCGM)", "Launch p99 spread", "Launches"],
    )
