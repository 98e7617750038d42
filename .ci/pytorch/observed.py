"""What the exporter says of a process, over time."""

import inspect
import pathlib
import re
import threading


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


class LostTime:
    """Of processes: by the counters between marks, and as `top` shows it."""

    def __init__(self, exporter, pids):
        self.exporter, self.pids = exporter, pids
        self.marks, self.shown, self.ended = [], 0.0, threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def mark(self, name):
        page = self.exporter.page()
        total = lambda metric, pid: self.exporter.total(f"gpucause_dispatcher_{metric}_total", pid, page)
        self.marks.append((name, [(total("lost_seconds", pid), total("seconds", pid), waited(pid)) for pid in self.pids]))

    def watch(self):
        # Until what `top` shows has nothing of the start.
        self.ended.wait(6)
        while not self.ended.wait(1.5):
            for process in filter(None, map(self.exporter.process, self.pids)):
                self.shown = max(self.shown, process["lost_share"] or 0.0)

    def end(self):
        """Of each phase the share that is lost, and the share in waits for a CPU by the kernel's account: of all processes."""
        self.ended.set()
        self.watcher.join()
        for (name, before), (_, after) in zip(self.marks, self.marks[1:]):
            lost, seconds, waits = (sum(b[at] - a[at] for a, b in zip(before, after)) for at in range(3))
            yield name, lost / max(seconds, 1e-9), waits / max(seconds, 1e-9)


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


def taken(chain):
    """What a chain took until when."""
    return [(chain["first_seen"] + at, seconds) for at, seconds, _ in chain["taken_by"]]


def names_line(text, function):
    """Whether a text has FILE:LINE of a function."""
    lines, first = inspect.getsourcelines(function)
    named = re.findall(pathlib.Path(inspect.getfile(function)).name + r":(\d+)", text)
    return any(first <= int(line) < first + len(lines) for line in named)
