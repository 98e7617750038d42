"""What the exporter says of a process, over time."""

import inspect
import pathlib
import re
import threading
import time


def waited(pid):
    """Seconds that the threads which launch waited for a CPU, by the kernel's account."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            if task.name == str(pid) or (task / "comm").read_text().startswith("pt_autograd"):
                total += int((task / "schedstat").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            pass
    return total / 1e9


# Without a CPU.
NO_CPU = ("preempted", "runqueue")


class LostTime:
    """Of processes: by the counters between marks, as `top` shows it, and what chains have of it."""

    def __init__(self, exporter, pids):
        self.exporter, self.pids = exporter, pids
        self.marks, self.shown, self.ended = [], 0.0, threading.Event()
        # Of each process: the time, and all dispatcher time, what is lost of it and what of that without a CPU until then.
        self.curves = {pid: [] for pid in pids}
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def mark(self, name):
        page = self.exporter.page()
        total = lambda metric, pid: self.exporter.total(f"gpucause_dispatcher_{metric}_total", pid, page)
        self.marks.append((name, [(total("lost_seconds", pid), total("seconds", pid), waited(pid)) for pid in self.pids]))

    def watch(self):
        begin = time.monotonic()
        while not self.ended.wait(1):
            at, page = time.time(), self.exporter.page()
            for pid, curve in self.curves.items():
                lost = [(labels["state"], own) for labels, own in self.exporter.samples("gpucause_dispatcher_lost_seconds_total", pid, page)]
                cpu = sum(own for state, own in lost if state in NO_CPU)
                wall = self.exporter.total("gpucause_dispatcher_seconds_total", pid, page)
                curve.append((at, wall, sum(own for _, own in lost), cpu))
            # From when what `top` shows has nothing of the start.
            for process in filter(None, map(self.exporter.process, self.pids if time.monotonic() > begin + 6 else ())):
                self.shown = max(self.shown, process["lost_share"] or 0.0)

    def stop(self):
        self.ended.set()
        self.watcher.join()

    def end(self):
        """Of each phase the share that is lost, and the share in waits for a CPU by the kernel's account: of all processes."""
        self.stop()
        for (name, before), (_, after) in zip(self.marks, self.marks[1:]):
            lost, seconds, waits = (sum(b[at] - a[at] for a, b in zip(before, after)) for at in range(3))
            yield name, lost / max(seconds, 1e-9), waits / max(seconds, 1e-9)


    def unnamed(self, pid):
        """Of the time in which a process was watched, the share that is shown as lost beyond what chains have; and of that without a CPU, where
        no chain has it. What is shown is the mean over threads, and chains have the time of the one that lost most."""
        chains, curve = self.exporter.chains(pid), self.curves[pid]
        # Chains have what they took until their last evaluation.
        begin, end = curve[0][0], max([chain["last_seen"] for chain in chains if chain["taken_by"]], default=curve[-1][0])
        wall, lost, cpu = (between(points, begin, end) for points in ([(own[0], own[at]) for own in curve] for at in (1, 2, 3)))
        named = sum(between(taken(chain, lost=chain["cause"] != "unexplained"), begin, end) for chain in chains)
        has_cpu = any(chain["cause"] in ("cpu_preemption", "runqueue_wait", "noisy_cgroup") for chain in chains)
        return lost / wall - named / (end - begin), 0.0 if has_cpu else cpu / wall


def shown(shares):
    return ", ".join(f"{phase} {lost:.1%} (waits for a CPU {waits:.1%})" for phase, lost, waits in shares)


def until(points, at):
    """The total of a curve of (time, total) at a time."""
    before = (points[0][0], 0.0) if points else (at, 0.0)
    for point in points:
        if point[0] >= at:
            part = (at - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
            return before[1] + max(part, 0.0) * (point[1] - before[1])
        before = point
    return before[1]


def between(points, begin, end):
    return until(points, end) - until(points, begin)


def taken(chain, lost=False):
    """What a chain took until when, or what was lost of that."""
    return [(chain["first_seen"] + own[0], own[2 if lost else 1]) for own in chain["taken_by"]]


def names_line(text, function):
    """Whether a text has FILE:LINE of a function."""
    lines, first = inspect.getsourcelines(function)
    named = re.findall(pathlib.Path(inspect.getfile(function)).name + r":(\d+)", text)
    return any(first <= int(line) < first + len(lines) for line in named)
