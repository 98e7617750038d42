"""The exporter itself: coverage, cost and limits."""

from grafana import (
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    bars,
    cell,
    dashboard as make,
    instances,
    override,
    query,
    rate,
    stat,
    states,
    steps,
    table,
    timeseries,
    values,
)

ON = 'instance=~"$instance"'
# Selects process metrics of the exporter, whatever the scrape job is called.
OURS = f"and on (job, instance) gpucause_build_info{{{ON}}}"
AT = "{{instance}}"
# kernel_hists fills up by design: it keeps the most launched kernels.
NOT_BY_DESIGN = 'map!="kernel_hists"'


def fill(*matchers):
    """Share of the entries that a map can hold."""
    return f"gpucause_map_entries{{{', '.join(matchers)}}} / (gpucause_map_capacity > 0)"


def _state():
    return [
        stat(
            "Exporters down",
            "Exporters that answered within the last day, but not the last scrape.",
            [
                query(
                    f"count(up{{{ON}}} == 0 and on (job, instance) last_over_time(gpucause_build_info{{{ON}}}[1d])) or"
                    " vector(0)",
                    "down",
                )
            ],
            unit="short",
            decimals=0,
            w=3,
            thresholds=steps(GREEN, (1, RED)),
            runbooks=["GpucauseExporterDown"],
        ),
        stat(
            "Processes observed",
            "Live processes that make CUDA calls.",
            [query(f"sum(gpucause_processes_observed{{{ON}}})", "processes")],
            unit="short",
            decimals=0,
            w=3,
        ),
        stat(
            "Probes not working",
            "Probes and libraries that are broken or silent; their metrics are missing.",
            [query(f'count(gpucause_probe_status{{{ON}, verdict=~"broken|silent"}}) or vector(0)', "probes")],
            unit="short",
            decimals=0,
            w=4,
            thresholds=steps(GREEN, (1, RED)),
            runbooks=["GpucauseProbesBroken"],
        ),
        stat(
            "CPU",
            "CPU time of the exporter where it is largest, as a share of one CPU. The cost of probes is not included: they run in the"
            " observed programs.",
            [query(f"max(rate(process_cpu_seconds_total{{{ON}}}[$__rate_interval]) {OURS})", "CPU")],
            unit="percentunit",
            decimals=2,
            w=4,
            thresholds=steps(GREEN, (0.05, YELLOW), (0.2, RED)),
        ),
        stat(
            "Memory",
            "Resident memory of the exporter where it is largest.",
            [query(f"max(process_resident_memory_bytes{{{ON}}} {OURS})", "memory")],
            unit="bytes",
            decimals=0,
            w=3,
            thresholds=steps(GREEN, (256 << 20, YELLOW), (1 << 30, RED)),
        ),
        stat(
            "Fullest map",
            "Fill of the fullest kernel map, without kernel_hists, which fills up by design.",
            [query(f"max({fill(ON, NOT_BY_DESIGN)})", "map")],
            unit="percentunit",
            decimals=0,
            w=3,
            thresholds=steps(GREEN, (0.7, YELLOW), (0.9, RED)),
            runbooks=["GpucauseMapFull"],
        ),
        stat(
            "Updates refused",
            "Updates that full kernel maps refused over the selected time range, without kernel_hists. They are not counted in any"
            " metric.",
            [query(f"sum(increase(gpucause_map_full_total{{{ON}, {NOT_BY_DESIGN}}}[$__range]))", "updates", instant=True)],
            unit="short",
            decimals=0,
            w=4,
            spark=False,
            thresholds=steps(GREEN, (1, RED)),
            runbooks=["GpucauseMapFull"],
        ),
    ]


def _inventory():
    verdicts = {"broken": ("broken", RED), "silent": ("silent", RED), "unsupported": ("unsupported", ORANGE)}
    return [
        table(
            "Exporters",
            "Version, build and start time of each exporter.",
            [
                query(
                    f"max by (instance, version, revision, rustversion, arch) (gpucause_build_info{{{ON}}})",
                    "build",
                    table=True,
                ),
                query(f"max by (instance) (1000 * process_start_time_seconds{{{ON}}} {OURS})", "since", table=True),
                query(f"max by (instance) (gpucause_config_last_reload_successful{{{ON}}})", "configuration", table=True),
            ],
            {
                "instance": "Instance",
                "version": "Version",
                "revision": "Revision",
                "rustversion": "Rust",
                "arch": "Architecture",
                "Value #B": "Runs since",
                "Value #C": "Configuration",
            },
            w=12,
            h=8,
            runbooks=["GpucauseConfigRejected", "GpucauseExporterDown"],
            overrides=[
                override("Runs since", unit="dateTimeAsIso"),
                override(
                    "Configuration",
                    mappings=[values({1: ("in effect", GREEN), 0: ("rejected", RED)})],
                    custom__cellOptions=cell("color-text"),
                ),
            ],
        ),
        table(
            "Probes",
            "State of each probe and library. unsupported: this kernel lacks the feature.",
            [query(f"max by (instance, probe, library, verdict) (gpucause_probe_status{{{ON}}})", "probe", table=True)],
            {"instance": "Instance", "probe": "Probe", "library": "Library", "verdict": "Verdict"},
            w=12,
            h=8,
            runbooks=["GpucauseProbesBroken"],
            overrides=[
                override(
                    "Verdict",
                    mappings=[values({"ok": ("ok", GREEN), "attached": ("attached", GREEN)} | verdicts)],
                    custom__cellOptions=cell("color-text"),
                    custom__width=120,
                )
            ],
        ),
    ]


def _cost():
    return [
        timeseries(
            "CPU of the exporter",
            "User and system CPU time, as a share of one CPU.",
            [query(f"rate(process_cpu_seconds_total{{{ON}}}[$__rate_interval]) {OURS}", AT)],
            unit="percentunit",
            runbooks=["GpucauseProbesOverBudget"],
        ),
        timeseries(
            "Memory of the exporter",
            "Resident memory of the exporter, without its kernel maps.",
            [query(f"process_resident_memory_bytes{{{ON}}} {OURS}", AT)],
            unit="bytes",
            legend=("lastNotNull", "max"),
        ),
        timeseries(
            "Time of the collectors",
            "Duration of each collector in the last scrape.",
            [query(f"topk(8, max by (collector) (gpucause_scrape_collector_duration_seconds{{{ON}}}))", "{{collector}}")],
            unit="s",
            legend=("mean", "max"),
            runbooks=["GpucauseCollectorFailed"],
        ),
        timeseries(
            "Probe hits",
            "Runs per second of each kernel program.",
            [query(f"topk(8, {rate('gpucause_probe_hits_total', 'probe', ON)})", "{{probe}}")],
            unit="ops",
            log=True,
            w=12,
            legend=("mean",),
            runbooks=["GpucauseProbesOverBudget"],
        ),
        timeseries(
            "Cost of the probes",
            "CPU time that probes took from the observed programs of each host, as a share of one CPU, over five minutes.",
            [query(f"instance:gpucause_probe_cost:rate5m{{{ON}}}", AT)],
            unit="percentunit",
            w=12,
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseProbesOverBudget"],
        ),
        timeseries(
            "Cost of the probes, by program",
            "The same by kernel program, summed over hosts. call runs in each CUDA call, the others in the scheduler and other parts of"
            " the kernel.",
            [query(rate("gpucause_probe_cost_seconds_total", "probe", ON), "{{probe}}")],
            unit="percentunit",
            legend=("mean", "max"),
            runbooks=["GpucauseProbesOverBudget"],
        ),
        timeseries(
            "Cost of a hit",
            "Cost of one probe hit to the program, measured at the start of the exporter.",
            [query(f"gpucause_probe_hit_cost_seconds{{{ON}}}", "{{probe}}, " + AT)],
            unit="s",
            legend=("lastNotNull",),
            runbooks=["GpucauseProbesOverBudget"],
        ),
        timeseries(
            "Launches timed",
            "Share of the launches of a process that are timed. Below 100 %, timing all of them would exceed the probe budget."
            " All launches that are seen are counted; durations and gaps are those of the timed ones.",
            [query(f"process:gpucause_launches_timed:ratio_rate1m{{{ON}}}", "{{comm}} {{pid}}, " + AT)],
            unit="percentunit",
            legend=("lastNotNull", "min"),
            runbooks=["GpucauseProbesOverBudget", "GpucauseProbesDisabled"],
        ),
    ]


def _coverage():
    collector = values({1: ("succeeded", "#2F6B3A"), 0: ("failed", RED)})
    return [
        timeseries(
            "Dropped events",
            "Events per second that were dropped or never arrived, by reason, and calls that never returned.",
            [
                query(rate("gpucause_events_dropped_total", "reason", ON), "{{reason}}"),
                query(f"sum(rate(gpucause_calls_abandoned_total{{{ON}}}[$__rate_interval]))", "calls that never returned"),
            ],
            unit="ops",
            w=12,
            h=9,
            legend=("mean", "max"),
            runbooks=["GpucauseProbesBroken"],
        ),
        bars(
            "Attach delay of libraries",
            "Time from the mapping of a library to the attach of its probes, the longest ones. Calls in this time are not counted.",
            [query(f"topk(8, max by (library) (gpucause_library_attach_gap_seconds{{{ON}}}))", "{{library}}", instant=True)],
            unit="s",
            w=12,
            h=9,
            thresholds=steps(GREEN, (0.2, YELLOW), (1, RED)),
            runbooks=["GpucauseProbesBroken"],
        ),
        states(
            "Collectors",
            "Whether each collector succeeded in each scrape.",
            [query(f"min by (collector) (gpucause_scrape_collector_success{{{ON}}})", "{{collector}}")],
            mappings=[collector],
            w=12,
            h=9,
            runbooks=["GpucauseCollectorFailed"],
        ),
        timeseries(
            "Sources of GPU metrics",
            "Age of the last sample of the NVIDIA driver, or of the last page of dcgm-exporter.",
            [
                query(f"gpucause_nvml_sample_age_seconds{{{ON}}}", "driver, {{instance}}"),
                query(f"gpucause_dcgm_page_age_seconds{{{ON}}}", "dcgm-exporter, {{instance}}"),
            ],
            unit="s",
            w=12,
            h=9,
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseDcgmUnreachable"],
        ),
    ]


def _limits():
    return [
        bars(
            "Fill of the maps",
            "Fill of each kernel map, of the exporter where it is fullest.",
            [query(f"topk(16, max by (map) ({fill(ON)}))", "{{map}}", instant=True)],
            unit="percentunit",
            high=1,
            h=10,
            thresholds=steps(GREEN, (0.7, YELLOW), (0.9, RED)),
            decimals=1,
            runbooks=["GpucauseMapFull"],
        ),
        timeseries(
            "Updates refused",
            "Updates per second that a full kernel map refused.",
            [query(rate("gpucause_map_full_total", "map", ON), "{{map}}")],
            unit="ops",
            h=10,
            legend=("max",),
            runbooks=["GpucauseMapFull"],
        ),
        timeseries(
            "Series",
            "Samples per scrape, and processes and names that cardinality limits aggregated into \"other\".",
            [
                query(f"scrape_samples_scraped{{{ON}}} {OURS}", "samples, " + AT),
                query(f"gpucause_processes_folded_total{{{ON}}}", "processes aggregated, " + AT),
                query(f"gpucause_label_overflow_total{{{ON}}}", "others of {{metric}}, " + AT),
                query(f"gpucause_scrape_series{{{ON}}}", "series of {{collector}}, " + AT),
            ],
            unit="short",
            h=10,
            legend=("lastNotNull",),
            runbooks=["GpucauseSeriesFolded"],
        ),
        timeseries(
            "Processes",
            "Live processes that are observed, and those that the configuration excludes.",
            [
                query(f"gpucause_processes_observed{{{ON}}}", "observed, " + AT),
                query(f"gpucause_processes_excluded{{{ON}}}", "excluded, " + AT),
            ],
            unit="short",
            decimals=0,
            w=12,
            legend=("lastNotNull", "max"),
            runbooks=["GpucauseSeriesFolded"],
        ),
        timeseries(
            "Scrapes",
            "Duration of a scrape, measured by Prometheus.",
            [query(f"scrape_duration_seconds{{{ON}}} {OURS}", AT)],
            unit="s",
            w=12,
            legend=("mean", "max"),
            runbooks=["GpucauseExporterDown"],
        ),
    ]


def dashboard():
    return make(
        "gpucause-exporter",
        "gpucause / Exporter",
        "The exporter itself: coverage, cost and limits.",
        [instances()],
        [("Now", _state() + _inventory()), ("Coverage", _coverage()), ("Cost", _cost()), ("Limits", _limits())],
    )
