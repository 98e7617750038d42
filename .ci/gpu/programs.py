#!/usr/bin/env python3
"""A PyTorch, Triton, CuPy or JAX program, with one thing wrong with it or with nothing: programs.py NAME SECONDS

Prints `ready` once it is warm, goes on after a line of standard input, and prints a line of JSON: what it did. It then waits for
another line.
"""

import json
import os
import sys
import tempfile
import time


class Training:
    """Launch-bound steps: forward on this thread, backward on the one of autograd."""

    def __init__(self, layers=2):
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
        self.model = torch.nn.TransformerEncoder(layer, layers).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.data = torch.randn(8, 128, 256, device="cuda")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(self.data) - self.data).square().mean()
        loss.backward()
        self.optimizer.step()


def training():
    return Training().step


def large_copies():
    import torch

    block = torch.zeros(64 << 20)
    return lambda: block.to("cuda").add_(1)


def emptied_cache():
    import torch

    def step():
        block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        block.fill_(1)
        del block
        torch.cuda.empty_cache()

    return step


class SlowSamples:
    def __len__(self):
        return 1 << 20

    def __getitem__(self, _):
        import torch

        end = time.perf_counter() + 0.04
        while time.perf_counter() < end:
            pass
        return torch.zeros(256)


def slow_loader():
    import torch

    batches = iter(torch.utils.data.DataLoader(SlowSamples(), batch_size=2, num_workers=2))
    step = Training().step
    return lambda: (next(batches), step())


def reads():
    """Of a file of this host's disk, not of its page cache."""
    file = tempfile.TemporaryFile(dir="/var/tmp")
    for _ in range(200):
        file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
    step, number = Training().step, 0

    def read():
        nonlocal number
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        number += 1
        for block in range(32):
            os.pread(file.fileno(), 65536, (number * 8 << 20) % (192 << 20) + block * 65536)
        step()

    return read


def triton():
    import torch
    import triton as compiler
    import triton.language as tl

    def add_one(pointer, n, SIZE: tl.constexpr):
        at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        tl.store(pointer + at, tl.load(pointer + at, mask=at < n) + 1, mask=at < n)

    globals()["tl"] = tl
    kernel, numbers = compiler.jit(add_one), torch.zeros(1024, device="cuda")
    return lambda: kernel[(1,)](numbers, 1024, SIZE=1024)


def cupy():
    import cupy as cp

    numbers = cp.zeros(64, dtype=cp.float32)
    return lambda: cp.add(numbers, 1, out=numbers)


def jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax as compiler

    function = compiler.jit(lambda x: x * 2 + 1)
    numbers = compiler.numpy.zeros((256, 256))
    return lambda: function(numbers).block_until_ready()


def launches_by_profiler(steps):
    """Launches of so many training steps, as CUPTI counts them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = Training(layers=4).step
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    step()
    with profile(activities=kinds):
        step()
    torch.cuda.synchronize()
    go()
    with profile(activities=kinds) as profiled:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    launches = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")
    return sum(event.name.startswith(launches) for event in profiled.events())


def steps_within(step, seconds):
    end, steps = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        step()
        steps += 1
    return steps


def go():
    print("ready", flush=True)
    sys.stdin.readline()


PROGRAMS = (training, large_copies, emptied_cache, slow_loader, reads)
COUNTED = (triton, cupy, jax)


def main():
    name, amount = sys.argv[1], int(sys.argv[2])
    programs = {program.__name__: program for program in PROGRAMS + COUNTED}
    if name == "profiled":
        result = {"launches": launches_by_profiler(amount)}
    else:
        step = programs[name]()
        for _ in range(5):
            step()
        go()
        if programs[name] in COUNTED:
            for _ in range(amount):
                step()
            result = {"launches": amount}
        else:
            # Over the first half of the time probes come to keep to the budget.
            steps_within(step, amount / 2)
            result = {"step_us": amount / 2 / steps_within(step, amount / 2) * 1e6}
    print(json.dumps(result), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
