#!/usr/bin/env bash
# A thread that waits in recv on a UNIX stream socket is woken by the reads of its peer, though there is nothing to read.
#
# Version: Linux 6.18 (it needs no package but Python 3.8 or newer, of its standard library alone).
# Guess before the run: it is switched out once, and woken once, by the byte that the peer sends at the end.
# Seen: while the peer took 200 messages out of its end, one a time, the waiting thread was switched out 71 times in one recv. With
# SOCK_SEQPACKET, and with TCP on the loopback interface, once.
# Readers and writers of a stream socket wait in one queue, and what a read frees wakes all of it. A tool that says who ended a wait names
# the reader then, and counts the pieces as waits of their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/wait.py" <<'PYTHON'
import platform
import socket
import threading
import time

COUNT = 200


def tcp():
    listener = socket.create_server(("127.0.0.1", 0))
    return socket.create_connection(listener.getsockname()), listener.accept()[0]


def switched_out(pair):
    """How often a thread is while it waits in one recv."""
    waiting, peer = pair
    for _ in range(COUNT):
        waiting.send(b"m")

    def reads():
        time.sleep(0.2)
        for _ in range(COUNT):
            peer.recv(1)
            time.sleep(0.002)
        peer.send(b"x")

    thread = threading.Thread(target=reads)
    thread.start()
    fields = lambda: dict(line.split(":") for line in open("/proc/thread-self/status"))
    before = int(fields()["voluntary_ctxt_switches"])
    assert waiting.recv(1) == b"x"
    times = int(fields()["voluntary_ctxt_switches"]) - before
    thread.join()
    return times


stream = switched_out(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
packets = switched_out(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
loopback = switched_out(tcp())
print(f"Linux {platform.release()}: in one recv switched out {stream} times (stream), {packets} (packets), {loopback} (TCP), while the peer read {COUNT} times")
assert stream >= 10, "the reads of the peer do not wake it any more"
assert packets <= 5 and loopback <= 5, "others are woken, too"
PYTHON
python3 "$folder/wait.py"
