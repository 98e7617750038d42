"""Loads in the thread that launches until the first line of input, and sleeps from then on."""

import ctypes
import sys
import threading
import time

cudart = ctypes.CDLL(sys.argv[1])
done = threading.Event()


def load():
    end = time.perf_counter() + 0.02
    value = 1
    while time.perf_counter() < end:
        value = value * 3 % 1_000_003
    return value


def train():
    for _ in range(100):
        cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)


def wait():
    sys.stdin.readline()
    done.set()


threading.Thread(target=wait, daemon=True).start()
while not done.is_set():
    load()
    train()
time.sleep(1000)
