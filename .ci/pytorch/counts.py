#!/usr/bin/env python3
"""Counts and rates of programs over the budget of probes: counts.py GPUCAUSE FOLDER ROUNDS [PROGRAM...]

FOLDER is that of `install`, beside which the stand-ins are (`make debug-stand-ins`). Each program makes a known number of launches, which
it prints over time. At the default settings no count may be above what was made, and it must be that where calls were observed all the
time; a rate that is shown must be right within 3 %, or within its own error. Needs root.
"""

import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

from exporter import Exporter, within
from host import FIRST, step_back

ADDRESS = "127.0.0.1:9449"
# A rate may be off by this part where its own error is less.
TOLERANCE = 0.03
# A rate is that of so many seconds.
WINDOW = 10.0
# Seconds between readings of the page, and for which they go on after the program's last launch.
EVERY, AFTER = 0.5, 3.0
# Launches a second, 0 for as many as it can, and how many of them; None for a pause of so many seconds.
PHASES = {
    "burst": [(48_000, 200_000)],
    "short_burst": [(0, 400_000)],
    "drop": [(30_000, 360_000), (2_000, 30_000)],
    "rise": [(2_000, 20_000), (30_000, 360_000)],
    "bursts": [(30_000, 60_000), (None, 2)] * 6,
    "calm": [(5_000, 50_000)],
}
# Beside this neighbour, which must be over its budget alone.
BESIDE = {"calm": "burst"}
# PyTorch's training for so many seconds and then a pause, so many times.
TRAINING = {"training": (20, 0, 1), "training_with_pauses": (4, 3, 4)}
# Threads that launch as often as they can, and how often each does.
THREADS, EACH = 8, 25_000
ATTACHED = r'gpucause_probe_status{[^}]*probe="call"[^}]*libcudart[^}]*verdict="attached[^}]*} 1'
# Programs whose rate is the same at all times; the part of their launches that is seen is that of the time, within this part of it.
STEADY, LEAST_OF_SHARE = ("burst", "training"), 0.7
# A launch of the stand-in runtime takes this long and makes one of the driver.
LAUNCH = "cudaLaunchKernel:spin=1us;nest=1"


def in_phases(phases):
    launch = ctypes.CDLL("libcudart.so.12").cudaLaunchKernel
    begins()
    now, made, next_print = time.monotonic, 0, 0.0
    for rate, count in phases:
        if rate is None:
            time.sleep(count)
            print(now(), made, flush=True)
            continue
        begin = now()
        for number in range(count):
            while rate and now() < begin + number / rate:
                pass
            launch(None, 1, 1, 1, 1, None, 0, None)
            made += 1
            if now() > next_print:
                print(now(), made, flush=True)
                next_print = now() + 0.05
        print(now(), made, flush=True)


def training(seconds, pause, times):
    import gpu
    from training import Training

    step = Training().step
    for _ in range(5):
        step()
    gpu.never_the_limit()
    begins()
    before = gpu.launches()
    for _ in range(times):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            step()
            print(time.monotonic(), gpu.launches() - before, flush=True)
        time.sleep(pause)
        print(time.monotonic(), gpu.launches() - before, flush=True)


def begins():
    print("ready", flush=True)
    sys.stdin.readline()
    print(time.monotonic(), 0, flush=True)


class Program:
    """A running program and how many launches it had made when."""

    def __init__(self, name, folder):
        workload, stand_ins, site = folder.parent / "debug/gpucause-workload", folder.parent / "stand-ins", folder / "site"
        subprocess.run([workload, "lay-out", stand_ins], check=True)
        libraries = site / "nvidia/cu13/lib" if name in TRAINING else stand_ins
        environment = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(libraries), "GPUCAUSE_FAKE": LAUNCH}
        command = ["python3", "-B", "-W", "ignore", __file__, "--program", name]
        if self_made := name == "threads":
            command = [workload, "--wait", "--hold", "calls", "--threads", str(THREADS), "--calls", str(EACH)]
        self.child = subprocess.Popen([*FIRST, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.points, self.self_made, self.ended = [], self_made, False
        self.child.stdout.readline()
        self.reader = threading.Thread(target=self.read, daemon=True)

    def go(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        self.reader.start()

    def read(self):
        for line in self.child.stdout:
            if line == "end\n":
                self.ended = True
                break
            if self.self_made:
                # Nothing is known of when it made them.
                self.points, self.ended = [(time.monotonic(), json.loads(line)["calls"]["cudaLaunchKernel"])], True
                break
            at, made = line.split()
            self.points.append((float(at), int(made)))

    def made(self, at):
        """Returns how many launches it had made at a time."""
        before = self.points[0]
        for point in self.points:
            if point[0] >= at:
                part = (at - before[0]) / max(point[0] - before[0], 1e-9)
                return before[1] + part * (point[1] - before[1])
            before = point
        return before[1]

    def end(self):
        self.child.kill()
        self.child.wait()


class Readings:
    """Readings of the page about a process over time."""

    def __init__(self, exporter, pid):
        self.exporter, self.pid = exporter, pid
        # Launches before the program began to count its own, as those to warm up.
        self.before = exporter.launches(pid)
        # Time, launches since then, seconds not observed, rate, its error.
        self.readings = []

    def read(self):
        at, page = time.monotonic(), self.exporter.page()
        total = lambda name: self.exporter.total(name, self.pid, page)
        launches, missed = total("gpucause_launches_total"), total("gpucause_calls_unobserved_seconds_total")
        rate = total("gpucause_launch_rate_estimate"), total("gpucause_launch_rate_estimate_error_ratio")
        self.readings.append((at, launches - self.before, missed, *rate))


def compared(name, readings, program):
    """Returns what is wrong, and what was seen in words."""
    if not program.points:
        return ["it did not begin"], "nothing"
    _, launches, missed, *_ = readings.readings[-1]
    made, wrong = program.points[-1][1], [] if program.ended else ["it did not end"]
    if launches > made:
        wrong.append("a count above what was made")
    if missed > 0 and launches == 0:
        wrong.append("nothing was seen")
    lasted = program.points[-1][0] - program.points[0][0]
    if missed > 0 and name in STEADY and launches < LEAST_OF_SHARE * max(1 - missed / lasted, 0) * made:
        wrong.append("fewer than the part of the time that was observed")
    if missed == 0 and launches != made:
        wrong.append("a count that is not exact, of all the time")
    errors, outside = [], 0
    for at, _, _, rate, error in readings.readings:
        begin = max(at - WINDOW, program.points[0][0])
        if rate == 0 or program.self_made or at > program.points[-1][0]:
            continue
        truth = (program.made(at) - program.made(begin)) / (at - begin)
        off = abs(rate / truth - 1) if truth else 1.0
        errors.append(off)
        outside += off > max(TOLERANCE, error)
    if outside:
        wrong.append(f"{outside} of {len(errors)} rates off by more than {TOLERANCE:.0%} and their own error")
    within_tolerance = sum(off <= TOLERANCE for off in errors)
    rates = f"{len(errors)} rates shown, {within_tolerance} within {TOLERANCE:.0%}, at most {max(errors):.1%} off" if errors else "no rate shown"
    return wrong, f"{launches:.0f} of {made} launches, {missed:.1f} s not observed, {rates}"


def run(name, binary, folder):
    exporter = Exporter(binary, ADDRESS, "--nvml.off")
    started = []
    try:
        if not exporter.starts() or exporter.child.poll() is not None:
            return ["the exporter does not start"], "nothing"
        for own in filter(None, (name, BESIDE.get(name))):
            started.append(Program(own, folder))
        if not within(20, lambda: re.search(ATTACHED, exporter.page())):
            return ["no probes are attached"], "nothing"
        # Also those of the driver.
        time.sleep(2.0)
        all_readings = [Readings(exporter, program.child.pid) for program in started]
        for program in started:
            program.go()
        while any(program.reader.is_alive() for program in started):
            for readings in all_readings:
                readings.read()
            time.sleep(EVERY)
        time.sleep(AFTER)
        for readings in all_readings:
            readings.read()
        found = [compared(*each) for each in zip((name, BESIDE.get(name)), all_readings, started)]
        wrong, seen = [fault for faults, _ in found for fault in faults], "; ".join(words for _, words in found)
        missed = [readings.readings[-1][2] for readings in all_readings]
        if len(missed) > 1 and not missed[0] == 0 < missed[1]:
            wrong.append(f"not observed for {missed[0]:.1f} s, and its neighbour for {missed[1]:.1f} s")
        return wrong, seen
    finally:
        for program in started:
            program.end()
        exporter.end()


def main():
    binary, folder, rounds, *names = sys.argv[1:]
    step_back()
    failed = 0
    for name in names or [*PHASES, "threads", *TRAINING]:
        for number in range(int(rounds)):
            wrong, seen = run(name, binary, pathlib.Path(folder).resolve())
            failed += bool(wrong)
            print(f"{name} {number + 1}: {'; '.join(wrong) or 'right'}: {seen}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        name = sys.argv[2]
        training(*TRAINING[name]) if name in TRAINING else in_phases(PHASES[name])
        print("end", flush=True)
        sys.stdin.read()
    elif os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    else:
        main()
