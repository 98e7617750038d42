"""Launches kernels, and from the first line of input on shares what its limit leaves: LIBRARY KIND

KIND says with whom: `pool` (threads that never rest), `cpu-pool` (these, on one CPU by their own mask), `worker` (processes of its own) or
`nobody`. A `writer` writes more to a file than its limit of memory leaves. An `indexer` is a neighbour that computes.
"""

import ctypes
import hashlib
import os
import sys
import tempfile
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


writes = threading.Event()
WRITTEN, MOST_WRITTEN = bytes(4 << 20), 256 << 20


STARTS = {
    "pool": pool,
    "cpu-pool": pool_on_one_cpu,
    "worker": worker,
    "nobody": lambda: None,
    "writer": lambda: writes.set(),
}


def start():
    sys.stdin.readline()
    STARTS[KIND]()
    # Its children end with this thread.
    threading.Event().wait()


def launch():
    cudart = ctypes.CDLL(LIBRARY)
    threading.Thread(target=start, daemon=True).start()
    # A file on a disk; one of tmpfs is in memory.
    file = tempfile.TemporaryFile(dir="/var/tmp", buffering=0) if KIND == "writer" else None
    while True:
        if writes.is_set():
            file.seek(file.tell() % MOST_WRITTEN)
            file.write(WRITTEN)
        cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)
        time.sleep(0.0005)


index() if KIND == "indexer" else launch()
