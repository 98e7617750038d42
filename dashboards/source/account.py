"""Panels that more than one dashboard has: where the time of the dispatcher threads goes, and what takes it."""

from grafana import CAUSES, GREEN, REASONS, coloured, query, timeseries

SECONDS = "gpucause_dispatcher_seconds_total"
# Running and waiting for the GPU are healthy and have calm colours; lost states have the colour of their reason.
HEALTHY = {
    "GPU works": "#2F6B3A",
    "running: host": "#9FC5A8",
    "running: launch": GREEN,
    "running: memcpy": "#56A64B",
    "running: other calls": "#C8DCC9",
}

# Runbooks of the causes that take time.
LOSS = ["GpucauseDispatcherStarved", "GpucauseLockHolder", "GpucauseDataloaderStarvation", "GpucauseInefficientProgram", "GpucauseHostCode"]


def account(selector):
    """Where the time goes, and beside it what takes it."""
    return [_time_account(selector, w=12, h=10), taken_by_cause(selector, w=12, h=10, runbooks=LOSS)]


def _time_account(selector, *, w, h):
    """All time of dispatcher threads, stacked to 100 %."""

    def share(inner):
        return f"({inner}) / scalar(sum(rate({SECONDS}{{{selector}}}[$__rate_interval])))"

    def seconds(more):
        return f"rate({SECONDS}{{{selector}, {more}}}[$__rate_interval])"

    targets = [
        query(share("sum(" + seconds('phase="sync", state!="runqueue"') + ")"), "GPU works"),
        query(share("sum by (phase) (" + seconds('phase=~"host|launch|memcpy", state="running"') + ")"), "running: {{phase}}"),
        query(share("sum(" + seconds('phase!~"host|launch|memcpy|sync", state="running"') + ")"), "running: other calls"),
        query(
            share(
                "sum by (state) ("
                + seconds('phase!="sync", state!="running"')
                + " or "
                + seconds('phase="sync", state="runqueue"')
                + ")"
            ),
            "{{state}}",
        ),
    ]
    return timeseries(
        "Where the time of dispatcher threads goes",
        """All wall time of dispatcher threads (the threads that call CUDA to feed the GPU), stacked to 100 %. Green is healthy: running, or
        synchronising while the GPU works. Time in preempted, runqueue, lock, kernel_lock, io and page_fault is lost, except inside of a
        synchronise, where only runqueue is.""",
        targets,
        unit="percentunit",
        w=w,
        h=h,
        stack=True,
        high=1,
        decimals=1,
        legend=("mean",),
        overrides=coloured(HEALTHY | REASONS),
        runbooks=["GpucauseDispatcherStarved", "GpucauseLockHolder"],
    )


def taken_by_cause(selector, *, w, h, runbooks, only=""):
    """Time that chains attribute to causes; `only` restricts the series."""
    return timeseries(
        "Time taken by each cause",
        """Time of dispatcher threads (the threads that call CUDA to feed the GPU) that causal chains attribute to a cause, lost or not, summed
        over processes. 1 s/s is one thread all of the time.""",
        [query(f"sum by (cause) (cause:gpucause_attributed:rate1m{{{selector}}}{only}) > 0", "{{cause}}")],
        unit="suffix: s/s",
        w=w,
        h=h,
        stack=True,
        legend=("mean", "max"),
        overrides=coloured(CAUSES),
        runbooks=runbooks,
    )
