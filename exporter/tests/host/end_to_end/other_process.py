"""Launches kernels, and from the first line of input on waits for another process in each step: other_process.py KIND LIBRARY

Prints the PID of the process that launches. Each kind of wait takes some twenty times as long as the launches of a step.
"""

import ctypes
import fcntl
import mmap
import os
import select
import struct
import sys
import tempfile
import time

KIND, LIBRARY = sys.argv[1:]
PR_SET_NAME, PR_SET_PDEATHSIG, SIGKILL = 15, 1, 9
CLONE_NEWNS, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x20000, 0x4000, 0x40000, 2, 4
WAIT = 0.02
LAUNCHES = 20
libc = ctypes.CDLL(None, use_errno=True)


def named(name):
    """This process gets a name, and ends with its parent."""
    libc.prctl(PR_SET_NAME, name)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)


def computes(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def child(name, act):
    pid = os.fork()
    if pid == 0:
        named(name)
        act()
        os._exit(0)
    return pid


def slow_reader():
    """The other end of a pipe is read slowly, once it is full."""
    reads, writes = os.pipe()

    def read():
        os.close(writes)
        while data := os.read(reads, 8192):
            time.sleep(WAIT * len(data) / 8192)

    child(b"log-shipper", read)
    os.close(reads)
    return lambda: os.write(writes, b"x" * 8192)


def compiler():
    """A child that computes is waited for, for much longer than it takes to make it."""
    return lambda: os.waitpid(child(b"ptxas", lambda: computes(3 * WAIT)), 0)


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


def locked(lock, unlock):
    """Another process has the lock of a file nearly all of the time."""
    path = tempfile.mktemp()

    def hold():
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        while True:
            lock(file)
            time.sleep(WAIT)
            unlock(file)
            time.sleep(WAIT / 20)

    file = os.open(path, os.O_RDWR | os.O_CREAT)
    child(b"cache-warmer", hold)

    def wait():
        lock(file)
        unlock(file)

    return wait


def file_lock():
    return locked(lambda file: fcntl.flock(file, fcntl.LOCK_EX), lambda file: fcntl.flock(file, fcntl.LOCK_UN))


def record_lock():
    return locked(lambda file: fcntl.lockf(file, fcntl.LOCK_EX), lambda file: fcntl.lockf(file, fcntl.LOCK_UN))


class FileSystem:
    """In user space, with files that are 4 GiB long. Its answers to look-ups of names that begin with s, and to reads, take long."""

    # Opcodes.
    LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 27, 42
    EMPTY = {18, 25, 29, 34, 38}
    ENOSYS = 38

    def __init__(self):
        # It goes with its processes.
        if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
            raise OSError(ctypes.get_errno(), "mount namespace")
        self.path, device = tempfile.mkdtemp(), os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"archive", self.path.encode(), b"fuse", MS_NOSUID | MS_NODEV, options):
            raise OSError(ctypes.get_errno(), "mount")
        child(b"archive-mount", lambda: self.serve(device))
        os.close(device)

    @staticmethod
    def attributes(node):
        mode, size = (0o40755, 0) if node == 1 else (0o100644, 1 << 32)
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, opcode, node, body):
        if opcode == self.INIT:
            return struct.pack("<IIIIHHI", 7, 31, 0, 0, 16, 12, 1 << 17).ljust(64, b"\0")
        if opcode == self.GETATTR:
            return struct.pack("<QII", 1000, 0, 0) + self.attributes(node)
        if opcode == self.LOOKUP:
            if body.startswith(b"s"):
                time.sleep(WAIT)
            found = 2 + int(body[1:].rstrip(b"\0"))
            return struct.pack("<QQQQII", found, 1, 0, 1000, 0, 0) + self.attributes(found)
        if opcode in (self.OPEN, self.OPENDIR):
            return bytes(16)
        if opcode == self.READ:
            time.sleep(WAIT)
            return bytes(struct.unpack_from("<QQI", body)[2])
        return b"" if opcode in self.EMPTY else None

    def serve(self, device):
        while True:
            request = os.read(device, (1 << 17) + 8192)
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode in (self.FORGET, self.BATCH_FORGET):
                continue
            answer = self.answer(opcode, node, request[40:])
            error = -self.ENOSYS if answer is None else 0
            os.write(device, struct.pack("<IiQ", 16 + len(answer or b""), error, unique) + (answer or b""))


def looks_up():
    path, numbers = FileSystem().path, iter(range(1 << 30))
    return lambda: os.stat(f"{path}/s{next(numbers)}")


def reads():
    file, numbers = os.open(f"{FileSystem().path}/f0", os.O_RDONLY), iter(range(1 << 13))
    return lambda: os.pread(file, 4096, next(numbers) << 18)


def faults():
    file, numbers = os.open(f"{FileSystem().path}/f0", os.O_RDONLY), iter(range(1 << 13))
    pages = mmap.mmap(file, 1 << 32, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
    pages.madvise(mmap.MADV_RANDOM)
    return lambda: pages[next(numbers) << 18]


def yields():
    """Nothing to do for as long, on a CPU that another program wants."""
    os.sched_setaffinity(0, {1})
    child(b"batch", lambda: computes(1 << 20))

    def wait():
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            os.sched_yield()

    return wait


def trains(wait):
    cudart = ctypes.CDLL(LIBRARY)
    print(os.getpid(), flush=True)
    is_wrong = False
    while True:
        for _ in range(LAUNCHES):
            cudart.cudaLaunchKernel(None, 1, 1, 1, 1, None, 0, None)
        is_wrong = is_wrong or bool(select.select([sys.stdin], [], [], 0)[0])
        if is_wrong:
            wait()
        else:
            time.sleep(WAIT / 4)


def fed_by_parent():
    """Its parent prepares the work: a second process launches whenever it gets some."""
    reads, writes = os.pipe()

    def wait():
        os.read(reads, 1)

    if os.fork() == 0:
        named(b"gpu-worker")
        os.close(writes)
        trains(wait)
    libc.prctl(PR_SET_NAME, b"engine")
    while True:
        computes(WAIT)
        os.write(writes, b"x")


KINDS = {
    "reader": slow_reader,
    "child": compiler,
    "sleeper": sleeper,
    "stat": looks_up,
    "read": reads,
    "fault": faults,
    "yield": yields,
    "flock": file_lock,
    "lockf": record_lock,
}
if KIND == "parent":
    fed_by_parent()
trains(KINDS[KIND]())
