"""Programs whose launches are known on a real GPU: each step is one, or CUPTI counts them."""

import os


def repeat(run, step):
    for _ in range(5):
        step()
    run.ready()
    for _ in range(int(run.seconds)):
        step()
    return {"launches": int(run.seconds)}


def profiled(run):
    """Launches of so many training steps, as CUPTI counts them."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from training import Training

    step = Training(layers=4).step
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    step()
    with profile(activities=kinds):
        step()
    torch.cuda.synchronize()
    run.ready()
    with profile(activities=kinds) as events:
        for _ in range(int(run.seconds)):
            step()
        torch.cuda.synchronize()
    launches = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")
    return {"launches": sum(event.name.startswith(launches) for event in events.events())}


def triton(run):
    import torch
    import triton as compiler
    import triton.language as tl

    def add_one(pointer, n, SIZE: tl.constexpr):
        at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        tl.store(pointer + at, tl.load(pointer + at, mask=at < n) + 1, mask=at < n)

    globals()["tl"] = tl
    kernel, numbers = compiler.jit(add_one), torch.zeros(1024, device="cuda")
    return repeat(run, lambda: kernel[(1,)](numbers, 1024, SIZE=1024))


def cupy(run):
    import cupy as cp

    numbers = cp.zeros(64, dtype=cp.float32)
    return repeat(run, lambda: cp.add(numbers, 1, out=numbers))


def jax(run):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax as compiler

    function = compiler.jit(lambda x: x * 2 + 1)
    numbers = compiler.numpy.zeros((256, 256))
    return repeat(run, lambda: function(numbers).block_until_ready())


PROGRAMS = (profiled, triton, cupy, jax)
