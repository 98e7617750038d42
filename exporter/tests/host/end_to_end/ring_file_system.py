"""A file system in user space that gets its requests by io_uring."""

import ctypes
import mmap
import os
import struct

import file_system
from file_system import FileSystem
from processes import asked, libc

IO_URING_SETUP, IO_URING_ENTER = 425, 426
SETUP_SQE128, SETUP_NO_SQARRAY, ENTER_GETEVENTS = 1 << 10, 1 << 16, 1
OFFSET_ENTRIES = 0x10000000
URING_CMD, REGISTER, COMMIT_AND_FETCH = 46, 1, 2
ENTRY, COMPLETION, COMMAND = 128, 16, 48
# In the answer to INIT: more flags follow, and FUSE_OVER_IO_URING.
INIT_EXT, OVER_RING = 1 << 30, 1 << 9
# Header, first argument, and what the ring says, of a request; then other arguments.
OP_IN, RING_SAYS, HEADERS, PAYLOAD = 128, 256, 288, 1 << 20


class Ring:
    def __init__(self, entries):
        parameters = bytearray(120)
        struct.pack_into("<I", parameters, 8, SETUP_SQE128 | SETUP_NO_SQARRAY)
        raw = (ctypes.c_char * len(parameters)).from_buffer(parameters)
        self.file = asked(libc.syscall(IO_URING_SETUP, entries, raw))
        self.size, completions = struct.unpack_from("<II", parameters)
        _, self.tail = struct.unpack_from("<II", parameters, 40)
        self.seen, self.done, _, _, _, self.completions = struct.unpack_from("<6I", parameters, 80)
        self.mask = completions - 1
        self.ring = mmap.mmap(self.file, self.completions + completions * COMPLETION)
        self.entries = mmap.mmap(self.file, self.size * ENTRY, offset=OFFSET_ENTRIES)

    def number(self, offset):
        return struct.unpack_from("<I", self.ring, offset)[0]

    def put(self, entry):
        tail = self.number(self.tail)
        start = tail % self.size * ENTRY
        self.entries[start : start + ENTRY] = entry.ljust(ENTRY, b"\0")
        struct.pack_into("<I", self.ring, self.tail, tail + 1)

    def submit(self, count):
        """Returns the completions of some, at least one."""
        asked(libc.syscall(IO_URING_ENTER, self.file, count, 1, ENTER_GETEVENTS, None, 0))
        seen, done = self.number(self.seen), self.number(self.done)
        found = [self.completions + (at & self.mask) * COMPLETION for at in range(seen, done)]
        struct.pack_into("<I", self.ring, self.seen, done)
        return [struct.unpack_from("<Qi", self.ring, offset) for offset in found]


class Queue:
    """One CPU has its requests here."""

    def __init__(self, number):
        self.number, self.headers, self.payload = number, bytearray(HEADERS), bytearray(PAYLOAD)
        memory = [(ctypes.c_char * len(own)).from_buffer(own) for own in (self.headers, self.payload)]
        parts = [part for own in memory for part in (ctypes.addressof(own), len(own))]
        self.memory, self.parts = memory, (ctypes.c_uint64 * 4)(*parts)

    def entry(self, device, command, commit=0):
        address = ctypes.addressof(self.parts)
        head = struct.pack("<BBHiIIQIIQ", URING_CMD, 0, 0, device, command, 0, address, 2, 0, self.number)
        return head.ljust(COMMAND, b"\0") + struct.pack("<QQH", 0, commit, self.number)

    def answer(self, files):
        """Returns what identifies the request."""
        _, opcode, unique, node = struct.unpack_from("<IIQQ", self.headers)
        _, commit, size = struct.unpack_from("<QQI", self.headers, RING_SAYS)
        body = self.payload[:size] if opcode == file_system.LOOKUP else self.headers[OP_IN:RING_SAYS]
        answer = files.answer(opcode, node, bytes(body))
        error, answer = (-file_system.ENOSYS, b"") if answer is None else (0, answer)
        struct.pack_into("<IiQ", self.headers, 0, 16 + len(answer), error, unique)
        struct.pack_into("<I", self.headers, RING_SAYS + 16, len(answer))
        self.payload[: len(answer)] = answer
        return commit


class RingFileSystem(FileSystem):
    def answer(self, opcode, node, body):
        answer = super().answer(opcode, node, body)
        if opcode != file_system.INIT:
            return answer
        flags = struct.pack("<I", INIT_EXT), struct.pack("<I", OVER_RING)
        return answer[:12] + flags[0] + answer[16:32] + flags[1] + answer[36:]

    def serve(self, device):
        self.answer_one(device)
        with open("/sys/devices/system/cpu/possible") as cpus:
            count = int(cpus.read().strip().rpartition("-")[2]) + 1
        ring, queues = Ring(2 * count), [Queue(number) for number in range(count)]
        for queue in queues:
            ring.put(queue.entry(device, REGISTER))
        submitted = count
        while True:
            completed = ring.submit(submitted)
            for number, result in completed:
                if result:
                    raise OSError(-result, os.strerror(-result))
                commit = queues[number].answer(self)
                ring.put(queues[number].entry(device, COMMIT_AND_FETCH, commit))
            submitted = len(completed)
