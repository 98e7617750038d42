"""Programs with one thing wrong with them, and what it costs them by their own clocks."""

import ctypes
import os
import pathlib
import subprocess
import tempfile
import threading
import time

import gpu
from thread_name import set_thread_name


class SlowSamples:
    """Each computes for so many seconds."""

    def __init__(self, computing):
        self.computing = computing

    def __len__(self):
        return 1 << 20

    def __getitem__(self, _):
        import torch

        end = time.perf_counter() + self.computing
        while time.perf_counter() < end:
            pass
        return torch.zeros(256)


def slow_dataset(run):
    """Samples are made by the thread that launches."""
    import torch
    from training import Training

    batches = iter(torch.utils.data.DataLoader(SlowSamples(0.02), batch_size=4))
    training = Training()
    gpu.never_the_limit()
    for _ in range(3):
        training.step()

    def step():
        begin = time.thread_time()
        next(batches)
        training.step()
        # All of what this thread computes is its own code, but for what its launches take.
        run.lose(time.thread_time() - begin)

    run.only("train", step)


class Threads:
    """This thread and those of autograd, by the kernel's accounts."""

    def __init__(self):
        comm = lambda tid: pathlib.Path(f"/proc/self/task/{tid}/comm").read_text()
        autograd = [tid for tid in os.listdir("/proc/self/task") if comm(tid).startswith("pt_autograd")]
        self.tids = (threading.get_native_id(), *map(int, autograd))

    def seconds(self):
        """Their sums."""
        return tuple(map(sum, zip(*map(seconds_of, self.tids))))


def seconds_of(tid):
    """Seconds on a CPU, and seconds waited for one, of a thread. For a running one schedstat has the former as of the last tick, and its
    clock has them as of now."""
    CPUCLOCK_SCHED, CPUCLOCK_PERTHREAD = 2, 4
    fields = pathlib.Path(f"/proc/self/task/{tid}/schedstat").read_text().split()
    return time.clock_gettime(~tid << 3 | CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED), int(fields[1]) / 1e9


def slow_workers(run, start=None):
    import torch
    from training import Training

    loader = torch.utils.data.DataLoader(
        SlowSamples(0.04), batch_size=2, num_workers=2, multiprocessing_context=start
    )
    batches = iter(loader)
    training = Training()
    # Starts the threads of autograd.
    training.step()
    gpu.never_the_limit()
    threads = Threads()

    def step():
        begin, computed = time.perf_counter(), sum(threads.seconds())
        next(batches)
        # Without what it took of a CPU, and the wait for one: the workers have them all.
        run.lose(time.perf_counter() - begin - (sum(threads.seconds()) - computed))
        training.step()
        run.wait_for_cpus(threads.seconds()[1])

    for _ in range(3):
        step()
    run.only("train", step)


def slow_workers_of_a_server(run):
    """By the start method that is Python's own since 3.14."""
    slow_workers(run, "forkserver")


def named(name, function):
    def run():
        set_thread_name(name)
        function()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def repeat(run, step, lost, threads):
    """Steps, with what is lost until after each by a clock of `lost`, and what its `threads` waited for CPUs."""
    before = lost()

    def own():
        nonlocal before
        step()
        now = lost()
        run.lose(now - before)
        before = now
        run.wait_for_cpus(threads.seconds()[1])

    run.phase("train")
    run.repeat(own, run.seconds)


def disturbed(run, function, lost=None, others=()):
    """A training beside threads that keep the interpreter. Of its own one works at a time, so that lost is the time in which none has a
    CPU or waits for one, if `lost` has no better clock."""
    from training import Training

    training = Training()
    gpu.never_the_limit()
    for _ in range(3):
        training.step()
    threads, keepers = Threads(), [named(name, function) for name in ("metrics", *others)]
    # None of several is the culprit.
    run.culprit_tid = None if others else keepers[0].native_id
    run.ready()
    seconds = lambda: {keeper.name: seconds_of(keeper.native_id)[0] for keeper in keepers}
    before = seconds()
    repeat(run, training.step, lost or (lambda: time.perf_counter() - sum(threads.seconds())), threads)
    return {"keepers": {name: after - before[name] for name, after in seconds().items()}}


def aggregates():
    """Computes in a loop of Python that never waits, on the thread "metrics"."""
    total = 0
    while True:
        for number in range(1000):
            total += number


def python_loop(run):
    return disturbed(run, aggregates)


def two_python_loops(run):
    """One gives the interpreter to the other, which nothing tells the training."""
    return disturbed(run, aggregates, others=["logger"])


def held_by_c(run):
    """30 ms of every 50 in C that does not release the interpreter."""
    folder = tempfile.mkdtemp()
    source, library = pathlib.Path(__file__).with_name("hold.c"), f"{folder}/libhold.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    hold, held = ctypes.PyDLL(library).hold, 0.0

    def exports():
        nonlocal held
        while True:
            begin = time.perf_counter()
            hold(30)
            held += time.perf_counter() - begin
            time.sleep(0.02)

    # The training works in Python nearly all of the time.
    return disturbed(run, exports, lambda: held)


def preempted(run):
    """By what the test starts beside it on its CPU. Inference, as threads of a training would compete for that, too."""
    from training import Training

    training = Training()
    gpu.never_the_limit()

    def step():
        import torch

        with torch.no_grad():
            training.model(training.data)

    for _ in range(3):
        step()
    threads = Threads()
    run.ready()
    repeat(run, step, lambda: threads.seconds()[1], threads)


def reads(run):
    """Reads a file from this host's disk, not from its page cache. A virtual disk may have finished a read before the thread waits for it."""
    from task_clock import TaskClock
    from training import Training

    file = tempfile.TemporaryFile(dir="/var/tmp")
    for _ in range(200):
        file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
    training, number = Training(), 0
    clock = TaskClock()
    gpu.never_the_limit()

    def step():
        nonlocal number
        number += 1
        begin = time.perf_counter()
        clock.seconds()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for block in range(32):
            os.pread(file.fileno(), 65536, (number * 8 << 20) % (192 << 20) + block * 65536)
        run.lose(time.perf_counter() - begin - clock.seconds())
        training.step()

    for _ in range(3):
        step()
    run.only("train", step)


def large_copies(run):
    import torch

    block = torch.zeros(64 << 20)
    step = lambda: block.to("cuda").add_(1)
    step()
    run.only("copy", step)


def emptied_cache(run):
    import torch

    def step():
        block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        block.fill_(1)
        del block
        torch.cuda.empty_cache()

    step()
    run.only("allocate", step)


PROGRAMS = (slow_dataset, slow_workers, slow_workers_of_a_server, python_loop, two_python_loops, held_by_c, preempted, reads, large_copies, emptied_cache)
