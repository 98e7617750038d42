#!/usr/bin/env python3
"""What exporters take of a training that is bound by its launches: cost.py FOLDER ROUNDS GPUCAUSE... [-- OPTION...]

FOLDER is that of `install`. One program runs all the time, on one CPU, whose launches take as long as makes it LAUNCHES a second. In turns
each exporter observes it, and none does before and after. A turn counts from ten seconds after its begin, when probes keep to their
budget. Needs root and a quiet host.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

from exporter import Exporter, within

SETTLES, LASTS = 10.0, 4.0
# Launches a second; there are half as many other calls.
LAUNCHES = 23_000
# What the stand-in of the driver takes for a launch, by default.
LAUNCH_NS = 2_000


def program():
    """Prints how many steps there were, and when."""
    import gpu
    from training import Training

    training = Training()
    for _ in range(5):
        training.step()
    gpu.never_the_limit()
    steps, begin, launches = 0, time.monotonic(), gpu.launches()
    while True:
        training.step()
        steps += 1
        if steps % 20 == 0:
            print(time.monotonic(), steps, gpu.launches() - launches, flush=True)


class Steps:
    """The program, and when it had made how many steps."""

    def __init__(self, folder, launch_ns=LAUNCH_NS):
        site = folder / "site"
        environment = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(site / "nvidia/cu13/lib"), "FAKE_LAUNCH_NS": str(launch_ns)}
        command = ["taskset", "-c", "0", "python3", "-B", "-W", "ignore", __file__, "--program"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.points = []
        threading.Thread(target=self.read, daemon=True).start()
        while len(self.points) < 20:
            time.sleep(0.1)

    def read(self):
        for line in self.child.stdout:
            self.points.append(tuple(map(float, line.split())))

    def microseconds(self, seconds):
        """Of a step from now on."""
        begin = len(self.points)
        time.sleep(seconds)
        (began, before, first), (ended, after, last) = self.points[begin - 1], self.points[-1]
        self.launches = (last - first) / (ended - began)
        return (ended - began) / (after - before) * 1e6

    @classmethod
    def at_rate(cls, folder):
        """With LAUNCHES a second."""
        fast = cls(folder)
        try:
            fast.microseconds(3.0)
        finally:
            fast.child.kill()
        return cls(folder, max(LAUNCH_NS, int(LAUNCH_NS + 1e9 / LAUNCHES - 1e9 / fast.launches)))


def main():
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    # The program has a CPU of its own: what exporters compute beside it is another matter.
    os.sched_setaffinity(0, set(range(1, os.cpu_count())))
    folder, rounds, *binaries = arguments[: arguments.index("--")] if "--" in arguments else arguments
    steps = Steps.at_rate(pathlib.Path(folder).resolve())
    took = {binary: [] for binary in binaries}
    try:
        for _ in range(int(rounds)):
            for number, binary in enumerate(binaries):
                before, rate = steps.microseconds(LASTS), steps.launches
                exporter = Exporter(binary, f"127.0.0.1:{9441 + number}", "--nvml.off", *options)
                try:
                    within(20, lambda: exporter.launches(steps.child.pid) > 0)
                    time.sleep(SETTLES)
                    observed = steps.microseconds(LASTS)
                    said = {labels["step"] for labels, _ in exporter.samples("gpucause_launch_sampling_ratio", steps.child.pid)}
                finally:
                    exporter.end()
                # The host's own speed changes within seconds.
                without = (before + steps.microseconds(LASTS)) / 2
                took[binary].append(observed / without - 1)
                print(f"{binary}: {observed:.0f} us, {without:.0f} us without, {took[binary][-1]:+.1%}; {rate:.0f} launches a second, {said}", flush=True)
        for binary, more in took.items():
            print(f"{binary}: {statistics.median(more):+.2%} by the median of {len(more)}: {', '.join(f'{one:+.1%}' for one in more)}")
    finally:
        steps.child.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["--program"]:
        program()
    elif os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    else:
        main()
