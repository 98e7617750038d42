#!/usr/bin/env python3
"""A program on a GPU, with one thing wrong with it or with nothing: program.py NAME SECONDS

Prints `ready` once it is warm, and goes on after a line of standard input. Then it prints a line of JSON where each of its phases begins, and
one of what it did. It ends with standard input.
"""

import json
import os
import subprocess
import sys
import time

import counted
import errors
import faults
import gpu
import healthy
from thread_name import set_thread_name

PROGRAMS = {program.__name__: program for group in (healthy, faults, counted, errors) for program in group.PROGRAMS}


class Run:
    def __init__(self, seconds):
        self.seconds, self.steps, self.step_us = seconds, 0, None
        self.rank = None
        self.before = None
        self.culprit_tid = None
        # Seconds lost so far, and a curve of them over time with a point for each step that lost something.
        self.lost, self.curve = 0.0, []
        # A curve of seconds in which its threads waited for CPUs, where it has one.
        self.waited = []

    def start_rank(self, number):
        """Starts the same program as another rank."""
        command = [sys.executable, "-B", *sys.argv]
        environment = {**os.environ, "RANK": str(number)}
        self.rank = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self):
        if self.rank:
            self.rank.stdout.readline()
        print("ready", flush=True)
        sys.stdin.readline()
        if self.rank:
            self.rank.stdin.write("go\n")
            self.rank.stdin.flush()
        self.before = gpu.launches()

    def phase(self, name):
        print(json.dumps({"phase": name, "at": time.monotonic()}), flush=True)

    def only(self, phase, step):
        """All of what it does once it is warm."""
        self.ready()
        self.phase(phase)
        self.repeat(step, self.seconds)

    def repeat(self, step, seconds):
        begin, half = time.perf_counter(), None
        while time.perf_counter() < begin + seconds:
            step()
            self.steps += 1
            if half is None and time.perf_counter() > begin + seconds / 2:
                half = time.perf_counter(), self.steps
        # Over the first half probes come to keep to the budget.
        if half and self.steps > half[1]:
            self.step_us = (time.perf_counter() - half[0]) / (self.steps - half[1]) * 1e6

    def lose(self, seconds):
        self.lost += seconds
        self.curve.append((time.time(), self.lost))

    def wait_for_cpus(self, seconds):
        """In all so far."""
        self.waited.append((time.time(), seconds))

    def result(self, more):
        launches = gpu.launches()
        result = {
            "at": time.monotonic(),
            "pid": os.getpid(),
            "steps": self.steps,
            "step_us": self.step_us,
            "launches": launches - self.before if launches is not None else None,
            "lost": self.lost,
            "curve": self.curve,
            "waited": self.waited,
            "culprit_tid": self.culprit_tid,
            **(more or {}),
        }
        if self.rank:
            lines = iter(self.rank.stdout.readline, "")
            result["ranks"] = [next(json.loads(line) for line in lines if "steps" in line)]
        return result


def main():
    name, seconds = sys.argv[1], float(sys.argv[2])
    # Chains name who has a CPU: `python3` could be any of the programs, or what tests them.
    set_thread_name(name)
    run = Run(seconds)
    print(json.dumps(run.result(PROGRAMS[name](run))), flush=True)
    sys.stdin.read()
    if run.rank:
        run.rank.stdin.close()
        run.rank.wait()
    # Not the destructors of what it started.
    os._exit(0)


if __name__ == "__main__":
    main()
