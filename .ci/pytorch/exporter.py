"""An exporter under test, and what it says of a process."""

import json
import pathlib
import re
import subprocess
import time
import urllib.request

from host import FIRST

SEVERITIES = ("low", "medium", "high", "critical")


class Exporter:
    def __init__(self, binary, address, *options):
        self.address = address
        command = [*FIRST, binary, "exporter", "--web.listen-address", self.address, *options]
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def starts(self):
        return within(20, lambda: "gpucause_build_info" in self.page())

    def end(self):
        self.child.terminate()
        self.child.wait()

    def get(self, path):
        request = urllib.request.Request(f"http://{self.address}{path}")
        token = pathlib.Path(f"/run/gpucause/{self.address.rpartition(':')[2]}.token")
        if path.startswith("/api/") and token.exists():
            request.add_header("Authorization", f"Bearer {token.read_text().strip()}")
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()

    def page(self):
        return self.get("/metrics")

    def samples(self, name, pid, page=None):
        """The labels and value of each series of a process, on a page or on a new one."""
        for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", page or self.page(), re.M):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if labels.get("pid") == str(pid):
                yield labels, float(value)

    def total(self, name, pid, page=None):
        return sum(value for _, value in self.samples(name, pid, page))

    def launches(self, pid):
        return self.total("gpucause_launches_total", pid)

    def severities(self, pid):
        """The highest severity of each cause so far."""
        found = [labels for labels, value in self.samples("gpucause_causal_chains_total", pid) if value > 0]
        found.sort(key=lambda labels: SEVERITIES.index(labels["severity"]))
        return {labels["cause"]: labels["severity"] for labels in found}

    def chains(self, pid):
        """Returns the chains whose victim is the process."""
        answer = json.loads(self.get("/api/v1/chains"))
        return [chain for chain in answer["data"]["chains"] if chain["victim"]["pid"] == pid]

    def process(self, pid):
        """Returns the process as `top` and the live page show it, or None where they do not."""
        processes = json.loads(self.get("/api/v1/processes"))["data"]["processes"]
        return next((process for process in processes if process["pid"] == pid), None)


def within(seconds, condition):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.2)
    return False
