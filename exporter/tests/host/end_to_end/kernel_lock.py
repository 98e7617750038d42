"""Launches kernels, and from the first line of input on waits for a lock of the kernel in each step: kernel_lock.py KIND LIBRARY

Prints what training.py says.
"""

import ctypes
import itertools
import os
import sys
import threading
import time

from file_system import FileSystem
from processes import asked, child, libc, PR_SET_NAME
from training import trains, WAIT

KIND, LIBRARY = sys.argv[1:]
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_POPULATE, MAP_NORESERVE = 1, 2, 0x20, 0x8000, 0x4000
MADV_NOHUGEPAGE, MADV_POPULATE_READ = 15, 22
PAGE = 4096
# It takes the kernel some ten milliseconds to fill so much, or to pass over so many pages that are all the one of zeros.
FILLED, ZEROS = 48 << 20, 4 << 30
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for function in libc.madvise, libc.mprotect:
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def mapped(size, access, flags, file=-1):
    return libc.mmap(None, size, access, flags, file, 0)


def zeros():
    memory = mapped(ZEROS, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
    for advice in MADV_NOHUGEPAGE, MADV_POPULATE_READ:
        asked(libc.madvise(memory, ZEROS, advice))


def repeats(act):
    while True:
        act()
        time.sleep(WAIT / 20)


def holder(act):
    """A thread that has a lock of the kernel nearly all of the time."""

    def hold():
        libc.prctl(PR_SET_NAME, b"kernel-holder")
        repeats(act)

    threading.Thread(target=hold, daemon=True).start()


def maps():
    libc.munmap(mapped(PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS), PAGE)


def protects():
    page, accesses = mapped(PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS), itertools.cycle([PROT_NONE, PROT_READ])
    return lambda: asked(libc.mprotect(page, PAGE, next(accesses)))


def populated():
    """Changes a mapping while another thread fills memory."""
    flags = MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE
    holder(lambda: libc.munmap(mapped(FILLED, PROT_READ | PROT_WRITE, flags), FILLED))
    return protects()


def watched():
    """Maps memory while another process reads how the memory of this one is used."""
    zeros()
    smaps = f"/proc/{os.getpid()}/smaps"

    def read():
        with open(smaps, "rb") as file:
            file.read()

    child(b"kernel-holder", lambda: repeats(read))
    return maps


def in_files(act, hold):
    """Another process has a lock of the kernel while it waits for the file system."""
    path, numbers = FileSystem().path, itertools.count()
    for folder in "d0", "d1":
        os.stat(f"{path}/{folder}")
    child(b"kernel-holder", lambda: repeats(lambda: hold(path, f"s{next(numbers)}")))
    return lambda: act(path, f"f{next(numbers)}")


def unlinks(path, name):
    os.unlink(f"{path}/d0/{name}")


def looks_up(path, name):
    os.stat(f"{path}/d0/{name}")


def renames(path, name):
    os.rename(f"{path}/d0/{name}", f"{path}/d1/{name}")


KINDS = {
    "populated": populated,
    "watched": watched,
    "unlink": lambda: in_files(unlinks, unlinks),
    "look-up": lambda: in_files(looks_up, unlinks),
    "rename": lambda: in_files(renames, renames),
}
trains(LIBRARY, KINDS[KIND]())
