#!/usr/bin/env python3
"""Draws the dashboards of real data, and fails when a query errs or has no answer.

Without --prometheus it feeds one by itself: real exporter, stand-in programs with faults, Debian's Prometheus with the rules
of this repository, all on loopback. As root. The pictures are PNG files, of a headless Chromium.

Queries of what only the level full has may be empty at a lower one, and heatmaps where there are no classic buckets.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import feed
import may_be_empty
import page
from prometheus import Prometheus
from variables import Variables

DASHBOARDS = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="target/demo", help="folder of gpucause, gpucause-workload and stand-ins")
    parser.add_argument("--seconds", type=float, default=240, help="how long to feed [%(default)s]")
    parser.add_argument(
        "--level", choices=["standard", "full"], default="standard", help="of the exporter's page [%(default)s]"
    )
    parser.add_argument(
        "--native-histograms", action="store_true", help="Prometheus takes native histograms, without classic buckets"
    )
    parser.add_argument("--port", type=int, default=9460, help="Prometheus's; the exporter has the next one [%(default)s]")
    parser.add_argument("--data", help="keep what was fed in this folder, or draw what is in it already")
    parser.add_argument("--prometheus", help="URL of a Prometheus that has the data; needs --from and --to")
    parser.add_argument("--from", dest="begin", type=float, help="in seconds since the Unix epoch")
    parser.add_argument("--to", dest="end", type=float)
    parser.add_argument(
        "--scrape-interval", type=float, default=feed.INTERVAL, help="of that Prometheus, in seconds [%(default)s]"
    )
    parser.add_argument(
        "--var", action="append", default=[], metavar="DASHBOARD:NAME=VALUE", help="value of a variable instead of its default"
    )
    parser.add_argument("--out", default="target/dashboards", help="folder of the pictures [%(default)s]")
    parser.add_argument("--rows", type=int, help="only so many rows of the grid")
    parser.add_argument("--scale", type=float, default=1, help="of the pictures [%(default)s]")
    parser.add_argument("--only", help="only the dashboard with this UID")
    return parser.parse_args()


def screenshot(html, height, scale, to):
    """One picture of a page, as it is."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "page.html"
        source.write_text(html)
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-background-networking",
                "--no-first-run",
                f"--force-device-scale-factor={scale}",
                f"--user-data-dir={folder}/profile",
                f"--window-size={page.WIDTH},{height}",
                f"--screenshot={to}",
                source.as_uri(),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )


def draw(options, url, begin, end):
    """Draws each dashboard, and says what is wrong."""
    prometheus = Prometheus(url)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    wrong, excused, queries = [], set(), 0
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(path.read_text())
        uid = dashboard["uid"]
        if options.only not in (None, uid):
            continue
        chosen = {}
        for one in options.var:
            name, value = one.split("=", 1)
            if name.startswith(f"{uid}:"):
                chosen.setdefault(name.split(":")[1], []).append(value)
        variables = Variables(dashboard, prometheus, begin, end, chosen)
        wrong += [
            f"{uid}: variable {name} has no values" for name in variables.missing if (uid, name) not in may_be_empty.VARIABLES
        ]
        renderer = page.Renderer(dashboard, prometheus, variables, (begin, end), options.scrape_interval)
        html, height = renderer.html(options.rows)
        (out / f"{uid}.html").write_text(html)
        screenshot(html, height, options.scale, out / f"{uid}.png")
        wrong += renderer.errors
        for where, panel, expr in renderer.empty:
            reason = may_be_empty.reason(where, panel, expr, options.level, options.native_histograms)
            if reason:
                excused.add(f"{': '.join(where)}: no data, as {reason}")
            else:
                wrong.append(f"{': '.join(where)}: no data")
        queries += sum(len(panel.get("targets", [])) for panel in dashboard["panels"])
        print(f"{out / uid}.png")
    wrong = sorted(set(wrong))
    print(*sorted(excused), sep="\n")
    print(f"{queries} queries, {len(wrong)} things wrong")
    return wrong


def main():
    options = arguments()
    if options.prometheus:
        wrong = draw(options, options.prometheus, options.begin, options.end)
    else:
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(options.data or folder)
            window = data / "window.json"
            with feed.Feed(options.programs, data, options.port, options.level, options.native_histograms) as running:
                if window.exists():
                    running.prometheus()
                else:
                    data.mkdir(parents=True, exist_ok=True)
                    window.write_text(json.dumps(running.run(options.seconds)))
                wrong = draw(options, running.prometheus_url, *json.loads(window.read_text()))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
