"""Launches kernels, and from the first line of input on shares what its limit leaves: LIBRARY KIND

KIND says with whom: `pool` (threads that never rest), `cpu-pool` (these, on one CPU by their own mask), `worker` (processes of its own) or
`nobody`. An `indexer` is a neighbour that computes.
"""

import ctypes
import hashlib
import os
import sys
import threading
import time

from processes import child, computes, libc, named, PR_SET_NAME

LIBRARY, KIND = sys.argv[1:]
FOREVER = 1 << 20


def work(number):
    libc.prctl(PR_SET_NAME, b"pool-%d" % number)
    while True:
        # Without the interpreter's lock.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)


def pool():
    for number in range(3):
        threading.Thread(target=work, args=(number,), daemon=True).start()


def worker():
    for _ in range(2):
        child(b"tokenizer", lambda: computes(FOREVER))


def pool_on_one_cpu():
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {1})
    pool()


def index():
    named(b"indexer")
    computes(FOREVER)


STARTS = {
    "pool": pool,
    "cpu-pool": pool_on_one_cpu,
    "worker": worker,
    "nobody": lambda: None,
}


def start():
    sys.stdin.readline()
    STARTS[KIND]()
    # Its children end with this thread.
    threading.Event().wait()


def launch():
    cudart = ctypes.CDLL(LIBRARY)
    threading.Thread(target=start, daemon=True).start()
    while True:
        cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)
        time.sleep(0.0005)


index() if KIND == "indexer" else launch()
