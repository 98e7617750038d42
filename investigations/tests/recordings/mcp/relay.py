"""Makes a server on a Unix socket one on standard input and output."""

import os
import socket
import sys
import threading

server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])


def answers():
    while data := server.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


threading.Thread(target=answers, daemon=True).start()
while data := os.read(0, 65536):
    server.sendall(data)
server.shutdown(socket.SHUT_WR)
