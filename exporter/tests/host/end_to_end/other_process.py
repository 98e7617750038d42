"""Launches kernels, and from the first line of input on waits for another process in each step: other_process.py KIND LIBRARY

Prints what training.py says.
"""

import fcntl
import hashlib
import mmap
import multiprocessing
import os
import select
import socket
import sys
import tempfile
import threading
import time

import file_system
from file_system import FileSystem
from processes import child, computes, libc, named, PR_SET_NAME
from ring_file_system import RingFileSystem
from training import trains, WAIT

KIND, LIBRARY = sys.argv[1:]
PIECE = 8192
# FS_IOC_GETFLAGS
GET_FLAGS = 0x80086601


def slow_reader():
    """The other end of a pipe is read slowly, once it is full."""
    reads, writes = os.pipe()

    def read():
        os.close(writes)
        while data := os.read(reads, PIECE):
            time.sleep(WAIT * len(data) / PIECE)

    child(b"log-shipper", read)
    os.close(reads)
    return lambda: os.write(writes, b"x" * PIECE)


def slow_receiver(kind):
    """The other end of a socket is read so."""
    receives, sends = socket.socketpair(socket.AF_UNIX, kind)
    sends.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)

    def receive():
        sends.close()
        while data := receives.recv(PIECE):
            time.sleep(WAIT * len(data) / PIECE)

    child(b"log-shipper", receive)
    receives.close()
    return lambda: sends.sendall(b"x" * PIECE)


def compiles():
    computes(3 * WAIT)


def compiler():
    """A child that computes is waited for, for much longer than it takes to make it."""
    return lambda: os.waitpid(child(b"ptxas", compiles), 0)


def compiler_of_a_driver():
    """The child does nothing but wait for one of its own that computes."""

    def drive():
        os.waitpid(child(b"cicc", compiles), 0)

    return lambda: os.waitid(os.P_PID, child(b"nvcc", drive), os.WEXITED)


def sleeper():
    """A child computes for long beside its parent, and sleeps once it is waited for."""

    def act():
        computes(9 * WAIT)
        time.sleep(WAIT)

    def wait():
        pid = child(b"sleeper", act)
        computes(9 * WAIT)
        os.waitpid(pid, 0)

    return wait


def locked(lock, unlock, beside=None):
    """Another process has the lock of a file nearly all of the time, and one more may have another lock of it."""
    path = tempfile.mktemp()

    def opened():
        return os.open(path, os.O_RDWR | os.O_CREAT)

    def hold():
        file = opened()
        while True:
            lock(file)
            time.sleep(WAIT)
            unlock(file)
            time.sleep(WAIT / 20)

    if beside:
        child(b"cache-index", lambda: beside(opened()))
    file = opened()
    child(b"cache-warmer", hold)

    def wait():
        lock(file)
        unlock(file)

    return wait


def keeps_another_part(file):
    """The first lock of the file is one that nobody waits for."""
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 100)
    time.sleep(1 << 20)


FLOCK = lambda file: fcntl.flock(file, fcntl.LOCK_EX), lambda file: fcntl.flock(file, fcntl.LOCK_UN)
RECORD = lambda file: fcntl.lockf(file, fcntl.LOCK_EX, 1), lambda file: fcntl.lockf(file, fcntl.LOCK_UN, 1)


def looks_up(files=FileSystem):
    path, numbers = files().path, iter(range(1 << 30))
    return lambda: os.stat(f"{path}/s{next(numbers)}")


def of_a_file(slow, act, files=FileSystem):
    """An operation on an open file, whose answer is slow."""
    file, numbers = os.open(f"{files(slow).path}/f0", os.O_RDWR), iter(range(1 << 13))
    return lambda: act(file, next(numbers) << 18)


def reads(file, offset):
    os.pread(file, mmap.PAGESIZE, offset)


def writes(file, offset):
    os.pwrite(file, bytes(mmap.PAGESIZE), offset)


def asks(name, request):
    """A file or folder by ioctl."""
    file = os.open(f"{FileSystem(file_system.IOCTL).path}/{name}", os.O_RDONLY)
    return lambda: fcntl.ioctl(file, request, bytes(8))


def opens():
    path = f"{FileSystem(file_system.OPEN).path}/f0"
    return lambda: os.close(os.open(path, os.O_RDONLY))


def closes():
    path = f"{FileSystem(file_system.FLUSH).path}/f0"
    return lambda: os.close(os.open(path, os.O_RDONLY))


def lists():
    path = FileSystem(file_system.READDIR).path
    return lambda: os.listdir(path)


def faults(files=FileSystem):
    file, numbers = os.open(f"{files(file_system.READ).path}/f0", os.O_RDONLY), iter(range(1 << 13))
    pages = mmap.mmap(file, file_system.FILE_BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
    pages.madvise(mmap.MADV_RANDOM)
    return lambda: pages[next(numbers) << 18]


def yields(*others):
    """Nothing to do for as long, on a CPU that others want."""
    os.sched_setaffinity(0, {1})
    for act in others:
        act()

    def wait():
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            os.sched_yield()

    return wait


def batch():
    child(b"batch", lambda: computes(1 << 20))


def tokenizer():
    """A thread of this process that computes without the interpreter's lock."""

    def tokenize():
        while True:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)

    threading.Thread(target=tokenize, daemon=True).start()


def fed_by_parent(wait, give):
    """Its parent prepares the work: a second process launches whenever it gets some."""
    if os.fork() == 0:
        named(b"gpu-worker")
        trains(LIBRARY, wait)
    libc.prctl(PR_SET_NAME, b"engine")
    while True:
        computes(WAIT)
        give()


def by_pipe():
    reads, writes = os.pipe()
    fed_by_parent(lambda: os.read(reads, 1), lambda: os.write(writes, b"x"))


def by_socket():
    receives, sends = socket.socketpair()
    poll = select.epoll()
    poll.register(receives, select.EPOLLIN)

    def wait():
        poll.poll()
        receives.recv(1)

    fed_by_parent(wait, lambda: sends.send(b"x"))


def by_semaphore():
    """In shared memory."""
    work = multiprocessing.get_context("fork").Semaphore(0)
    fed_by_parent(work.acquire, work.release)


PARENTS = {"parent": by_pipe, "parent-socket": by_socket, "parent-semaphore": by_semaphore}
KINDS = {
    "reader": slow_reader,
    "stream": lambda: slow_receiver(socket.SOCK_STREAM),
    "datagram": lambda: slow_receiver(socket.SOCK_DGRAM),
    "child": compiler,
    "grandchild": compiler_of_a_driver,
    "sleeper": sleeper,
    "stat": looks_up,
    "open": opens,
    "close": closes,
    "list": lists,
    "read": lambda: of_a_file(file_system.READ, reads),
    "write": lambda: of_a_file(file_system.WRITE, writes),
    "ioctl": lambda: asks("f0", 0x7801),
    "ioctl-flags": lambda: asks("f0", GET_FLAGS),
    "ioctl-folder": lambda: asks("d0", GET_FLAGS),
    "fault": faults,
    "ring-stat": lambda: looks_up(RingFileSystem),
    "ring-read": lambda: of_a_file(file_system.READ, reads, RingFileSystem),
    "ring-fault": lambda: faults(RingFileSystem),
    "yield": lambda: yields(batch),
    "yield-to-several": lambda: yields(batch, batch, batch),
    "yield-to-own": lambda: yields(tokenizer),
    "flock": lambda: locked(*FLOCK),
    "lockf": lambda: locked(*RECORD),
    "lockf-beside-another": lambda: locked(*RECORD, keeps_another_part),
}
if KIND in PARENTS:
    PARENTS[KIND]()
trains(LIBRARY, KINDS[KIND]())
