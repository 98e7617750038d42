"""Makes slow calls from lines that end in comments, by which the test knows them."""

import ctypes
import sys
import threading

cudart = ctypes.CDLL(sys.argv[1])


class Model:
    def forward(self, calls):
        def inner():
            cudart.cudaDeviceSynchronize()  # inner

        for _ in range(calls):
            inner()  # forward


class Loader:
    def __init__(self):
        cudart.cudaDeviceSynchronize()  # init


def spread(calls):
    # Others come behind the call, in the same expression.
    for _ in range(calls):
        total = (
            1
            + cudart.cudaDeviceSynchronize()  # spread
            + 2
        )
    return total


def lazily(calls):
    for _ in range(calls):
        yield cudart.cudaDeviceSynchronize()  # lazily


def in_thread(calls):
    for _ in range(calls):
        cudart.cudaDeviceSynchronize()  # thread


def work(calls):
    Model().forward(calls)  # work forward
    spread(calls)  # work spread
    list(lazily(calls))  # work lazily
    for _ in range(calls):
        Loader()  # work init
    thread = threading.Thread(target=in_thread, args=(calls,))
    thread.start()
    thread.join()


print("ready", flush=True)
sys.stdin.readline()
work(1)  # first
print("met", flush=True)
sys.stdin.readline()
work(5)  # main
print("done", flush=True)
sys.stdin.readline()
