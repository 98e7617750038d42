"""Queries that may have no answer although all is well, by dashboard, panel and legend, and why."""

NEVER_HERE = "nothing of the kind happens while the picture is taken"
REASONS = {
    ("gpucause-exporter", "Sources of GPU metrics", "dcgm-exporter, {{instance}}"): "the driver is asked, not dcgm-exporter",
    ("gpucause-process", "CPU quota and direct reclaim", "direct reclaim"): NEVER_HERE,
}
# Variables without a value, by dashboard and name: all holds, as in Grafana.
VARIABLES = {("gpucause-fleet", "slurm_job"): "no Slurm here"}
