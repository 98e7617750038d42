#!/usr/bin/env python3
"""Tests of what the exporter reports about real programs on a real GPU: test.py GPUCAUSE

Their launches are counted exactly, by CUPTI's count of a PyTorch training and by what Triton, CuPy and JAX programs did. Each fault of a
program is named, and healthy ones have no chain. What the probes cost a training is printed.
Needs root, a GPU, and a `python3` with PyTorch, Triton, CuPy and JAX; takes six minutes.
"""

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "pytorch"))
from expected import MOST_LOST
from exporter import Exporter, within
from healthy import PROGRAMS
from host import FIRST, step_back
from observed import LostTime, shown
from started import Started, check, failed

STEPS = 1000
# Healthy programs run for so long, and are observed for so long after that.
HEALTHY_SECONDS, AFTER = 60, 10
# Programs of one process on one GPU, without the stand-in NCCL; `launch_bound` is tested alone, as only itself limits it.
HEALTHY = [program.__name__ for program in PROGRAMS if program.__name__ not in ("two_ranks", "two_devices", "launch_bound")]
# A cause is found after three evaluations of 1.5 s in which a program loads nothing more, and launches of the fastest are sampled by then.
FAULT_SECONDS = 16
# In turns with and without probes.
COST_ROUNDS, COST_SECONDS = 3, 10
# Cause of each program's fault.
FAULTS = {
    "preempted": "cpu_preemption",
    "large_copies": "large_copy",
    "emptied_cache": "allocator_churn",
    "slow_workers": "dataloader_starvation",
    "reads": "block_io",
    "slow_dataset": "host_code",
    "python_loop": "lock_wait",
    "held_by_c": "lock_wait",
}


def counts(exporter, name, amount):
    program = Started(name, amount)
    if not check(program.warm(), f"{name} starts"):
        program.end()
        return
    within(10, lambda: exporter.launches(program.pid) > 0)
    # Until what warmed it up is counted.
    time.sleep(1)
    before = exporter.launches(program.pid)
    program.go()
    truth = program.result()["launches"]
    counted = lambda: exporter.launches(program.pid) - before
    within(5, lambda: counted() >= truth)
    check(counted() == truth, f"{name}: {counted():.0f} launches counted, {truth} made")
    program.end()


def start_all(names, seconds):
    """Each on CPUs of its own; None where they are too few or one does not start. `preempted` has one."""
    share = os.cpu_count() // len(names)
    if not check(share >= 2, f"{os.cpu_count()} CPUs are enough for {len(names)} programs"):
        return None
    cpus = {name: f"{share * at}-{share * at + share - 1}" for at, name in enumerate(names)}
    if "preempted" in cpus:
        cpus["preempted"] = cpus["preempted"].split("-")[0]
    programs = [Started(name, seconds, ["taskset", "-c", cpus[name]]) for name in names]
    if all([check(program.warm(), f"{program.name} starts") for program in programs]):
        return programs, cpus
    for program in programs:
        program.end()
    return None


def observe(program, lost):
    for line in program.lines():
        lost.mark(line.get("phase", "after its end"))
    time.sleep(AFTER)
    lost.mark(None)


def healthy(exporter):
    started = start_all(HEALTHY, HEALTHY_SECONDS)
    if not started:
        return
    lost = {program: LostTime(exporter, [program.pid]) for program in started[0]}
    observers = [threading.Thread(target=observe, args=each) for each in lost.items()]
    for program, observer in zip(lost, observers):
        program.go()
        observer.start()
    for observer in observers:
        observer.join()
    for program, own in lost.items():
        shares, found = list(own.phases()), exporter.severities(program.pid)
        check(exporter.launches(program.pid) > 0, f"{program.name}: its launches are observed")
        most = max(share for _, share in shares)
        check(most < MOST_LOST, f"{program.name}: less than {MOST_LOST:.0%} is lost in each phase: {shown(shares)}")
        check(not found, f"{program.name}: nothing is wrong with it: {found or 'no chain'} {sentences(exporter, program, but=None)}")
        program.end()


def faults(exporter):
    started = start_all(FAULTS, FAULT_SECONDS)
    if not started:
        return
    programs, cpus = started
    hogs = [subprocess.Popen([*FIRST, "taskset", "-c", cpus["preempted"], "sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        for program in programs:
            program.go()
        for program in programs:
            program.result()
        for program in programs:
            found, wanted = exporter.severities(program.pid), FAULTS[program.name]
            check(found.get(wanted, "low") != "low", f"{program.name}: {wanted} is found: {found}")
            is_right = wanted == "lock_wait" or "lock_wait" not in found
            check(is_right, f"{program.name}: threads that wait for each other hold no lock: {sentences(exporter, program, but=wanted)}")
    finally:
        for hog in hogs:
            hog.kill()
        for program in programs:
            program.end()


def sentences(exporter, program, but):
    """Returns the sentences of all chains of a program except those of one cause."""
    return [chain["sentence"] for chain in exporter.chains(program.pid) if chain["cause"] != but]


def launch_bound(exporter):
    """Its own code limits it, which is worth knowing and no more."""
    program = Started("launch_bound", HEALTHY_SECONDS)
    if not check(program.warm(), f"{program.name} starts"):
        program.end()
        return
    program.go()
    program.result()
    found, wanted = exporter.severities(program.pid), {"host_code": "low"}
    check(found == wanted, f"{program.name}: {wanted}: found {found or 'no chain'}")
    program.end()


def cost(exporter):
    """The training's step with probes, once they keep to the budget, and without, in turns."""
    steps = {True: [], False: []}
    for attached in [True, False] * COST_ROUNDS:
        training = Started("launch_bound", COST_SECONDS, ["taskset", "-c", "0-1"])
        training.warm()
        training.go()
        steps[attached].append(round(training.result()["step_us"]))
        training.end()
        # All probes go, and come back.
        exporter.child.send_signal(signal.SIGUSR1)
        time.sleep(1)
    on, off = (statistics.median(steps[attached]) for attached in (True, False))
    print(f"{'':8}a step takes {on:.0f} us with probes {steps[True]} and {off:.0f} us without {steps[False]}: {on / off - 1:+.1%}")


def main():
    step_back()
    exporter = Exporter(sys.argv[1], "127.0.0.1:9439")
    try:
        check(exporter.starts(), "the exporter starts")
        counts(exporter, "profiled", 20)
        for name in ("triton", "cupy", "jax"):
            counts(exporter, name, STEPS)
        healthy(exporter)
        faults(exporter)
        launch_bound(exporter)
        cost(exporter)
    finally:
        exporter.end()
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    sys.exit(main())
