"""Nodes of a cluster on one host: each is a network namespace and a control group as Slurm makes them, with an exporter that
observes only what is in it, and ranks of jobs."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from stack import Failure, Stack

# Two CPUs: that on which a rank is slowed down, and one for all others.
CONTENDED, OTHERS = 1, 0
# An agent of real-time priority: it has its CPU for 0.4 s of each 0.5 s.
COMPETITOR = """
import time
while True:
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        pass
    time.sleep(0.1)
"""


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def unified_cgroups():
    """Where the unified hierarchy is mounted."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, folder, kind = line.split()[:3]
        if kind == "cgroup2":
            return pathlib.Path(folder)
    raise OSError("no unified hierarchy of control groups is mounted")


class Node:
    """One node. `stack` starts its programs."""

    def __init__(self, stack, programs, number):
        self.stack, self.programs, self.number = stack, programs, number
        self.name = f"gpu-{number}"
        self.namespace = f"gpucause-{number}"
        self.address = f"10.213.{number}.2"
        self.instance = f"{self.address}:9400"
        # This host, as seen from the node.
        self.gateway = f"10.213.{number}.1"
        self.cgroup = unified_cgroups() / f"slurm_{self.name}"

    def __enter__(self):
        self.remove()
        link, peer = f"gpucause{self.number}", "eth0"
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", link, "type", "veth", "peer", "name", peer, "netns", self.namespace)
        run("ip", "address", "add", f"10.213.{self.number}.1/30", "dev", link)
        run("ip", "link", "set", link, "up")
        for command in (("address", "add", f"{self.address}/30", "dev", peer), ("link", "set", peer, "up"), ("link", "set", "lo", "up")):
            run("ip", "-n", self.namespace, *command)
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        """Removes what it has, and what an earlier run left behind."""
        # The link ends with the namespace, once nothing runs in it.
        subprocess.run(["ip", "netns", "delete", self.namespace], check=False, stderr=subprocess.DEVNULL)
        for folder in sorted(self.cgroup.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def inside(self, command):
        """Not by `ip netns exec`: its /sys has no control groups."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *command]

    def start_exporter(self, *more):
        config = self.stack.folder / f"{self.name}.yaml"
        # A JSON string is a YAML string.
        config.write_text(f"processes: {{include: [{{cgroup: {json.dumps(re.escape(f'/{self.cgroup.name}/') + '.*')}}}]}}\n")
        command = [self.programs / "gpucause", "exporter", f"--web.listen-address={self.instance}", f"--config.file={config}", "--nvml.off", *more]
        self.stack.start(f"exporter of {self.name}", self.inside(command))

    def enter(self, job):
        """Has this process, which is about to become a rank, enter the job's control group."""
        folder = self.cgroup / "uid_1000" / f"job_{job}" / "step_0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("0")


@contextlib.contextmanager
def cluster(name, args, kind=Node):
    """Yields the stack that runs programs, and the nodes of a test. A failure ends the test with the reason."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as context:
        folder = args.keep or pathlib.Path(context.enter_context(tempfile.TemporaryDirectory(prefix=f"gpucause-{name}-")))
        folder.mkdir(parents=True, exist_ok=True)
        stack = Stack(folder)
        nodes = [context.enter_context(kind(stack, args.programs.resolve(), number)) for number in range(args.nodes)]
        context.callback(stack.end)
        try:
            yield stack, nodes
        except Failure as failure:
            sys.exit(f"{name}: {failure}")


class Rank:
    """One rank of a job, on a node of its own."""

    def __init__(self, node, job, number, ranks):
        self.node, self.job, self.number, self.ranks = node, job, number, ranks
        self.name = f"rank {number} of job {job}"
        self.competitor = None

    def start(self, host="6ms"):
        """Each step has that much work of the host."""
        workload = self.node.programs / "stand-ins" / "gpucause-workload"
        command = [workload, "lockstep", "--libs", workload.parent, "--comm", "train", "--with-parent", "--seconds", 86400, "--host", host,
                   "--ranks", self.ranks, "--rank", self.number, "--meet", self.node.stack.folder / f"job-{self.job}"]
        environment = {**os.environ, "RANK": str(self.number), "WORLD_SIZE": str(self.ranks)}
        child = self.node.stack.start(self.name, self.node.inside(command), env=environment, preexec_fn=lambda: self.node.enter(self.job))
        self.pid = child.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def settle(self, cpus):
        """Binds all threads to these CPUs."""
        for task in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(task), cpus)


def slow(rank, others):
    """A busy process takes most of the rank's CPU; the other ranks have another one."""
    for other in others:
        other.settle({OTHERS})
    rank.settle({CONTENDED})
    rank.node.stack.start("competitor", ["taskset", "--cpu-list", CONTENDED, "chrt", "--fifo", 1, sys.executable, "-c", COMPETITOR])


def no_longer_slow(rank, others):
    rank.node.stack.end(["competitor"])
    for each in (rank, *others):
        each.settle({CONTENDED, OTHERS})


def kill(rank, _others):
    rank.node.stack.running.pop(rank.name)
    rank.signal(signal.SIGKILL)
    os.waitpid(rank.pid, 0)


# For each fault: how it is injected into a rank, the alert that must name the rank, and how the fault is ended.
FAULTS = {
    "slow": (slow, "GpucauseStraggler", no_longer_slow),
    "stopped": (lambda rank, _: rank.signal(signal.SIGSTOP), "GpucauseStraggler", lambda rank, _: rank.signal(signal.SIGCONT)),
    "killed": (kill, "GpucauseRankMissing", lambda rank, _: rank.start()),
}
