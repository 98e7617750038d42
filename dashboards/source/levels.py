"""Notes on panels that need more than the default level of the exporter's page, by the table in exporter/METRICS.md."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "exporter" / "METRICS.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (\w+) \|", re.MULTILINE)
NAME = re.compile(r"\bgpucause_\w+\b")
# The histograms that have classic buckets at the default level.
TAILS = {"gpucause_launch_duration_seconds", "gpucause_offcpu_duration_seconds"}

LEVELS = {name: level for name, _, level in ROW.findall(PAGE.read_text())}


def _metric(name):
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in LEVELS else name


def needs_full(expr):
    """Returns true if the query reads metrics that only the level full has."""
    return any(LEVELS.get(_metric(name)) == "full" for name in NAME.findall(expr))


def needs_full_buckets(expr):
    """Returns true if the query reads classic buckets that only the level full has."""
    buckets = [name for name in NAME.findall(expr) if name.endswith("_bucket") and _metric(name) not in TAILS]
    return any(name in LEVELS or _metric(name) in LEVELS for name in buckets)


def _note(panel):
    """A sentence for the panel's description; empty where the default level is enough."""
    exprs = [target["expr"] for target in panel["targets"]]
    if any(needs_full(expr) for expr in exprs):
        return " Needs metrics.level: full in the exporter's configuration."
    if not any(needs_full_buckets(expr) for expr in exprs):
        return ""
    if panel["type"] == "heatmap":
        return " Classic buckets need metrics.level: full in the exporter's configuration; Mean durations shows means without them."
    return " Without classic buckets (metrics.level: full) and native histograms it shows the mean."


def _when_empty(panel):
    """Returns the text that the panel shows in place of `No data`; None where the default level is enough for a part of it."""
    exprs = [target["expr"] for target in panel["targets"]]
    if all(needs_full(expr) for expr in exprs):
        return "No data (only with metrics.level: full)"
    if panel["type"] == "heatmap" and all(needs_full_buckets(expr) for expr in exprs):
        return "No data (only with classic buckets and metrics.level: full)"
    return None


def noted(panel):
    """The panel with what it needs in its description, and in place of data."""
    if panel["type"] == "row":
        return panel
    noted = dict(panel, description=panel["description"] + _note(panel))
    if text := _when_empty(panel):
        noted["fieldConfig"]["defaults"]["noValue"] = text
    return noted
