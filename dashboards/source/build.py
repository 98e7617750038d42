#!/usr/bin/env python3
"""Writes the dashboards' JSON from the modules beside this one. With --check it writes nothing, and fails when a file is
not what it would write.
"""

import json
import pathlib
import sys

import cost
import exporter
import fleet
import overview
import process

TO = pathlib.Path(__file__).resolve().parent.parent


def texts():
    """The text of each file, by its path."""
    made = [module.dashboard() for module in (overview, process, fleet, cost, exporter)]
    return {TO / f"{one['uid']}.json": json.dumps(one, indent=2) + "\n" for one in made}


def main():
    check = sys.argv[1:] == ["--check"]
    stale = []
    for path, text in texts().items():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text)
    if check and stale:
        sys.exit(f"{', '.join(stale)}: not what dashboards/source makes; run dashboards/source/build.py")


if __name__ == "__main__":
    main()
