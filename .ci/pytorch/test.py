#!/usr/bin/env python3
"""What the exporter says of PyTorch programs on a simulated GPU: test.py GPUCAUSE FOLDER [--quick] [PROGRAM...]

FOLDER is that of `install`. Launches are held against the stand-ins' own count, chains and lost time against the programs' clocks and
the kernel's. Needs root and a quiet host; --quick has the programs that differ most.
"""

import argparse
import collections
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import faults
from exporter import SEVERITIES, Exporter, within
from started import Started, check, failed

# Most of a dispatcher's time that a healthy program may show as lost.
MOST_LOST = 0.03
# For so long after its end a healthy program is observed.
AFTER = 10
HEALTHY_SECONDS, FAULT_SECONDS, COUNTED_SECONDS = 9, 13, 2
# From then on a chain's seconds are compared: it has been found.
FOUND_AFTER = 5
TOLERANCE = 0.1

Healthy = collections.namedtuple("Healthy", "seconds environment", defaults=[HEALTHY_SECONDS, {}])
HEALTHY = {
    "eager": Healthy(8),
    "mixed": Healthy(15),
    "requests": Healthy(),
    "compiled": Healthy(),
    "graphs": Healthy(),
    "two_ranks": Healthy(environment={"FAKE_BLOCKING": "1"}),
    "prefetching": Healthy(),
    "checkpointing": Healthy(),
    "two_devices": Healthy(environment={"FAKE_DEVICES": "2", "FAKE_BLOCKING": "1"}),
    "launch_bound": Healthy(),
}
# What may be found: its own code limits it.
FOUND_IN_HEALTHY = {"launch_bound": {"host_code": "low"}}

# `line`: the function in which the sentence names a line. `culprit`: of a thread of the program, or a process beside it.
Fault = collections.namedtuple("Fault", "cause culprit line", defaults=[None, None])
FAULTS = {
    "slow_dataset": Fault("host_code", line=faults.SlowSamples.__getitem__),
    "slow_workers": Fault("dataloader_starvation"),
    "python_loop": Fault("lock_wait", "metrics", faults.aggregates),
    "held_by_c": Fault("lock_wait", "metrics"),
    "preempted": Fault("cpu_preemption", "hog"),
    "reads": Fault("block_io"),
}
COUNTED = ("eager", "compiled", "graphs", "two_ranks", "checkpointing", "two_devices", "slow_workers")
QUICK = ("eager", "mixed", "requests", "slow_dataset", "python_loop")
QUICK_COUNTED = ("eager",)


class Bed:
    """The exporter, and what programs run with."""

    def __init__(self, exporter, folder):
        self.exporter, site = exporter, folder / "site"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(site),
            "LD_LIBRARY_PATH": str(site / "nvidia/cu13/lib"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache/inductor"),
            "TRITON_CACHE_DIR": str(folder / "cache/triton"),
        }

    def start(self, name, seconds, prefix=()):
        environment = HEALTHY[name].environment if name in HEALTHY else {}
        program = Started(name, seconds, prefix, {**self.environment, **environment})
        if check(program.warm(), f"{name} starts"):
            return program
        program.end()
        return None


class LostTime:
    """Of processes: by the counters between marks, and as `top` shows it."""

    def __init__(self, exporter, pids):
        self.exporter, self.pids = exporter, pids
        self.marks, self.shown, self.ended = [], 0.0, threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def mark(self, name):
        counters = [
            (self.exporter.total("gpucause_dispatcher_lost_seconds_total", pid), self.exporter.total("gpucause_dispatcher_seconds_total", pid))
            for pid in self.pids
        ]
        self.marks.append((name, counters))

    def watch(self):
        # Until what `top` shows has nothing of the start.
        self.ended.wait(6)
        while not self.ended.wait(1.5):
            for process in filter(None, map(self.exporter.process, self.pids)):
                self.shown = max(self.shown, process["lost_share"] or 0.0)

    def end(self):
        """The largest share of each phase."""
        self.ended.set()
        self.watcher.join()
        for (name, before), (_, after) in zip(self.marks, self.marks[1:]):
            shares = [(b[0] - a[0]) / max(b[1] - a[1], 1e-9) for a, b in zip(before, after)]
            yield name, max(shares, default=0.0)


def pids_of(program):
    """Its own, and those of its ranks."""
    children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    comm = lambda pid: pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return [program.pid, *(int(pid) for pid in children if program.name == "two_ranks" and comm(pid).startswith("python"))]


def healthy(bed, name):
    """Runs it; what is returned checks it later, while the next program runs."""
    program = bed.start(name, HEALTHY[name].seconds)
    if not program:
        return lambda: None
    pids = pids_of(program)
    program.go()
    lost = LostTime(bed.exporter, pids)
    for line in program.lines():
        lost.mark(line.get("phase", "after its end"))
    ended = time.monotonic()

    def finish():
        time.sleep(max(0, ended + AFTER - time.monotonic()))
        lost.mark(None)
        shares = list(lost.end())
        program.end()
        text = ", ".join(f"{phase} {share:.1%}" for phase, share in shares)
        check(max(share for _, share in shares) < MOST_LOST, f"{name}: less than {MOST_LOST:.0%} is lost in each phase: {text}")
        check(lost.shown < MOST_LOST, f"{name}: top shows less than {MOST_LOST:.0%} as lost: at most {lost.shown:.1%}")
        found = {cause: severity for pid in pids for cause, severity in bed.exporter.severities(pid).items()}
        wanted = FOUND_IN_HEALTHY.get(name, {})
        check(found == wanted, f"{name}: {wanted or 'no chain'}: found {found or 'no chain'}")

    return finish


def until(points, at):
    """The total of a curve of (time, total) at a time."""
    before = (points[0][0], 0.0)
    for point in points:
        if point[0] >= at:
            part = (at - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
            return before[1] + max(part, 0.0) * (point[1] - before[1])
        before = point
    return before[1]


def taken(chains):
    """What chains took until when, as curves."""
    return [[(chain["first_seen"] + at, seconds) for at, seconds, _ in chain["taken_by"]] for chain in chains]


def names_line(text, function):
    lines, first = inspect.getsourcelines(function)
    named = re.findall(pathlib.Path(inspect.getfile(function)).name + r":(\d+)", text)
    return any(first <= int(line) < first + len(lines) for line in named)


def fault(bed, name):
    """Runs it; what is returned checks it, like `healthy`."""
    wanted, hog = FAULTS[name], None
    program = bed.start(name, FAULT_SECONDS, ["taskset", "-c", "0"] if name == "preempted" else ())
    if not program:
        return lambda: None
    with tempfile.TemporaryDirectory() as folder:
        if name == "preempted":
            os.symlink("/bin/sh", f"{folder}/hog")
            hog = subprocess.Popen(["taskset", "-c", "0", f"{folder}/hog", "-c", "while :; do :; done"])
        begin = time.time()
        program.go()
        # The last evaluation within it.
        time.sleep(FAULT_SECONDS - 0.2)
        chains = bed.exporter.chains(program.pid)
        result = program.result()
        program.end()
        if hog:
            hog.kill()
            hog.wait()
    return lambda: evaluate(bed, name, wanted, begin, chains, result)


def evaluate(bed, name, wanted, begin, chains, result):
    found = bed.exporter.severities(result["pid"])
    own = [chain for chain in chains if chain["cause"] == wanted.cause]
    others = {cause: severity for cause, severity in found.items() if cause != wanted.cause and severity != "low"}
    check(SEVERITIES.index(found.get(wanted.cause, "low")) > 0, f"{name}: {wanted.cause} is found: {found or 'no chain'}")
    check(not others, f"{name}: nothing else is above low: {others or 'no chain'}")
    sentence = own[0]["sentence"] if own else ""
    if wanted.culprit:
        culprit = own and own[0]["culprit"] or {}
        tid = result["culprit_tid"]
        is_right = culprit.get("comm") == wanted.culprit and tid in (None, culprit.get("tid"))
        check(is_right, f"{name}: the culprit is {wanted.culprit} {tid or ''}: {culprit.get('comm')} {culprit.get('tid')}")
    if wanted.line:
        check(names_line(sentence, wanted.line), f"{name}: a line of {wanted.line.__qualname__} is named: {sentence or 'no chain'}")
    points = [tuple(point) for point in result["curve"]]
    first, last = begin + FOUND_AFTER, max([chain["last_seen"] for chain in own], default=begin + FAULT_SECONDS - 1.5)
    between = lambda curve: until(curve, last) - until(curve, first)
    truth, measured = between(points), sum(map(between, taken(own)))
    check(
        abs(measured - truth) <= TOLERANCE * truth,
        f"{name}: {measured:.2f} s of {wanted.cause} between {first - begin:.1f} and {last - begin:.1f} s; {truth:.2f} s by its own clock",
    )
    if wanted.culprit and own:
        shares = {loss["comm"]: loss["seconds"] / max(own[0]["lost_seconds"], 1e-9) for loss in own[0]["losses"]}
        text = ", ".join(f"{comm} {share:.0%}" for comm, share in shares.items())
        check(shares.get(wanted.culprit, 0) >= 0.9, f"{name}: 90 % of it are {wanted.culprit}'s: {text}")


def counts(bed, name):
    program = bed.start(name, COUNTED_SECONDS)
    if not program:
        return
    pids = pids_of(program)
    counted = lambda: [bed.exporter.launches(pid) for pid in pids]
    within(10, lambda: all(counted()))
    # Until what warmed it up is counted.
    time.sleep(0.5)
    before = counted()
    program.go()
    result = program.result()
    time.sleep(0.5)
    for pid, old, new, own in zip(pids, before, counted(), [result, *result.get("ranks", [])]):
        rate = own["launches"] / COUNTED_SECONDS
        check(new - old == own["launches"], f"{name}: {new - old:.0f} launches counted, {own['launches']} made, {rate:.0f}/s")
    program.end()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("gpucause")
    parser.add_argument("folder", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("programs", nargs="*")
    return parser.parse_args()


def main():
    given, begin = arguments(), time.monotonic()
    wanted = given.programs or (QUICK if given.quick else [*HEALTHY, *FAULTS])
    counted = QUICK_COUNTED if given.quick else COUNTED
    for options, phase in ((["--probe.budget", "off"], "counts"), ([], "chains")):
        exporter = Exporter(given.gpucause, 9437, "--nvml.off", *options)
        try:
            bed, finish = Bed(exporter, given.folder), lambda: None
            check(exporter.starts(), "the exporter starts")
            if phase == "counts":
                for name in counted:
                    if name in wanted or not given.programs:
                        counts(bed, name)
                continue
            for name in wanted:
                later = healthy(bed, name) if name in HEALTHY else fault(bed, name)
                finish()
                finish = later
            finish()
        finally:
            exporter.end()
    print(f"{len(failed)} failed; {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    sys.exit(main())
