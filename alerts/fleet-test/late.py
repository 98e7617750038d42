#!/usr/bin/env python3
"""A rank of a job has more work than the others, which are on other hosts: each of those hosts names it, by what Prometheus says of
the ranks (--peers.url), and the host of the late rank names none. Nodes are network namespaces with an exporter each."""

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "alerts/demo-stack"))

from engines import Prometheus  # noqa: E402
from nodes import Node, Rank, cluster, run  # noqa: E402
from stack import Failure  # noqa: E402

PORTS = {"prometheus": 19190, "alertmanager": 19193}
LATE = 1
# One minute of rates, 30 s between evaluations and 15 s between questions, and what starts take.
MOST_SECONDS = 150


def arguments():
    parser = argparse.ArgumentParser(description="Name the late rank on another host.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, metavar="DIR", help="folder of gpucause and stand-ins/")
    parser.add_argument("--nodes", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--healthy", type=float, default=100, metavar="SECONDS", help="time without a late rank [%(default)s]")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="for logs and data, which else are removed")
    return parser.parse_args()


def say(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


LOCAL = "127.0.0.1:9400"
# Exit statuses of `explain`: causes were found, none was found, or the probes are still being attached.
ANSWERS = (0, 2, 3)


class LocalNode(Node):
    """A node that can be asked from within without a login, by a token in a folder of its own."""

    def inside(self, command):
        folder = self.stack.folder / f"token of {self.name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return super().inside(["env", f"RUNTIME_DIRECTORY={folder}", *command])


def late_ranks(args, node):
    """Returns the lines in which the node names late ranks."""
    command = [args.programs.resolve() / "gpucause", "explain", "--url", f"http://{LOCAL}", "--since", "10m"]
    answer = subprocess.run(node.inside(command), capture_output=True, text=True, check=False)
    if answer.returncode not in ANSWERS:
        raise Failure(f"{node.name} does not explain: {answer.stderr}")
    return [line.strip() for line in answer.stdout.splitlines() if "comes late to the collectives" in line]


def compare(args, stack, nodes):
    engine = Prometheus(stack, ROOT, [node.instance for node in nodes], PORTS, None, listen=nodes[0].gateway)
    for node in nodes:
        run("ip", "-n", node.namespace, "route", "add", "default", "via", node.gateway)
        node.start_exporter(f"--peers.url={engine.url}", f"--web.listen-address={LOCAL}")
    for node in nodes:
        stack.until_ready(f"exporter of {node.name}", f"http://{node.instance}/-/ready")
    engine.start()
    healthy, uneven = ([Rank(node, job, number, len(nodes)) for number, node in enumerate(nodes)] for job in (41, 42))
    for rank in healthy:
        rank.start()
    time.sleep(args.healthy)
    stack.check()
    for node in nodes:
        if found := late_ranks(args, node):
            raise Failure(f"{node.name} names a late rank of a healthy job: {found}")
    stack.end([rank.name for rank in healthy])
    since = time.monotonic()
    for rank in uneven:
        rank.start(host="60ms" if rank.number == LATE else "6ms")
    expected = f"Rank {LATE} on {nodes[LATE].instance} comes late to the collectives: "
    waiting = {node.name: node for node in nodes if node is not nodes[LATE]}
    while waiting:
        stack.check()
        for name, node in list(waiting.items()):
            for line in late_ranks(args, node):
                if not line.startswith(expected):
                    raise Failure(f"{name} names another rank: {line}")
                if waiting.pop(name, None):
                    say(f"{name} after {time.monotonic() - since:.0f} s: {line}")
        if time.monotonic() - since > MOST_SECONDS:
            raise Failure(f"the late rank is not named within {MOST_SECONDS} s by {', '.join(waiting)}")
        time.sleep(1)
    if found := late_ranks(args, nodes[LATE]):
        raise Failure(f"the late rank's own host names one: {found}")


def main():
    args = arguments()
    with cluster("late-test", args, LocalNode) as (stack, nodes):
        compare(args, stack, nodes)


if __name__ == "__main__":
    main()
