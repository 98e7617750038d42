"""Launches kernels, and from the first line of input on has a pool of threads that never rest: LIBRARY."""

import ctypes
import hashlib
import sys
import threading
import time

cudart = ctypes.CDLL(sys.argv[1])
PR_SET_NAME = 15


def work(number):
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"pool-%d" % number)
    while True:
        # Without the interpreter's lock.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)


def start_pool():
    sys.stdin.readline()
    for number in range(3):
        threading.Thread(target=work, args=(number,), daemon=True).start()


threading.Thread(target=start_pool, daemon=True).start()
while True:
    cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)
    time.sleep(0.0005)
