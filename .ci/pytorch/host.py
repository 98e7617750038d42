"""What else the host does while a program runs: a failure beside others says nothing."""

import os
import pathlib

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """Of a process and its ended children; 0 once it has ended itself."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


class Host:
    """The CPUs, from its making to `end`."""

    # Share of them that others may have.
    MOST = 0.1

    def __init__(self, pids):
        self.pids = [os.getpid(), *pids]
        self.before, self.used = self.now(), None

    def now(self):
        user, nice, system, idle, waiting, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
        busy = user + nice + system + irq + softirq
        return busy / TICKS, steal / TICKS, (busy + idle + waiting + steal) / TICKS, sum(map(cpu_seconds, self.pids))

    def end(self):
        busy, stolen, all_, own = (now - before for now, before in zip(self.now(), self.before))
        self.used = max(busy - own, 0.0), stolen, all_

    def is_quiet(self):
        others, stolen, all_ = self.used
        return others + stolen <= self.MOST * all_

    def __str__(self):
        others, stolen, all_ = self.used
        return f"of {all_:.0f} s of CPUs others had {others:.1f} s, and {stolen:.1f} s were stolen"
