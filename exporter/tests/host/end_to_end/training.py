"""A program that launches, and waits in each step while something is wrong."""

import ctypes
import os
import select
import sys
import time

# Each wait takes some twenty times as long as the launches of a step.
WAIT = 0.02
LAUNCHES = 20


def blocked():
    """For how long this thread neither had a CPU nor waited for one, from some time on."""
    with open("/proc/thread-self/schedstat") as statistics:
        queued = int(statistics.read().split()[1]) / 1e9
    return time.monotonic() - time.thread_time() - queued


def trains(library, wait):
    """Launches kernels. From the first line of input on it waits in each step; from the second on no more.

    Prints its PID, and at the end for how long it was blocked."""
    cudart = ctypes.CDLL(library)
    print(os.getpid(), flush=True)
    begin = None
    while True:
        for _ in range(LAUNCHES):
            cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)
        if select.select([sys.stdin], [], [], 0)[0]:
            sys.stdin.readline()
            if begin is not None:
                print(blocked() - begin, flush=True)
            begin = blocked() if begin is None else None
        if begin is None:
            time.sleep(WAIT / 4)
        else:
            wait()
