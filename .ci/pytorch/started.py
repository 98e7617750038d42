"""A program that a test starts, and holds to statements."""

import json
import pathlib
import subprocess

from host import FIRST

PROGRAM = pathlib.Path(__file__).with_name("program.py")
failed = []


def check(holds, text):
    print(f"{'ok' if holds else 'FAILED':8}{text}", flush=True)
    if not holds:
        failed.append(text)
    return holds


def children_of(pid):
    children = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            pass
    return children


def descendants_of(pid):
    """Children, and theirs: a server forks workers for a program."""
    return [own for child in children_of(pid) for own in (child, *descendants_of(child))]


class Started:
    """`python3 program.py NAME AMOUNT`, once it is warm; it goes on at `go`."""

    def __init__(self, name, amount, prefix=(), environment=None):
        command = [*prefix, *FIRST, "python3", "-B", "-W", "ignore", PROGRAM, name, str(amount)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.name, self.pid = name, self.child.pid

    def children(self):
        return children_of(self.pid)

    def descendants(self):
        return descendants_of(self.pid)

    def warm(self):
        """Waits until the program is warm and returns True, or False where it lacks a library."""
        return self.child.stdout.readline().strip() == "ready"

    def go(self):
        self.child.stdin.write("go\n")
        self.child.stdin.flush()

    def lines(self):
        """Where its phases begin, and its result, as they come."""
        for line in iter(self.child.stdout.readline, ""):
            yield json.loads(line)
            if "steps" in line:
                return

    def result(self):
        result = None
        for result in self.lines():
            pass
        return result

    def end(self):
        self.child.stdin.close()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
