#!/usr/bin/env python3
"""Cost of exporters for a training that is bound by its launches: cost.py FOLDER ROUNDS GPUCAUSE... [-- OPTION...]

FOLDER is that of `install`. One program runs all the time, on one CPU, whose launches take as long as makes it LAUNCHES a second. In turns
each exporter observes it, and none does before and after. A turn counts from ten seconds after its begin, when probes keep to their
budget. After each few steps the program makes one of a like model without a GPU, which no exporter sees: steps are measured in units of
these, as the speed of a shared host varies within seconds. Instead of an exporter, `nothing` shows what of that is left. Needs root and
a quiet host.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

from exporter import Exporter, within
from host import FIRST, cpu_seconds, step_back

SETTLES, LASTS = 10.0, 6.0
# The name of a turn in which no exporter runs.
NOTHING = "nothing"
# Steps on the simulated GPU for each without one.
STEPS = 8
# Launches a second; there are half as many other calls.
LAUNCHES = 23_000
# Nanoseconds that the stand-in of the driver takes for a launch, by default.
LAUNCH_NS = 2_000


def without_gpu():
    """A step of a small model of the same kind, whose tensors are in the host's memory."""
    import torch

    layers = (torch.nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, dropout=0.0) for _ in range(2))
    model, data = torch.nn.Sequential(*layers), torch.randn(1, 4, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        (model(data) - data).square().mean().backward()
        optimizer.step()

    return step


def program():
    """Prints seconds that steps took on the simulated GPU and without it, and how many launches there were."""
    import gpu
    from training import Training

    training, unobserved = Training(), without_gpu()
    for _ in range(5):
        training.step()
        unobserved()
    gpu.never_the_limit()
    before, on_gpu, without = gpu.launches(), 0.0, 0.0
    while True:
        for _ in range(5):
            begin = time.monotonic()
            for _ in range(STEPS):
                training.step()
            middle = time.monotonic()
            unobserved()
            on_gpu, without = on_gpu + middle - begin, without + time.monotonic() - middle
        print(on_gpu, without, gpu.launches() - before, flush=True)


class Steps:
    """The program, and what its steps took."""

    def __init__(self, folder, launch_ns=LAUNCH_NS):
        site = folder / "site"
        environment = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(site / "nvidia/cu13/lib"), "FAKE_LAUNCH_NS": str(launch_ns)}
        command = ["taskset", "-c", "0", "python3", "-B", "-W", "ignore", __file__, "--program"]
        self.child = subprocess.Popen([*FIRST, *command], stdout=subprocess.PIPE, text=True, env=environment)
        self.points = []
        threading.Thread(target=self.read, daemon=True).start()
        while len(self.points) < 20:
            time.sleep(0.1)

    def read(self):
        for line in self.child.stdout:
            self.points.append(tuple(map(float, line.split())))

    def length(self, seconds):
        """Returns the length of a step from now on, in units of a step without a GPU."""
        begin = len(self.points)
        time.sleep(seconds)
        on_gpu, without, launches = (after - before for before, after in zip(self.points[begin - 1], self.points[-1]))
        self.launches = launches / on_gpu
        return on_gpu / without / STEPS

    @classmethod
    def at_rate(cls, folder):
        """With LAUNCHES a second."""
        fast = cls(folder)
        try:
            fast.length(3.0)
        finally:
            fast.child.kill()
        return cls(folder, max(LAUNCH_NS, int(LAUNCH_NS + 1e9 / LAUNCHES - 1e9 / fast.launches)))


def turn(steps, binary, address, options):
    """The length of a step while an exporter observes the program, and what that says of it."""
    if binary == NOTHING:
        return steps.length(LASTS), ""
    exporter = Exporter(binary, address, "--nvml.off", *options)
    # Hits are charged what they take by the exporter's own measurement.
    charged = lambda: sum(float(value) for value in re.findall(r"^gpucause_probe_cost_seconds_total{.*} (\S+)$", exporter.page(), re.M))
    try:
        within(20, lambda: exporter.launches(steps.child.pid) > 0)
        time.sleep(SETTLES)
        pid, before = exporter.child.pid, charged()
        used = cpu_seconds(pid)
        took = steps.length(LASTS)
        used = (cpu_seconds(pid) - used) / LASTS
        share = (charged() - before) / LASTS
        said = {labels["step"] for labels, _ in exporter.samples("gpucause_launch_sampling_ratio", steps.child.pid)}
        return took, f"step {', '.join(said)}, {share:.1%} by its own account, and {used:.1%} of a CPU for itself"
    finally:
        exporter.end()


def main():
    arguments = sys.argv[1:]
    step_back()
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    # The program has a CPU of its own: what exporters compute beside it is another matter.
    os.sched_setaffinity(0, set(range(1, os.cpu_count())))
    folder, rounds, *binaries = arguments[: arguments.index("--")] if "--" in arguments else arguments
    steps = Steps.at_rate(pathlib.Path(folder).resolve())
    took = {binary: [] for binary in binaries}
    try:
        for _ in range(int(rounds)):
            for number, binary in enumerate(binaries):
                before, rate = steps.length(LASTS), steps.launches
                observed, said = turn(steps, binary, f"127.0.0.1:{9441 + number}", options)
                without = (before + steps.length(LASTS)) / 2
                took[binary].append(observed / without - 1)
                print(f"{binary}: {observed:.3f}, {without:.3f} without, {took[binary][-1]:+.1%}; {rate:.0f} launches a second, {said}", flush=True)
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
