#!/usr/bin/env python3
"""Measures the cost of a page for a real Prometheus at each level: series and memory with many exporters, printed as a table.

One small server (`cargo run --example serve_ranks`) plays the exporters: its page is that of the exporter itself, of eight training
ranks whose counters grow. Each case has a Prometheus of its own, one after the other, that scrapes it as so many instances. Memory is
what is resident after the warm-up, at its most and in the mean; that of a Prometheus that scrapes nothing is in the first line.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
NATIVE = "--enable-feature=native-histograms"
# Name, level, and whether native histograms are stored.
CASES = [
    ("nothing", None, False),
    ("full, classic buckets", "full", False),
    ("standard, classic buckets", "standard", False),
    ("fleet", "fleet", False),
    ("full, native histograms", "full", True),
    ("standard, native histograms", "standard", True),
]


def configure(path, address, level, arguments, native_setting):
    """Writes Prometheus' configuration: as many instances, all of them the one server."""
    names = [f"node{number}:9400" for number in range(arguments.instances)] if level else []
    targets = [{"targets": [address], "labels": {"instance": name}} for name in names]
    job = {"job_name": "gpucause", "static_configs": targets, "params": {"level": [level or "standard"]}} | native_setting
    interval = f"{arguments.interval}s"
    path.write_text(json.dumps({"global": {"scrape_interval": interval}, "scrape_configs": [job]}))


def ask(port, query):
    """The value of an instant query; 0 without any."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url, timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def head_series(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return int(float(re.search(r"^prometheus_tsdb_head_series (\S+)", answer.read().decode(), re.MULTILINE)[1]))


def resident_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)[1]) / 1024


def version(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr).groups())


def measure(case, address, port, arguments):
    """Series, those of the last scrape of one instance, and resident memory in MiB: mean and most."""
    _, level, native = case
    is_setting = version(arguments.prometheus) >= (3, 8)
    folder = pathlib.Path(tempfile.mkdtemp())
    config = folder / "prometheus.json"
    configure(config, address, level, arguments, {"scrape_native_histograms": native} if is_setting else {})
    command = [
        arguments.prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]
    daemon = subprocess.Popen(command + ([NATIVE] if native and not is_setting else []))
    try:
        time.sleep(arguments.warm_up)
        sizes, end = [], time.time() + arguments.seconds
        while time.time() < end:
            time.sleep(1)
            sizes.append(resident_mib(daemon.pid))
        if level and (up := ask(port, "sum(avg_over_time(up[1m]))")) < 0.95 * arguments.instances:
            raise SystemExit(f"{case[0]}: only {up:.1f} of {arguments.instances} instances are scraped")
        page = ask(port, "max(scrape_samples_post_metric_relabeling)")
        return head_series(port), page, sum(sizes) / len(sizes), max(sizes)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--instances", type=int, default=12)
    parser.add_argument("--interval", type=int, default=15, help="seconds between scrapes")
    parser.add_argument("--warm-up", type=int, default=240, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=int, default=60, help="length of each measurement")
    parser.add_argument("--port", type=int, default=19490, help="of Prometheus, on loopback")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--quiet", "-p", "gpucause", "--example", "serve_ranks"], cwd=ROOT, check=True)
    server = subprocess.Popen(
        ["cargo", "run", "--quiet", "-p", "gpucause", "--example", "serve_ranks"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        address = server.stdout.readline().strip()
        version_text = ".".join(map(str, version(arguments.prometheus)))
        print(f"Prometheus {version_text}, {arguments.instances} instances x 8 ranks of 30 operations, every {arguments.interval} s")
        print(f"{'page':30} {'samples a page':>14} {'series':>9} {'resident, MiB':>14} {'at most':>8}")
        for case in CASES:
            series, page, mean, most = measure(case, address, arguments.port, arguments)
            print(f"{case[0]:30} {page:14.0f} {series:9} {mean:14.0f} {most:8.0f}", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
