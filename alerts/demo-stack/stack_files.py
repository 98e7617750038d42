"""The shipped configuration of Prometheus and Alertmanager, with the addresses of the demo."""

import json
import re

RECEIVERS = "http://localhost:9095/"


def replaced(text, old, new, times=None):
    """What is to be replaced must be there, or the demo would tell of something that is not shipped."""
    found = text.count(old)
    if found == 0 or (times is not None and found != times):
        raise ValueError(f"{old} is there {found} times")
    return text.replace(old, new)


def exporter(folder, workload):
    """The host may have CUDA processes of its own: the demo tells of none but its workload."""
    path = folder / "gpucause.yaml"
    # What is a string in JSON is one in YAML.
    path.write_text(f"processes: {{include: [{{exe: {json.dumps(re.escape(str(workload.resolve())))}}}]}}\n")
    return path


def alertmanager(root, folder, port):
    """Routes and inhibition as they are; each receiver is the demo's."""
    text = (root / "alerts/alertmanager.yml").read_text()
    names = len(re.findall(r"^  - name: ", text, re.MULTILINE))
    path = folder / "alertmanager.yml"
    path.write_text(replaced(text, RECEIVERS, f"http://127.0.0.1:{port['webhook']}/", names))
    return path


def prometheus(root, folder, port, interval):
    """Rules and alerts where they are, looked at more often than on a host that is watched for years."""
    text = (root / "alerts/prometheus.yml").read_text()
    text = replaced(text, "- ../rules/", f"- {root}/rules/", 1)
    text = replaced(text, "- ./", f"- {root}/alerts/", 1)
    text = replaced(text, "localhost:9093", f"127.0.0.1:{port['alertmanager']}", 1)
    text = replaced(text, "localhost:9400", f"127.0.0.1:{port['exporter']}", 1)
    text = replaced(text, "_interval: 15s", f"_interval: {interval}", 2)
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path
