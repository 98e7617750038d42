#!/usr/bin/env python3
"""One trigger has all nodes write their last seconds, and the result is one trace: with all nodes, clocks that were measured, and
the fault that one of them has. Nodes are network namespaces with an exporter each, as in run.py; a job has a rank on every node."""

import argparse
import base64
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "alerts/demo-stack"))

from nodes import Node, Rank, cluster, slow  # noqa: E402
from stack import Failure  # noqa: E402

JOB = 41
CULPRIT = 2
USER, PASSWORD = "ops", "fleet"
# bcrypt hash of that password.
USERS = "basic_auth_users:\n  ops: $2y$04$abcdefghijklmnopqrstuuiBT1eBKGYz7JvDNRQV4LuggSj52qANu\n"
CHAIN_SECONDS = 120
# Between the ends of the nodes' records, at most: the slowest of them on a busy host.
APART_SECONDS = 5
# Preempted, or waiting for the CPU from the beginning, as it comes.
CAUSES = ("cpu_preemption", "runqueue_wait")
FAULT = f"cause IN {CAUSES} AND victim_comm = 'train' AND culprit_comm LIKE 'python%' AND severity IN ('high', 'critical')"


def arguments():
    parser = argparse.ArgumentParser(description="Fetch the last seconds of all nodes as one trace.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, metavar="DIR", help="folder of gpucause and stand-ins/")
    parser.add_argument("--nodes", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="for logs and data, which else are removed")
    return parser.parse_args()


class RecordingNode(Node):
    """A node with a name of its own and a flight recorder, which users may ask."""

    def inside(self, command):
        return super().inside(["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command])

    def start_exporter(self):
        records, users = self.stack.folder / f"records of {self.name}", self.stack.folder / "users.yml"
        records.mkdir()
        users.write_text(USERS)
        super().start_exporter(f"--flight-recorder.dir={records}", f"--web.config.file={users}")

    @property
    def ready(self):
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return urllib.request.Request(f"http://{self.instance}/-/ready", headers={"Authorization": f"Basic {login}"})


class Test:
    def __init__(self, args, stack, nodes):
        self.stack, self.nodes = stack, nodes
        self.gpucause = args.programs / "gpucause"
        self.ranks = [Rank(node, JOB, number, len(nodes)) for number, node in enumerate(nodes)]
        self.trace = stack.folder / "job.db"
        self.addresses = ",".join(f"http://{USER}@{node.instance}" for node in nodes)

    def run(self, *command, status=0):
        """Returns the output of a gpucause command; raises Failure if it ends with another status."""
        environment = {**os.environ, "GPUCAUSE_PASSWORD": PASSWORD}
        answer = subprocess.run([self.gpucause, *command], capture_output=True, text=True, check=False, env=environment)
        if answer.returncode != status:
            raise Failure(f"{' '.join(map(str, command))} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
        return answer.stdout + answer.stderr

    def rows(self, source, sql):
        return json.loads(self.run("query", *source, "--format=json", sql))["rows"]

    def start(self):
        for node in self.nodes:
            node.start_exporter()
        for node in self.nodes:
            self.stack.until_ready(f"exporter of {node.name}", node.ready)
        for rank in self.ranks:
            rank.start()

    def until_fault(self):
        """Waits for the chain on the node of the rank that is slowed down."""
        deadline = time.monotonic() + CHAIN_SECONDS
        while time.monotonic() < deadline:
            self.stack.check()
            found = self.rows(("--nodes", self.addresses), f"SELECT node, id, cause FROM chains WHERE {FAULT}")
            if found:
                return found
            time.sleep(1)
        raise Failure(f"nothing delays the rank on gpu-{CULPRIT} within {CHAIN_SECONDS} s")

    def record(self):
        begin = time.monotonic()
        print(self.run("flight", f"--job={JOB}", "--nodes", self.addresses, "-o", self.trace))
        print(f"{len(self.nodes)} nodes recorded, fetched and merged in {time.monotonic() - begin:.1f} s, {self.trace.stat().st_size >> 10} KiB")

    def check(self, fault):
        db = ("--db", self.trace)
        nodes = self.rows(db, "SELECT name, clock_ahead_ns, (SELECT count(*) FROM events e WHERE e.node = n.name), s.started_ns, s.ended_ns "
                              "FROM nodes n JOIN sessions s ON s.node = n.id ORDER BY n.id")
        for name, ahead, events, started, ended in nodes:
            print(f"{name}: {events} events of {(ended - started) / 1e9:.1f} s, clock {ahead / 1e3:+.0f} us")
        if [name for name, *_ in nodes] != [node.name for node in self.nodes]:
            raise Failure(f"the trace has the nodes {nodes}")
        if not all(events for _, _, events, _, _ in nodes):
            raise Failure("a node has no events")
        # All nodes have the clock of this host.
        if not all(abs(ahead) < 1e8 for _, ahead, _, _, _ in nodes):
            raise Failure("a clock was measured wrongly")
        ends = [ended for *_, ended in nodes]
        if max(ends) - min(ends) > APART_SECONDS * 1e9:
            raise Failure(f"the records end {(max(ends) - min(ends)) / 1e9:.1f} s apart")
        chains = self.rows(db, "SELECT n.name, c.id, cause, sentence FROM chains c JOIN nodes n ON n.id = c.node")
        print("\n".join(f"{node}: {cause}: {sentence}" for node, _, cause, sentence in chains))
        if {node for node, *_ in fault} != {f"gpu-{CULPRIT}"} or not all(chain in [own[:3] for own in chains] for chain in fault):
            raise Failure(f"the fault that the nodes report is not in the trace: {fault}")

    def use(self, fault):
        """The trace is explained and exported as one."""
        causes = {cause for _, _, cause in fault}
        explained = self.run("explain", "--db", self.trace)
        if not any(f"{cause} -> " in explained for cause in causes):
            raise Failure(f"explain does not name the fault:\n{explained}")
        perfetto = self.stack.folder / "job.pftrace"
        self.run("export", "--db", self.trace, "--format=perfetto", "-o", perfetto)
        exported = perfetto.read_bytes()
        for name in [*(node.name for node in self.nodes), *causes]:
            if name.encode() not in exported:
                raise Failure(f"{name} is not in the Perfetto trace")

    def refuse(self):
        """Each node refuses a second record that is asked for at once, and says so."""
        said = self.run("flight", "--nodes", self.addresses, "-o", self.stack.folder / "again.db", status=1)
        if said.count("try again in ") != len(self.nodes) or f"none of {len(self.nodes)} nodes answered" not in said:
            raise Failure(f"a second record is not refused: {said}")


def main():
    args = arguments()
    args.programs = args.programs.resolve()
    with cluster("flight-test", args, RecordingNode) as (stack, nodes):
        test = Test(args, stack, nodes)
        test.start()
        slow(test.ranks[CULPRIT], [rank for rank in test.ranks if rank is not test.ranks[CULPRIT]])
        fault = test.until_fault()
        test.record()
        test.refuse()
        test.check(fault)
        test.use(fault)
        print(f"one trace of {len(nodes)} nodes has the fault of gpu-{CULPRIT}")


if __name__ == "__main__":
    main()
