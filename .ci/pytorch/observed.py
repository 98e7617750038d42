"""Reports of the exporter about a process, over time."""

import inspect
import pathlib
import re
import threading
import time


class Shown:
    """The largest share of processes that `top` shows as lost."""

    def __init__(self, exporter, pids):
        self.exporter, self.pids = exporter, pids
        self.most, self.ended = 0.0, threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def watch(self):
        # Until what it shows has nothing of the start.
        self.ended.wait(6)
        while not self.ended.wait(1.5):
            for process in filter(None, map(self.exporter.process, self.pids)):
                self.most = max(self.most, process["lost_share"] or 0.0)

    def end(self):
        self.ended.set()
        self.watcher.join()
        return self.most


class LostTime:
    """Lost time of processes, by the counters at marks. The exporter evaluates what it finds when these counters are read."""

    NO_CPU = ("preempted", "runqueue")

    def __init__(self, exporter, pids):
        self.exporter, self.pids = exporter, pids
        # Name and time, and of each process all dispatcher time, what is lost of it, and what of that without a CPU.
        self.marks = []

    def mark(self, name):
        at, page = time.time(), self.exporter.page()
        lost = lambda pid: list(self.exporter.samples("gpucause_dispatcher_lost_seconds_total", pid, page))
        total = lambda pid, states=None: sum(own for labels, own in lost(pid) if states is None or labels["state"] in states)
        wall = lambda pid: self.exporter.total("gpucause_dispatcher_seconds_total", pid, page)
        self.marks.append((name, at, {pid: (wall(pid), total(pid), total(pid, self.NO_CPU)) for pid in self.pids}))

    def phases(self):
        """Yields each phase with the share of its time that is lost, over all processes."""
        for (name, _, before), (_, _, after) in zip(self.marks, self.marks[1:]):
            wall, lost = (sum(after[pid][at] - before[pid][at] for pid in self.pids) for at in (0, 1))
            yield name, lost / max(wall, 1e-9)

    def unnamed(self, pid):
        """The share of the time that is shown as lost beyond what chains have, and of that without a CPU, where no chain has it. What is
        shown is the mean over threads, and chains have the time of the one that lost most."""
        chains = [chain for chain in self.exporter.chains(pid) if chain["taken_by"]]
        # Chains took the time before the first was found at once, and have no time after their last evaluation.
        begin = max(self.marks[0][1], min([chain["first_seen"] for chain in chains], default=0))
        end = max([chain["last_seen"] for chain in chains], default=self.marks[-1][1])
        curves = [[(at, own[pid][column]) for _, at, own in self.marks] for column in range(3)]
        between = lambda curve: until(curve, end) - until(curve, begin)
        wall, lost, cpu = map(between, curves)
        named = sum(between(taken(chain, lost=chain["cause"] != "unexplained")) for chain in chains)
        has_cpu = any(chain["cause"] in ("cpu_preemption", "runqueue_wait") for chain in chains)
        if end <= begin:
            # One evaluation has all.
            return 0.0, 0.0
        return lost / wall - named / (end - begin), 0.0 if has_cpu else cpu / wall


def shown(shares):
    return ", ".join(f"{phase} {lost:.1%}" for phase, lost in shares)


def until(points, at):
    """The total of a curve of (time, total) at a time."""
    before = (points[0][0], 0.0) if points else (at, 0.0)
    for point in points:
        if point[0] >= at:
            part = (at - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
            return before[1] + max(part, 0.0) * (point[1] - before[1])
        before = point
    return before[1]


def taken(chain, lost=False):
    """Returns a curve of (time, total): what a chain took by each time, or what was lost of that."""
    return [(chain["first_seen"] + own[0], own[2 if lost else 1]) for own in chain["taken_by"]]


def names_line(text, function):
    """Returns True if a text has FILE:LINE of a function."""
    lines, first = inspect.getsourcelines(function)
    named = re.findall(pathlib.Path(inspect.getfile(function)).name + r":(\d+)", text)
    return any(first <= int(line) < first + len(lines) for line in named)
