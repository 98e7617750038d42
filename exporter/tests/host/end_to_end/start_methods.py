"""Launches what a worker process prepares too slowly: LIBRARY METHOD FIRST.

METHOD is how the worker is started, `default` for what this Python does by itself, or the tree of processes that it is in; FIRST is what
comes first, `call` or `worker`. Prints the PIDs of the worker and of the process that launches.
"""

import ctypes
import multiprocessing
import os
import sys
import time

PREPARES = 0.06
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, SIGKILL = 1, 15, 36, 9
libc = ctypes.CDLL(None)


def prepare(batches):
    # It inherits the other end of the pipe too, so that it would write on. Its parent is the trainer, or a server that ends with that.
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    while True:
        end = time.monotonic() + PREPARES
        while time.monotonic() < end:
            pass
        batches.send(b"batch")


def forked(act):
    """A process that ends with this one."""
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
        act()
        os._exit(0)
    return pid


def supervises(name, act):
    """This process never launches, and gets the orphans of the one below it."""
    libc.prctl(PR_SET_NAME, name)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.waitpid(forked(act), 0)


def train(batches, worker):
    launch = ctypes.CDLL(LIBRARY).cudaLaunchKernel
    arguments = (None, 1, 1, 1, 1, None, 0, None)
    if FIRST == "call":
        launch(*arguments)
    pid = worker()
    # A worker of the process only when it runs.
    batches.recv()
    print(pid, os.getpid(), flush=True)
    while True:
        batches.recv()
        for _ in range(20):
            launch(*arguments)


def by_method(method):
    context = multiprocessing.get_context(method)
    batches, end = context.Pipe(False)

    def worker():
        process = context.Process(target=prepare, args=(end,), daemon=True)
        process.start()
        return process.pid

    train(batches, worker)


def by_daemon():
    """The worker's own parent ends at once."""
    batches, end = multiprocessing.Pipe(False)

    def worker():
        supervisor, pids = os.getppid(), os.pipe()
        starter = os.fork()
        if starter == 0:
            worker = os.fork()
            if worker:
                os.write(pids[1], b"%d" % worker)
                os._exit(0)
            while os.getppid() != supervisor:
                pass
            prepare(end)
        os.waitpid(starter, 0)
        return int(os.read(pids[0], 16))

    train(batches, worker)


def beside():
    """The worker is no descendant of the process that launches: a third one has started both."""
    batches, end = multiprocessing.Pipe(False)
    libc.prctl(PR_SET_NAME, b"raylet")
    worker = forked(lambda: prepare(end))
    os.waitpid(forked(lambda: train(batches, lambda: worker)), 0)


TREES = {
    "torchrun": lambda: supervises(b"torchrun", lambda: by_method("fork")),
    "srun": lambda: supervises(b"slurmstepd", by_daemon),
    "ray": beside,
}
if __name__ == "__main__":
    LIBRARY, METHOD, FIRST = sys.argv[1:]
    TREES.get(METHOD, lambda: by_method(None if METHOD == "default" else METHOD))()
