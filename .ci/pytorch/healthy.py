"""Programs with which nothing is wrong: the GPU is their limit, or they wait for what is to come."""

import os
import queue
import random
import subprocess
import tempfile
import threading
import time

import gpu


def eager(run):
    """A wait for the GPU each step."""
    from training import Training

    training = Training()
    gpu.limit(training.step, training.grow)
    run.only("train", training.waiting_step)


def full_queue(run):
    """Runs as far ahead of the GPU as its queue allows: launches wait for the queue, and nothing else does."""
    from training import Training

    training = Training()
    gpu.limit(training.step, training.grow)
    run.only("train", training.step)


def compiled(run):
    """Kernels of Triton, forward and backward."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = lambda: [torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU()]
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in block())).to("cuda")
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(512, 256, device="cuda")
    function = torch.compile(lambda data: (model(data) - data).square().mean())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = function(data)
        loss.backward()
        optimizer.step()
        return loss

    def grow():
        nonlocal data
        data = torch.cat([data, data])

    gpu.limit(step, grow)
    run.only("train", lambda: step().item())


def graphs(run):
    import torch
    from training import Training

    training, graph = Training(layers=4), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(side):
            training.model(training.data)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            output = training.model(training.data)
    # A launch of a graph takes little of the CPU.
    gpu.limit(graph.replay, factor=100)
    run.only("replay", lambda: (graph.replay(), output[0, 0, 0].item()))


def two_ranks(run):
    """Trains two ranks of DDP over the stand-in NCCL, which waits for nobody."""
    import torch
    from training import Training

    rank = int(os.environ.setdefault("RANK", "0"))
    os.environ.update({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"})
    if rank == 0:
        run.start_rank(1)
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    training = Training()
    # Its check of shapes would read what a kernel wrote.
    training.model = torch.nn.parallel.DistributedDataParallel(training.model, init_sync=False)
    gpu.limit(training.step, factor=8)
    run.only("train", training.waiting_step)


def prefetching(run):
    """A thread of the program loads, pins and copies batches ahead."""
    import torch
    from training import Training

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, at):
            return torch.full((128, 256), float(at % 7))

    training, batches = Training(), queue.Queue(maxsize=2)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, pin_memory=True)

    def load():
        for batch in loader:
            batches.put(batch)

    thread = threading.Thread(target=load, name="prefetch", daemon=True)

    def step():
        training.data = batches.get().to("cuda", non_blocking=True)
        training.waiting_step()

    thread.start()
    gpu.limit(step, factor=3)
    run.only("train", step)


def mixed(run):
    """Does what a training does in an epoch, and is idle where a training is."""
    import torch
    from training import Training

    training = Training()
    gpu.limit(training.step, training.grow)
    run.ready()
    run.phase("train")
    run.repeat(training.waiting_step, run.seconds * 0.3)
    run.phase("evaluate")
    run.repeat(lambda: training.infer(training.data), run.seconds * 0.1)
    run.phase("save and sleep")
    with tempfile.TemporaryFile() as file:
        torch.save(training.model.state_dict(), file)
    time.sleep(run.seconds * 0.2)
    run.phase("wait for a child")
    subprocess.run(["sleep", str(run.seconds * 0.13)], check=True)
    run.phase("read a pipe")
    with subprocess.Popen(["sh", "-c", f"sleep {run.seconds * 0.1}; echo done"], stdout=subprocess.PIPE) as child:
        child.stdout.read()
    run.phase("train again")
    run.repeat(training.waiting_step, run.seconds * 0.15)


def requests(run):
    """A server of inference: batches come at random, from another thread."""
    from training import Training

    training, arrived, generator = Training(), queue.Queue(), random.Random(0)
    gpu.limit(lambda: training.predict(training.data), training.grow)
    batch = training.data.cpu().pin_memory()
    run.ready()
    run.phase("serve")
    end = time.perf_counter() + run.seconds

    def clients():
        while time.perf_counter() < end:
            time.sleep(generator.expovariate(1 / 0.06))
            arrived.put(batch)
        arrived.put(None)

    threading.Thread(target=clients, name="clients").start()
    while (request := arrived.get()) is not None:
        training.infer(request.to("cuda", non_blocking=True))
        run.steps += 1


def checkpointing(run):
    """Backward computes forward again, so the thread of autograd launches it."""
    from training import Training

    training = Training(checkpointing=True)
    gpu.limit(training.step, training.grow)
    run.only("train", training.waiting_step)


def two_devices(run):
    """Each has a thread of autograd."""
    from training import Training

    training = Training(layers=4, devices=2)
    gpu.limit(training.step, training.grow, factor=8)
    run.only("train", training.waiting_step)


def launch_bound(run):
    """Its own code is its limit, and nothing delays that: the GPU is never behind."""
    from training import Training

    training = Training()
    for _ in range(5):
        training.step()
    gpu.never_the_limit()
    run.only("train", training.step)


PROGRAMS = (eager, full_queue, compiled, graphs, two_ranks, prefetching, mixed, requests, checkpointing, two_devices, launch_bound)
