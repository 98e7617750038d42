"""For how long the thread that makes one has a CPU, also while a hypervisor has that CPU: the thread's own clock leaves that out."""

import ctypes
import os
import struct
import time

NUMBER_OF_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# Fields of perf_event_attr.
SOFTWARE, TASK_CLOCK, SIZE = 1, 1, 112


class TaskClock:
    def __init__(self):
        attributes = struct.pack("IIQ", SOFTWARE, SIZE, TASK_CLOCK).ljust(SIZE, b"\0")
        number = NUMBER_OF_PERF_EVENT_OPEN[os.uname().machine]
        libc = ctypes.CDLL(None, use_errno=True)
        self.counter = libc.syscall(number, attributes, 0, -1, -1, ctypes.c_ulong(0))
        if self.counter < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")
        self.last = self.both()

    def both(self):
        return int.from_bytes(os.read(self.counter, 8), "little") / 1e9, time.thread_time()

    def seconds(self):
        """Since this was asked last. The counter leaves out a part of each switch to the thread."""
        before, self.last = self.last, self.both()
        return max(now - then for now, then in zip(self.last, before))
