"""Launches kernels, and from the first line of input on waits in a system call that has no reason of its own: unexplained.py CALL LIBRARY

Prints what training.py says.
"""

import ctypes
import os
import sys
import time

from processes import asked, child, libc
from training import trains, WAIT

CALL, LIBRARY = sys.argv[1:]
CLONE_NEWIPC = 0x8000000
IPC_PRIVATE = 0
MEMBARRIER, MEMBARRIER_GLOBAL = (283 if os.uname().machine == "aarch64" else 324), 1
BYTES = 4096


def barrier():
    """Until each CPU was in the scheduler."""
    return lambda: asked(libc.syscall(MEMBARRIER, MEMBARRIER_GLOBAL, 0, 0))


def slowly(receive):
    while True:
        receive()
        time.sleep(WAIT)


def message():
    """A queue of System V that is full."""
    # It goes with its processes.
    asked(libc.unshare(CLONE_NEWIPC))
    queue = asked(libc.msgget(IPC_PRIVATE, 0o600))
    sent = ctypes.create_string_buffer(b"\1", BYTES + 8)
    received = ctypes.create_string_buffer(BYTES + 8)
    child(b"receiver", lambda: slowly(lambda: asked(libc.msgrcv(queue, received, BYTES, 0, 0))))
    return lambda: asked(libc.msgsnd(queue, sent, BYTES, 0))


def posix_message():
    name = b"/gpucause-%d" % os.getpid()
    queue = asked(libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None))
    asked(libc.mq_unlink(name))
    text = ctypes.create_string_buffer(8192)
    child(b"receiver", lambda: slowly(lambda: asked(libc.mq_receive(queue, text, 8192, None))))
    return lambda: asked(libc.mq_send(queue, text, 1, 0))


CALLS = {"membarrier": barrier, "msgsnd": message, "mq_timedsend": posix_message}
trains(LIBRARY, CALLS[CALL]())
