#!/usr/bin/env python3
"""Checks that Grafana reads the dashboards as they are meant: its own types, of PyPI's grafana-foundation-sdk, read each file, and the
JSON that they write again must have everything that the file has. The types ignore unknown fields, as Grafana does.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard

HERE = pathlib.Path(__file__).resolve().parent
# Passed on unread: what a variable's query looks like in lists, and what the Prometheus datasource makes of annotations.
UNTYPED = {"definition", "step", "titleFormat", "textFormat", "tagKeys"}


def lost(ours, theirs, where):
    """Where theirs lacks something of ours, or has it otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from lost(value, theirs[key], f"{where}.{key}")
            elif key not in UNTYPED and value is not False and value not in (None, [], {}, ""):
                yield f"{where}.{key} = {json.dumps(value)} is not known"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs)):
            yield from lost(*pair, f"{where}[{number}]")
    elif ours != theirs:
        yield f"{where} = {json.dumps(ours)} is read as {json.dumps(theirs)}"


def problems(path):
    """Returns the parts of one file that Grafana would read differently."""
    ours = json.loads(path.read_text())
    try:
        theirs = dashboard.Dashboard.from_json(ours)
    except (KeyError, TypeError, ValueError) as error:
        return [f"{path.name} is refused: {error!r}"]
    return lost(ours, json.loads(encoder.JSONEncoder().encode(theirs)), path.name)


def main():
    plugins.register_default_plugins()
    paths = sorted(HERE.glob("*.json"))
    found = [problem for path in paths for problem in problems(path)]
    print("\n".join([*found, f"{len(paths)} dashboards, problems: {len(found)}"]))
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
