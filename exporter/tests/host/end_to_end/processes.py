"""Processes beside the one that launches."""

import ctypes
import os
import time

PR_SET_NAME, PR_SET_PDEATHSIG, SIGKILL = 15, 1, 9
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


def asked(result):
    """The result of a function of the C library, which may fail."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
