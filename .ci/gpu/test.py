#!/usr/bin/env python3
"""What the exporter says of real programs on a real GPU: test.py GPUCAUSE

Their launches are counted exactly, by CUPTI's count of a PyTorch training and by what Triton, CuPy and JAX programs did. Each fault of a
program is named, and a healthy training has no chain. What the probes cost a training is printed.
Needs root, a GPU, and a `python3` with PyTorch, Triton, CuPy and JAX; takes four minutes.
"""

import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

PROGRAMS = pathlib.Path(__file__).with_name("programs.py")
ADDRESS = "127.0.0.1:9439"
STEPS = 1000
# A cause is found after three evaluations of 1.5 s in which a program loads nothing more, and launches of the fastest are sampled by then.
FAULT_SECONDS = 16
# In turns with and without probes.
COST_ROUNDS, COST_SECONDS = 3, 10
# What is wrong with each program; `preempted` is a training that shares its CPU.
FAULTS = {
    "preempted": "cpu_preemption",
    "large_copies": "large_copy",
    "emptied_cache": "allocator_churn",
    "slow_loader": "dataloader_starvation",
    "reads": "block_io",
}
SEVERITIES = ("low", "medium", "high", "critical")
failed = []


class Program:
    def __init__(self, name, amount, cpus=None):
        prefix = ["taskset", "-c", cpus] if cpus else []
        command = [*prefix, "python3", "-B", PROGRAMS, "training" if name == "preempted" else name, str(amount)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name, self.pid = name, self.child.pid

    def warm(self):
        """Whether it is; not where it lacks a library."""
        return self.child.stdout.readline().strip() == "ready"

    def go(self):
        self.child.stdin.write("go\n")
        self.child.stdin.flush()

    def result(self):
        return json.loads(self.child.stdout.readline())

    def end(self):
        self.child.kill()
        self.child.wait()


def page():
    with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=5) as answer:
        return answer.read().decode()


def samples(name, pid):
    """The labels and value of each series of a process."""
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", page(), re.M):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if labels.get("pid") == str(pid):
            yield labels, float(value)


def launches(pid):
    return sum(value for _, value in samples("gpucause_launches_total", pid))


def within(seconds, condition):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.2)
    return False


def check(holds, text):
    print(f"{'ok' if holds else 'FAILED':8}{text}", flush=True)
    if not holds:
        failed.append(text)
    return holds


def counts(name, amount):
    program = Program(name, amount)
    if not check(program.warm(), f"{name} starts"):
        program.end()
        return
    within(10, lambda: launches(program.pid) > 0)
    # Until what warmed it up is counted.
    time.sleep(1)
    before = launches(program.pid)
    program.go()
    truth = program.result()["launches"]
    counted = lambda: launches(program.pid) - before
    within(5, lambda: counted() >= truth)
    check(counted() == truth, f"{name}: {counted():.0f} launches counted, {truth} made")
    program.end()


def chains(pid):
    """The highest severity of each cause."""
    found = [labels for labels, value in samples("gpucause_causal_chains_total", pid) if value > 0]
    found.sort(key=lambda labels: SEVERITIES.index(labels["severity"]))
    return {labels["cause"]: labels["severity"] for labels in found}


def healthy():
    program = Program("training", FAULT_SECONDS)
    if not check(program.warm(), "a training starts"):
        program.end()
        return
    program.go()
    step = program.result()["step_us"]
    check(launches(program.pid) > 0, "its launches are observed")
    program.end()
    # Its end is evaluated, too.
    time.sleep(4)
    found = chains(program.pid)
    check(not found, f"nothing is wrong with a training of {step:.0f} us a step: {found or 'no chain'}")


def faults():
    share = os.cpu_count() // len(FAULTS)
    if not check(share >= 2, f"{os.cpu_count()} CPUs are enough for {len(FAULTS)} programs"):
        return
    cpus = {name: f"{share * at}-{share * at + share - 1}" for at, name in enumerate(FAULTS)}
    cpus["preempted"] = "0"
    programs = [Program(name, FAULT_SECONDS, cpus[name]) for name in FAULTS]
    hogs = []
    try:
        if not all([check(program.warm(), f"{program.name} starts") for program in programs]):
            return
        hogs += [subprocess.Popen(["taskset", "-c", "0", "sh", "-c", "while :; do :; done"]) for _ in range(2)]
        for program in programs:
            program.go()
        for program in programs:
            program.result()
        for program in programs:
            found, wanted = chains(program.pid), FAULTS[program.name]
            check(found.get(wanted, "low") != "low", f"{program.name}: {wanted} is found: {found}")
            check("lock_wait" not in found, f"{program.name}: threads that wait for each other hold no lock")
    finally:
        for hog in hogs:
            hog.kill()
        for program in programs:
            program.end()


def cost(exporter):
    """The training's step with probes, once they keep to the budget, and without, in turns."""
    steps = {True: [], False: []}
    for attached in [True, False] * COST_ROUNDS:
        training = Program("training", COST_SECONDS, "0-1")
        training.warm()
        training.go()
        steps[attached].append(round(training.result()["step_us"]))
        training.end()
        # All probes go, and come back.
        exporter.send_signal(signal.SIGUSR1)
        time.sleep(1)
    on, off = (statistics.median(steps[attached]) for attached in (True, False))
    print(f"{'':8}a step takes {on:.0f} us with probes {steps[True]} and {off:.0f} us without {steps[False]}: {on / off - 1:+.1%}")


def main():
    exporter = subprocess.Popen([sys.argv[1], "exporter", "--web.listen-address", ADDRESS], stderr=subprocess.DEVNULL)
    try:
        check(within(20, page), "the exporter starts")
        counts("profiled", 20)
        for name in ("triton", "cupy", "jax"):
            counts(name, STEPS)
        healthy()
        faults()
        cost(exporter)
    finally:
        exporter.terminate()
        exporter.wait()
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    sys.exit(main())
