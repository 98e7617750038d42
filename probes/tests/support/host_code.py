"""Computes between launches in lines that end in comments, by which the test knows them: 8 parts in one, 2 in another, and
as long again in a call that spins."""

import ctypes
import sys
import time

cudart = ctypes.CDLL(sys.argv[1])


def compute(seconds):
    end = time.perf_counter() + seconds
    value = 1
    while time.perf_counter() < end: value = value * 3 % 1_000_003  # fmt: skip # compute


def rest(seconds):
    end = time.perf_counter() + seconds
    value = 1
    while time.perf_counter() < end: value = value * 3 % 1_000_003  # fmt: skip # rest


def deeper(levels):
    if levels:
        return deeper(levels - 1)
    while True:
        compute(0.016)
        rest(0.004)
        cudart.cudaLaunchKernel(1234)
        cudart.cudaDeviceSynchronize()


cudart.cudaLaunchKernel(1234)
print("ready ", flush=True)
deeper(30)
