"""A file system in user space, whose answers take long."""

import ctypes
import os
import struct
import tempfile
import time

from processes import asked, child, libc
from training import WAIT

CLONE_NEWNS, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x20000, 0x4000, 0x40000, 2, 4

# Opcodes.
LOOKUP, FORGET, GETATTR, UNLINK, RENAME, OPEN, READ, WRITE = 1, 2, 3, 10, 12, 14, 15, 16
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 18, 20, 25, 26, 27, 28, 29
ACCESS, DESTROY, IOCTL, BATCH_FORGET = 34, 38, 39, 42
# Success is the whole answer.
EMPTY = {UNLINK, RENAME, RELEASE, FSYNC, FLUSH, READDIR, RELEASEDIR, ACCESS, DESTROY}
UNANSWERED = {FORGET, BATCH_FORGET}
ENOSYS = 38
LARGEST = 1 << 17
HEADER = 40
# As long as a file, and the number of the first folder.
FILE_BYTES = FOLDERS = 1 << 32


class FileSystem:
    """Has files and folders of any name that is a letter and a number; folders begin with d. Look-ups of names that begin with s take
    long, and so do requests of the opcodes `slow`."""

    def __init__(self, *slow):
        self.slow = slow
        # It goes with its processes.
        asked(libc.unshare(CLONE_NEWNS))
        asked(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
        self.path, device = tempfile.mkdtemp(), os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        asked(libc.mount(b"archive", self.path.encode(), b"fuse", MS_NOSUID | MS_NODEV, options))
        child(b"archive-mount", lambda: self.serve(device))
        os.close(device)

    @staticmethod
    def attributes(node):
        mode, size = (0o40755, 0) if node == 1 or node >= FOLDERS else (0o100644, FILE_BYTES)
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def found(self, name):
        number = int(name[1:].rstrip(b"\0"))
        node = (FOLDERS if name.startswith(b"d") else 2) + number
        return struct.pack("<QQQQII", node, 1, 1000, 1000, 0, 0) + self.attributes(node)

    def answer(self, opcode, node, body):
        if opcode in self.slow or (opcode == LOOKUP and body.startswith(b"s")):
            time.sleep(WAIT)
        if opcode == INIT:
            return struct.pack("<IIIIHHI", 7, 31, 0, 0, 16, 12, LARGEST).ljust(64, b"\0")
        if opcode == GETATTR:
            return struct.pack("<QII", 1000, 0, 0) + self.attributes(node)
        if opcode == LOOKUP:
            return self.found(body)
        if opcode in (OPEN, OPENDIR):
            return bytes(16)
        if opcode == IOCTL:
            return bytes(16 + struct.unpack_from("<QIIQII", body)[5])
        if opcode == READ:
            return bytes(struct.unpack_from("<QQI", body)[2])
        if opcode == WRITE:
            return struct.pack("<II", struct.unpack_from("<QQI", body)[2], 0)
        return b"" if opcode in EMPTY else None

    def answer_one(self, device):
        request = os.read(device, LARGEST + 8192)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in UNANSWERED:
            return
        answer = self.answer(opcode, node, request[HEADER:])
        error = -ENOSYS if answer is None else 0
        os.write(device, struct.pack("<IiQ", 16 + len(answer or b""), error, unique) + (answer or b""))

    def serve(self, device):
        while True:
            self.answer_one(device)
