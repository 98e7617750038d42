"""Launches kernels, and from the first line of input on waits for a lock in each step: held_lock.py LOCK DOES LIBRARY

The thread that has it, kv-transfer, does not work meanwhile. Prints what training.py says.
"""

import ctypes
import socket
import sys
import threading
import time

from processes import child, libc, PR_SET_NAME
from training import trains, WAIT

LOCK, DOES, LIBRARY = sys.argv[1:]
POLLIN = 1


def slow_peer():
    """Answers each byte late."""
    own, peers = socket.socketpair()

    def answer():
        own.close()
        while byte := peers.recv(1):
            time.sleep(WAIT)
            peers.send(byte)

    child(b"peer", answer)
    return own.detach()


def acts(functions):
    """Returns how the thread waits, by functions of the C library."""
    if DOES == "sleeps":
        return lambda: functions.usleep(int(WAIT * 1e6))
    peer, byte = slow_peer(), ctypes.create_string_buffer(1)
    polled = (ctypes.c_int * 2)(peer, POLLIN)

    def act():
        functions.write(peer, byte, 1)
        if DOES == "polls":
            functions.poll(polled, 1, -1)
        functions.read(peer, byte, 1)

    return act


def holder(act):
    """Has the lock for a while whenever it is asked to."""

    def hold():
        libc.prctl(PR_SET_NAME, b"kv-transfer")
        while asked_to.wait():
            asked_to.clear()
            act()
            time.sleep(WAIT / 20)

    asked_to = threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    return asked_to


def of_the_interpreter():
    """Functions of this are called without releasing the lock."""
    return holder(acts(ctypes.PyDLL(None))).set


def of_the_library(kind, hold, want):
    lock, act = (ctypes.c_long * 8)(), acts(libc)
    functions = [getattr(libc, f"pthread_{kind}_{what}") for what in (hold, want, "unlock")]

    def held():
        functions[0](lock)
        act()
        functions[2](lock)

    def wait():
        asked_to.set()
        functions[1](lock)
        functions[2](lock)

    asked_to = holder(held)
    return wait


LOCKS = {
    "interpreter": of_the_interpreter,
    "mutex": lambda: of_the_library("mutex", "lock", "lock"),
    "written": lambda: of_the_library("rwlock", "wrlock", "rdlock"),
    "rewritten": lambda: of_the_library("rwlock", "wrlock", "wrlock"),
    "read": lambda: of_the_library("rwlock", "rdlock", "wrlock"),
}
trains(LIBRARY, LOCKS[LOCK]())
