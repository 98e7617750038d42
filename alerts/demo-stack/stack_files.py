"""The shipped configuration of Prometheus and Alertmanager, with the addresses of the demo."""

import json
import re

RECEIVERS = "http://localhost:9095/"


def replaced(text, old, new, times=None):
    """Fails when `old` is missing: the demo must show the shipped files."""
    found = text.count(old)
    if found == 0 or (times is not None and found != times):
        raise ValueError(f"{old} is there {found} times")
    return text.replace(old, new)


def exporter(folder, workload):
    """Observes only the demo's workload, for the host may have other CUDA processes."""
    path = folder / "gpucause.yaml"
    # A JSON string is a YAML string.
    path.write_text(f"processes: {{include: [{{exe: {json.dumps(re.escape(str(workload.resolve())))}}}]}}\n")
    return path


def alertmanager(root, folder, port):
    """The shipped routes and inhibition, with the demo's receivers."""
    text = (root / "alerts/alertmanager.yml").read_text()
    names = len(re.findall(r"^  - name: ", text, re.MULTILINE))
    path = folder / "alertmanager.yml"
    path.write_text(replaced(text, RECEIVERS, f"http://127.0.0.1:{port['webhook']}/", names))
    return path


def prometheus(root, folder, port, interval):
    """The shipped rules and alerts, evaluated more often than in production."""
    text = (root / "alerts/prometheus.yml").read_text()
    text = replaced(text, "- ../rules/", f"- {root}/rules/", 1)
    text = replaced(text, "- ./", f"- {root}/alerts/", 1)
    text = replaced(text, "localhost:9093", f"127.0.0.1:{port['alertmanager']}", 1)
    text = replaced(text, "localhost:9400", f"127.0.0.1:{port['exporter']}", 1)
    text = replaced(text, "_interval: 15s", f"_interval: {interval}", 2)
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path
