"""Programs that run together and end together."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

START_SECONDS = 60
# Seconds between SIGTERM and SIGKILL.
END_SECONDS = 5


class Failure(Exception):
    """Shown to the user in one line."""


class Stack:
    """The running programs. Each is in a process group of its own, so that its children end with it, and so that Ctrl-C is
    this program's alone."""

    def __init__(self, folder):
        self.folder = folder
        self.running = {}

    def start(self, name, command, *, own_user=False, **more):
        user = {}
        if own_user and os.environ.get("SUDO_UID"):
            # Root is for probes alone.
            user = {"user": int(os.environ["SUDO_UID"]), "group": int(os.environ["SUDO_GID"]), "extra_groups": []}
        log = open(self.folder / f"{name}.log", "wb")
        with log:
            more.setdefault("stdout", log)
            child = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stderr=log,
                                     start_new_session=True, **user, **more)
        self.running[name] = child
        return child

    def log_of(self, name):
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-8:])

    def check(self):
        for name, child in self.running.items():
            if child.poll() is not None:
                raise Failure(f"{name} has ended with {child.returncode}:\n{self.log_of(name)}")

    def until_ready(self, name, url):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.05)
        raise Failure(f"{name} is not ready after {START_SECONDS} s:\n{self.log_of(name)}")

    def end(self, names=None):
        """Ends these in this order, or all in reverse order of their start."""
        for name in names or list(reversed(self.running)):
            child = self.running.pop(name)
            for action in (signal.SIGTERM, signal.SIGKILL):
                # The leader may have ended, and others of its group not.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, action)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(END_SECONDS)
