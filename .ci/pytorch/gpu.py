"""The GPU that a program runs on: a real one, or a simulated one whose speed is set and whose calls are known."""

import ctypes
import statistics
import time

# Calls of the driver that launch: each launch makes one, whichever layer it began in.
LAUNCHES = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuLaunchHostFunc", "cuGraphLaunch")
# These launch a kernel too, which counts as theirs and not as a launch.
COLLECTIVES = ("ncclAllReduce", "ncclReduceScatter", "ncclReduce", "ncclBroadcast", "ncclBcast", "ncclAllGather")
# How many times as long as the program's own work the GPU takes, so that it is the limit.
FACTOR = 2.5


def stand_in():
    """The simulated driver, where it is loaded."""
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "fake_calls"):
        return None
    driver.fake_calls.restype = driver.fake_failed.restype = driver.fake_kernels.restype = ctypes.c_uint64
    driver.fake_calls.argtypes = driver.fake_failed.argtypes = [ctypes.c_char_p]
    driver.fake_kernel_ns.argtypes = [ctypes.c_uint64]
    return driver


def launches():
    """Outermost launches of this process so far, as the stand-ins count them; None on a real GPU."""
    driver = stand_in()
    calls = lambda names: sum(driver.fake_calls(name.encode()) for name in names)
    return calls(LAUNCHES) - calls(COLLECTIVES) if driver else None


def host_seconds(step, times=8):
    """Returns the median seconds of a step on the CPU; the GPU must be far ahead."""
    import torch

    durations = []
    for _ in range(times):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def limit(step, grow=None, factor=FACTOR):
    """Makes the GPU the limit of a program: the simulated one by its speed, a real one by `grow`, which doubles the work of a step; a real
    one needs a step that does not wait for it."""
    import torch

    driver = stand_in()
    for _ in range(3):
        step()
    if driver:
        driver.fake_kernel_ns(100)
        before = driver.fake_kernels()
        step()
        kernels = driver.fake_kernels() - before
        driver.fake_kernel_ns(int(factor * host_seconds(step) / kernels * 1e9))
        return
    for _ in range(12 if grow else 0):
        begin = time.perf_counter()
        for _ in range(4):
            step()
        queued = time.perf_counter() - begin
        torch.cuda.synchronize()
        if time.perf_counter() - begin >= factor * queued:
            return
        grow()


def never_the_limit():
    driver = stand_in()
    if driver:
        driver.fake_kernel_ns(100)
