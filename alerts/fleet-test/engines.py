"""The engines that evaluate the shipped rules: Prometheus, or VictoriaMetrics with vmagent and vmalert. They load the shipped files with
nothing but addresses changed."""

import shutil

import stack_files
from stack import Failure

HOST = "127.0.0.1"


def program(name, folder=None):
    found = (folder and shutil.which(name, path=folder)) or shutil.which(name)
    if not found:
        raise Failure(f"this needs {name}")
    return found


def configuration(root, folder, instances, port):
    text = (root / "alerts/prometheus.yml").read_text()
    text = stack_files.replaced(text, "- ../rules/", f"- {root}/rules/", 1)
    text = stack_files.replaced(text, "- ./", f"- {root}/alerts/", 1)
    text = stack_files.replaced(text, "localhost:9093", f"{HOST}:{port['alertmanager']}", 1)
    text = stack_files.replaced(text, "'localhost:9400'", ", ".join(f"'{instance}'" for instance in instances), 1)
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


class Alertmanager:
    def __init__(self, stack, root, port):
        self.stack, self.port = stack, port
        self.config = stack_files.alertmanager(root, stack.folder, port)

    def start(self):
        self.stack.start("alertmanager", [program("prometheus-alertmanager"), f"--config.file={self.config}", "--cluster.listen-address=",
                                          f"--storage.path={self.stack.folder / 'alertmanager'}",
                                          f"--web.listen-address={HOST}:{self.port['alertmanager']}"])
        self.stack.until_ready("alertmanager", f"http://{HOST}:{self.port['alertmanager']}/-/ready")

    def restart(self):
        self.stack.end(["alertmanager"])
        self.start()


class Prometheus:
    def __init__(self, stack, root, instances, port, _programs, listen=HOST):
        self.stack, self.port, self.listen = stack, port, listen
        self.config = configuration(root, stack.folder, instances, port)
        self.targets = self.url = f"http://{listen}:{port['prometheus']}"

    def start(self):
        # By default alerts that an Alertmanager did not get, which Prometheus does not know yet or which restarts, are sent a minute later.
        self.stack.start("prometheus", [program("prometheus"), "--rules.alert.resend-delay=10s", f"--config.file={self.config}", f"--storage.tsdb.path={self.stack.folder / 'data'}",
                                        f"--web.listen-address={self.listen}:{self.port['prometheus']}"])
        self.stack.until_ready("prometheus", f"{self.url}/-/ready")

    def restart(self):
        self.stack.end(["prometheus"])
        self.start()


class Victoria:
    """vmagent scrapes, VictoriaMetrics stores, vmalert evaluates."""

    def __init__(self, stack, root, instances, port, programs):
        self.stack, self.root, self.port, self.programs = stack, root, port, programs
        self.config = configuration(root, stack.folder, instances, port)
        self.url = f"http://{HOST}:{port['prometheus']}"
        self.targets = f"http://{HOST}:{port['vmagent']}"

    def start(self):
        folder = self.stack.folder
        listen = "-httpListenAddr"
        # Values count at once: the scrapes are seconds old, not half a minute.
        self.stack.start("victoria-metrics", [program("victoria-metrics", self.programs), f"{listen}={HOST}:{self.port['prometheus']}",
                                              f"-storageDataPath={folder / 'victoria'}", "-search.latencyOffset=0s"])
        self.stack.until_ready("victoria-metrics", f"{self.url}/health")
        self.stack.start("vmagent", [program("vmagent", self.programs), f"{listen}={HOST}:{self.port['vmagent']}",
                                     f"-promscrape.config={self.config}", "-promscrape.config.strictParse=false",
                                     f"-remoteWrite.url={self.url}/api/v1/write", f"-remoteWrite.tmpDataPath={folder / 'vmagent'}",
                                     "-remoteWrite.flushInterval=200ms"])
        self.start_vmalert()

    def start_vmalert(self):
        url = self.url
        self.stack.start("vmalert", [program("vmalert", self.programs), f"-httpListenAddr={HOST}:{self.port['vmalert']}",
                                     *(f"-rule={path}" for path in self.rules()), f"-datasource.url={url}", f"-remoteWrite.url={url}",
                                     f"-remoteRead.url={url}", f"-notifier.url=http://{HOST}:{self.port['alertmanager']}",
                                     "-evaluationInterval=15s", "-rule.evalDelay=0s", "-remoteWrite.flushInterval=200ms",
                                     "-disableAlertgroupLabel"])
        self.stack.until_ready("vmalert", f"http://{HOST}:{self.port['vmalert']}/health")

    def rules(self):
        """The shipped ones, and in place of those that read other rules of now those for vmalert."""
        for folder in (self.root / "rules", self.root / "alerts"):
            own = {path.name: path for path in (folder / "victoria-metrics").glob("*.yaml")}
            yield from (own.get(path.name, path) for path in sorted(folder.glob("*.yaml")))

    def restart(self):
        self.stack.end(["vmalert"])
        self.start_vmalert()


ENGINES = {"prometheus": Prometheus, "victoria": Victoria}
