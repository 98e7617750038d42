"""This module measures what else the host does while a program runs: a failure under other load says nothing."""

import os
import pathlib
import statistics
import threading
import time

from thread_name import set_thread_name

# How much less of the CPUs the test has than what it starts, and the command that starts something without that.
BEHIND = 10
FIRST = ("nice", "-n", str(-BEHIND))
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """Returns the CPU seconds of a process and its ended children, or 0 once it has ended itself."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def step_back():
    """Lets what is tested go first, and names this process: the others are Python, too."""
    os.nice(BEHIND)
    set_thread_name("test")


class Speed:
    """How fast the CPUs are, by what the same work takes of one: a virtual machine may slow down without a word of steal."""

    EVERY, MIDDLE_OF = 0.25, 20

    def __init__(self):
        self.took, self.ended = [], threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        while not self.ended.wait(self.EVERY):
            before = time.thread_time()
            sum(range(10_000))
            self.took.append(time.thread_time() - before)

    def end(self):
        """By what part it was slower for 5 s than at its best."""
        self.ended.set()
        self.watcher.join()
        middles = [statistics.median(self.took[at : at + self.MIDDLE_OF]) for at in range(0, len(self.took), self.MIDDLE_OF)]
        return max(middles) / min(middles) - 1 if middles else 0.0


class Host:
    """The CPUs, from its making to `end`."""

    # Share of them that others may have. That they are slower for a while is shown, and excuses nothing.
    MOST = 0.1
    # Share that a hypervisor may take: all of it may be taken from one thread, which is awake and does not run.
    MOST_STOLEN = 0.01

    def __init__(self, pids):
        self.pids = [os.getpid(), *pids]
        self.before, self.used, self.speed, self.slower = self.now(), None, Speed(), 0.0

    def now(self):
        user, nice, system, idle, waiting, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
        busy = user + nice + system + irq + softirq
        return busy / TICKS, steal / TICKS, (busy + idle + waiting + steal) / TICKS, sum(map(cpu_seconds, self.pids))

    def end(self):
        busy, stolen, all_, own = (now - before for now, before in zip(self.now(), self.before))
        self.used, self.slower = (max(busy - own, 0.0), stolen, all_), self.speed.end()

    def is_quiet(self):
        others, stolen, all_ = self.used
        return others + stolen <= self.MOST * all_ and stolen <= self.MOST_STOLEN * all_

    def __str__(self):
        others, stolen, all_ = self.used
        return f"of {all_:.0f} s of CPUs others had {others:.1f} s, {stolen:.1f} s were stolen, and they were slower for a while by {self.slower:.0%}"
