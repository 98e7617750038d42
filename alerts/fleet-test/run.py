#!/usr/bin/env python3
"""A rank of a job is slowed down, stopped or killed, and the shipped rules, alerts and routes must name it at the receiver within
20 s, and no other rank. Nodes are network namespaces with an exporter each; jobs have a rank on every node.

One round is one fault of one rank. Jobs take turns: while one job's alert resolves, the next job has its fault.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "alerts/demo-stack"))

from engines import ENGINES, Alertmanager  # noqa: E402
from nodes import FAULTS, Rank, cluster  # noqa: E402
from stack import Failure  # noqa: E402
from webhook import Receiver  # noqa: E402

PORTS = {"prometheus": 19190, "alertmanager": 19193, "webhook": 19195, "vmagent": 19196, "vmalert": 19197}
# The alerts about ranks go there.
RECEIVER = "training-jobs"
MOST_SECONDS = 20
# Additional time that the restart of a server may take.
RESTART_SECONDS = 15
RESOLVE_SECONDS = 90


def arguments():
    parser = argparse.ArgumentParser(description="Name the rank that is slowed down, stopped or killed.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, metavar="DIR", help="folder of gpucause and stand-ins/")
    parser.add_argument("--engine", choices=ENGINES, default="prometheus", help="what evaluates the rules [%(default)s]")
    parser.add_argument("--engine-programs", type=pathlib.Path, metavar="DIR", help="folder of its programs [those of the PATH]")
    parser.add_argument("--rounds", type=int, default=21, help="[%(default)s]")
    parser.add_argument("--jobs", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--nodes", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--faults", default=",".join(FAULTS), help="in turn [%(default)s]")
    parser.add_argument("--healthy", type=float, default=45, metavar="SECONDS", help="time before the first fault [%(default)s]")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="for logs and data, which else are removed")
    return parser.parse_args()


def say(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Notifications:
    """Alerts at the receiver, by their first notification."""

    def __init__(self):
        self.changed = threading.Condition()
        self.all = []
        self.known = set()

    def hear(self, receiver, alert):
        key = (alert["fingerprint"], alert["startsAt"], alert["status"])
        with self.changed:
            if key not in self.known:
                self.known.add(key)
                self.all.append((time.time(), receiver, alert["status"], alert["labels"], alert["annotations"]))
                self.changed.notify_all()

    def wait(self, since, status, name, rank, seconds):
        """When the alert of the rank was first notified after `since`, and its summary; `None` after so many seconds."""
        end = time.time() + seconds
        with self.changed:
            while True:
                for at, _, own, labels, notes in self.all:
                    if at >= since and own == status and labels["alertname"] == name and is_of(labels, rank):
                        return at, notes["summary"]
                if time.time() >= end:
                    return None
                self.changed.wait(0.5)


def is_of(labels, rank):
    return (labels.get("slurm_job"), labels.get("rank")) == (str(rank.job), str(rank.number))


class Round:
    def __init__(self, number, fault, rank, restart):
        self.number, self.fault, self.rank, self.restart = number, fault, rank, restart
        self.injected = self.named = self.resolved = self.healed = None
        self.failures = []

    def explains(self, at, labels):
        """Returns true if the alert is about this rank, between its fault and the end of the alert."""
        end = self.healed + (self.resolved if self.resolved is not None else RESOLVE_SECONDS)
        return is_of(labels, self.rank) and self.injected <= at <= end

    def text(self):
        after = f" ({self.restart} restarts meanwhile)" if self.restart else ""
        named = f"{self.named:.1f} s" if self.named is not None else "never"
        resolved = f"{self.resolved:.1f} s" if self.resolved is not None else "never"
        return f"round {self.number:2}: {self.rank.name} {self.fault}: named after {named}, resolved after {resolved}{after} {' '.join(self.failures)}"


class Test:
    def __init__(self, args, stack, nodes):
        self.args, self.stack = args, stack
        instances = [node.instance for node in nodes]
        self.alertmanager = Alertmanager(stack, ROOT, PORTS)
        self.engine = ENGINES[args.engine](stack, ROOT, instances, PORTS, args.engine_programs)
        self.jobs = [[Rank(node, 41 + job, number, len(nodes)) for number, node in enumerate(nodes)] for job in range(args.jobs)]
        self.nodes, self.notifications, self.rounds = nodes, Notifications(), []

    def start(self):
        for node in self.nodes:
            node.start_exporter()
        for node in self.nodes:
            self.stack.until_ready(f"exporter of {node.name}", f"http://{node.instance}/-/ready")
        self.alertmanager.start()
        self.engine.start()
        for rank in (rank for job in self.jobs for rank in job):
            rank.start()
        time.sleep(self.args.healthy)
        self.stack.check()

    def inject(self, round_, job):
        """One fault, until its alert is there."""
        rank, (begin, alert, end) = round_.rank, FAULTS[round_.fault]
        others = [other for ranks in self.jobs for other in ranks if other is not rank]
        since = round_.injected = time.time()
        begin(rank, others)
        if round_.restart:
            time.sleep(5)
            {"alertmanager": self.alertmanager, "engine": self.engine}[round_.restart].restart()
        limit = MOST_SECONDS + (RESTART_SECONDS if round_.restart else 0)
        found = self.notifications.wait(since, "firing", alert, rank, 4 * limit)
        if found:
            at, summary = found
            round_.named = at - since
            say(f"{rank.name} {round_.fault}: {round_.named:.1f} s: {summary}")
        if not found or round_.named > limit:
            round_.failures.append(f"not named within {limit} s")
        if round_.fault == "stopped" and not round_.restart:
            self.explain(round_)
        end(rank, others)
        round_.healed = time.time()
        self.stack.check()

    def explain(self, round_):
        """`explain --job` names the stopped rank, and no other, as the one that has not entered a collective."""
        rank = round_.rank
        answer = subprocess.run([self.args.programs / "gpucause", "explain", "--job", str(rank.job), "--nodes-from", f"prometheus:{self.engine.targets}"],
                                capture_output=True, text=True, check=False)
        late = [line for line in answer.stdout.splitlines() if line.startswith("LATE")]
        expected = f"LATE  Rank {rank.number} of {rank.ranks} (train, PID {rank.pid} on http://{rank.node.instance}) has not entered collective "
        if len(late) != 1 or not late[0].startswith(expected) or " ncclAllReduce of " not in late[0] or ": stopped for " not in late[0]:
            round_.failures.append(f"explain answers {answer.returncode}: {answer.stdout}{answer.stderr}")
        else:
            say(late[0])

    def until_resolved(self, round_):
        alert = FAULTS[round_.fault][1]
        # An alert that never was is not resolved.
        found = round_.named is not None and self.notifications.wait(round_.healed, "resolved", alert, round_.rank, RESOLVE_SECONDS)
        if found:
            round_.resolved = found[0] - round_.healed
        else:
            round_.failures.append("not resolved")
        say(round_.text())

    def run(self):
        faults, last = self.args.faults.split(","), {}
        # One restart of each in the middle, as a stop and as a kill.
        middle = self.args.rounds // 2
        for number in range(self.args.rounds):
            job = number % len(self.jobs)
            if job in last:
                self.until_resolved(last.pop(job))
            restart = {middle: "engine", middle + 2: "alertmanager"}.get(number) if self.args.rounds > 4 else None
            # Each job has each fault, and all ranks.
            fault = faults[(number + number // len(self.jobs)) % len(faults)]
            rank = self.jobs[job][(number + number // len(self.jobs)) % len(self.nodes)]
            round_ = Round(number + 1, fault, rank, restart)
            self.rounds.append(round_)
            self.inject(round_, job)
            last[job] = round_
        for round_ in last.values():
            self.until_resolved(round_)

    def wrong(self):
        """Alerts about ranks that had no fault."""
        for at, receiver, status, labels, notes in self.notifications.all:
            if receiver == RECEIVER and status == "firing" and not any(own.explains(at, labels) for own in self.rounds):
                yield f"{time.strftime('%H:%M:%S', time.localtime(at))} {labels['alertname']}: {notes['summary']}"

    def report(self):
        wrong, others = list(self.wrong()), {}
        for _, receiver, status, labels, _ in self.notifications.all:
            if receiver != RECEIVER and status == "firing":
                others[labels["alertname"]] = others.get(labels["alertname"], 0) + 1
        print("\n".join(round_.text() for round_ in self.rounds))
        for fault in FAULTS:
            times = sorted(own.named for own in self.rounds if own.fault == fault and own.named is not None)
            if times:
                print(f"{fault}: named {len(times)} times, after {times[0]:.1f} to {times[-1]:.1f} s, median {statistics.median(times):.1f} s")
        print(f"{self.args.engine}: {len(self.rounds)} rounds, {len(wrong)} alerts about other ranks; to other receivers: {json.dumps(others)}")
        print("\n".join(wrong))
        return not wrong and not any(round_.failures for round_ in self.rounds)


def main():
    args = arguments()
    with cluster("fleet-test", args) as (stack, nodes):
        test = Test(args, stack, nodes)
        with Receiver(PORTS["webhook"], test.notifications.hear):
            test.start()
            test.run()
        sys.exit(0 if test.report() else 1)


if __name__ == "__main__":
    main()
