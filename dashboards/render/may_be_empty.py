"""Queries that may have no answer although all is well, by dashboard, panel and legend, and why."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "source"))
import levels  # noqa: E402, it lies beside the sources of the dashboards

NEVER_HERE = "nothing of the kind happens while the picture is taken"
IDLE = "no GPU is idle for a quarter of an hour"
REASONS = {
    ("gpucause-exporter", "Sources of GPU metrics", "dcgm-exporter, {{instance}}"): "the driver is asked, not dcgm-exporter",
    ("gpucause-process", "CPU quota and direct reclaim", "direct reclaim"): NEVER_HERE,
    ("gpucause-cost", "Idle GPU hours", "idle"): IDLE,
    ("gpucause-cost", "Price of idle GPUs", "{{currency}}"): IDLE,
    ("gpucause-cost", "Price an hour", "idle GPUs, {{currency}}"): IDLE,
    ("gpucause-cost", "Owners", "idle"): IDLE,
    ("gpucause-cost", "Owners", "price of idle"): IDLE,
    ("gpucause-cost", "Idle GPUs", "{{namespace}} {{user}} {{comm}}"): IDLE,
    ("gpucause-cost", "Holders of idle GPUs", "share"): IDLE,
    ("gpucause-cost", "Holders of idle GPUs", "price"): IDLE,
}
# Variables without a value, by dashboard and name: all holds, as in Grafana.
VARIABLES = {
    ("gpucause-fleet", "slurm_job"): "no Slurm here",
    ("gpucause-cost", "slurm_job"): "no Slurm here",
    ("gpucause-cost", "namespace"): "no Kubernetes here",
}


def reason(where, panel, expr, level, native):
    """Why the query of a panel may have no answer, at a level of the exporter, with native histograms alone or without; None if it
    must have one.
    """
    if panel["type"] == "heatmap" and native:
        return "heatmaps need classic buckets"
    # Other panels show means where there are no buckets.
    if panel["type"] == "heatmap" and level != "full" and levels.needs_full_buckets(expr):
        return "its buckets need the level full"
    if level != "full" and levels.needs_full(expr):
        return "it needs the level full"
    return REASONS.get(where)
