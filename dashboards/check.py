#!/usr/bin/env python3
"""Checks in seconds and without a server that the dashboards are sound: their JSON, queries, variables, layout and links.

exporter/tests/offline/alerting tests, together with the rules, that the dashboards query only series that exist.
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# $1 is a group of label_replace, and no variable of Grafana.
USE = re.compile(r"\$((?!\d)\w+)|\$\{(\w+)[^}]*\}")
# Grafana's own.
BUILT_IN = {"__rate_interval", "__interval", "__range", "__data", "__url_time_range", "__all"}
CORE = {"row", "timeseries", "stat", "bargauge", "heatmap", "table", "state-timeline"}


def strings(value):
    """Every text in a part of a dashboard."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


class Dashboard:
    """One file, and its parts."""

    def __init__(self, path):
        self.path, self.json = path, json.loads(path.read_text())
        self.uid = self.json["uid"]
        self.variables = {one["name"] for one in self.json["templating"]["list"]}
        self.panels = [panel for panel in self.json["panels"] if panel["type"] != "row"]

    def exprs(self):
        """Where each query is, and the query."""
        for panel in self.panels:
            for target in panel["targets"]:
                yield f'{self.uid}: {panel["title"]} {target["refId"]}', target["expr"]
        for one in self.json["annotations"]["list"]:
            yield f'{self.uid}: annotation {one["name"]}', one["expr"]


def alerts():
    """URLs of each alert, by its name: runbook, and those of dashboards."""
    found = {}
    for path in sorted((ROOT / "alerts").glob("*.yaml")):
        name = None
        for line in path.read_text().splitlines():
            if match := re.match(r"\s*- alert: (\w+)", line):
                name = match[1]
            elif match := re.match(r"\s*(runbook_url|dashboard_url): (\S.*)", line):
                found.setdefault(name, {}).setdefault(match[1], set()).add(match[2])
    return found


def each_is_what_its_source_makes(_):
    done = subprocess.run([sys.executable, HERE / "source" / "build.py", "--check"], capture_output=True, text=True)
    if done.returncode:
        yield done.stderr.strip()


def uids_and_ids_are_unique(dashboards):
    uids = [one.uid for one in dashboards]
    if len(set(uids)) != len(uids):
        yield f"the same UID twice: {uids}"
    for one in dashboards:
        ids = [panel["id"] for panel in one.json["panels"]]
        if len(set(ids)) != len(ids):
            yield f"{one.uid}: the same panel ID twice"
        if one.path.stem != one.uid:
            yield f"{one.path.name} has the UID {one.uid}"


def every_panel_says_what_it_shows(dashboards):
    for one in dashboards:
        for panel in one.panels:
            where = f'{one.uid}: {panel["title"]}'
            if panel["type"] not in CORE:
                yield f'{where}: {panel["type"]} is no panel that every Grafana has'
            if not panel["title"] or len(panel["description"]) < 20 or not panel["description"].endswith("."):
                yield f"{where}: has no title or no description"
            defaults = panel["fieldConfig"]["defaults"]
            if not (defaults.get("unit") or panel["options"].get("yAxis", {}).get("unit")):
                yield f"{where}: has no unit"
            if panel["datasource"]["uid"] != "${datasource}":
                yield f"{where}: has a data source of its own"
            for target in panel["targets"]:
                if not target["legendFormat"]:
                    yield f'{where} {target["refId"]}: has no legend'


def no_panel_lies_on_another(dashboards):
    for one in dashboards:
        for panel in one.json["panels"]:
            place = panel["gridPos"]
            if place["x"] < 0 or place["x"] + place["w"] > 24 or min(place["w"], place["h"]) < 1:
                yield f'{one.uid}: {panel["title"]} does not lie in the grid'
            # A panel that is repeated fills its line.
            if panel.get("repeat") and (place["w"] != 24 or panel["repeat"] not in one.variables):
                yield f'{one.uid}: {panel["title"]} cannot be repeated here'
        for first, second in itertools.combinations(one.json["panels"], 2):
            a, b = first["gridPos"], second["gridPos"]
            if a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]:
                yield f'{one.uid}: {first["title"]} and {second["title"]} lie on each other'


def only_variables_that_exist_are_used(dashboards):
    for one in dashboards:
        for text in strings(one.json):
            for match in USE.finditer(text):
                name = (match[1] or match[2]).split(":")[0].split(".")[0]
                if name not in one.variables | BUILT_IN:
                    yield f"{one.uid}: no variable {name}, in {text}"


def every_query_parses(dashboards):
    """All of them as one file of rules, which promtool reads as Prometheus does."""
    lines, where = ["groups:", "  - name: dashboards", "    rules:"], []
    for one in dashboards:
        for place, expr in one.exprs():
            filled = USE.sub(lambda match: "1m" if (match[1] or match[2]).startswith("__") else "x", expr)
            lines += [f"      - record: query_{len(where)}", f"        expr: {json.dumps(filled)}"]
            where.append(place)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rules:
        rules.write("\n".join(lines) + "\n")
        rules.flush()
        done = subprocess.run(["promtool", "check", "rules", rules.name], capture_output=True, text=True)
    if done.returncode:
        said = done.stdout + done.stderr
        yield re.sub(r"query_(\d+)", lambda match: where[int(match[1])], said).strip()


def panels_lead_to_runbooks_that_exist(dashboards):
    known = alerts()
    linked = set()
    for one in dashboards:
        for panel in one.panels:
            for link in panel.get("links", []):
                name = pathlib.PurePosixPath(link["url"]).stem
                linked.add(name)
                if link["url"] not in known.get(name, {}).get("runbook_url", ()):
                    yield f'{one.uid}: {panel["title"]}: no alert has the runbook {link["url"]}'
                elif not (ROOT / "investigations" / f"{name}.md").exists():
                    yield f"there is no investigations/{name}.md"
    for name in sorted(set(known) - linked):
        yield f"no panel leads to the runbook of {name}"


def alerts_lead_to_dashboards_that_exist(dashboards):
    by_uid = {one.uid: one for one in dashboards}
    for name, urls in alerts().items():
        for url in urls.get("dashboard_url", ["none"]):
            # The address of Grafana is an external label of Prometheus; without it there is no link.
            match = re.match(r"'\{\{ with \$externalLabels\.grafana \}\}\{\{ \. \}\}/d/([\w-]+)/?(?:\?(.*))?\{\{ end \}\}'$", url)
            if not match or match[1] not in by_uid:
                yield f"{name}: no dashboard {url}"
                continue
            for variable in re.findall(r"var-(\w+)=", match[2] or ""):
                if variable not in by_uid[match[1]].variables:
                    yield f"{name}: {match[1]} has no variable {variable}"


CHECKS = [
    each_is_what_its_source_makes,
    uids_and_ids_are_unique,
    every_panel_says_what_it_shows,
    no_panel_lies_on_another,
    only_variables_that_exist_are_used,
    every_query_parses,
    panels_lead_to_runbooks_that_exist,
    alerts_lead_to_dashboards_that_exist,
]


def main():
    dashboards = [Dashboard(path) for path in sorted(HERE.glob("*.json"))]
    wrong = 0 if dashboards else 1
    for check in CHECKS:
        complaints = sorted(set(check(dashboards)))
        wrong += len(complaints)
        print(f"{'FAILED' if complaints else 'ok'}: {check.__name__.replace('_', ' ')}")
        for complaint in complaints:
            print(f"    {complaint}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
