"""Fills a Prometheus with what the dashboards show: the real exporter observes stand-in programs, each with a fault of its
own, beside the stand-in driver of two GPUs. Everything listens on loopback, and ends with this.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Between two scrapes, and between two evaluations of the rules.
INTERVAL = 2
GPUS = [f"GPU-00000000-0000-4000-8000-{number:012}" for number in range(2)]
# Faults of the trainer, one after the other.
FAULTS = ["incident", "lock", "dataloader", "alloc-churn", "memcpy-bottleneck"]
HEALTHY_SECONDS = 18
RANKS = 4
LATE = 2
MIX = (
    "cudaLaunchKernel=40,cudaMemcpyAsync=6,cudaMemcpy=2,cudaMalloc=1,cudaFree=1,cudaStreamSynchronize=6,cudaEventRecord=4,"
    "cudaGraphLaunch=2,ncclAllReduce=3"
)
# How long calls take. All ranks but the late one wait in collectives; that one waits for a lock.
CALLS = (
    "nest=1;cudaLaunchKernel:spin=40us;cudaGraphLaunch:spin=90us;cudaStreamSynchronize:poll=18ms;cudaMalloc:spin=150us;"
    "cudaMemcpyAsync:gbps=10;cudaMemcpy:gbps=5"
)
ON_TIME = CALLS + ";ncclAllReduce:poll=12ms"
BEHIND = CALLS + ";ncclAllReduce:spin=50us;cudaMemcpy:lock=9ms;cudaMemcpyAsync:io=3ms,ret=2@40"


class Failed(Exception):
    """The feed cannot run."""


class Feed:
    """Programs that run until the context ends."""

    def __init__(self, programs, data, port, level="standard", native=False):
        self.level, self.native = level, native
        self.programs = pathlib.Path(programs)
        self.stand_ins = self.programs / "stand-ins"
        self.data = pathlib.Path(data)
        self.prometheus_url = f"http://127.0.0.1:{port}"
        self.exporter = f"127.0.0.1:{port + 1}"
        # The trainer maps files of its own, so that the exporter meets them as they come.
        self.late_stand_ins = self.data / "stand-ins"
        self.running = []

    def __enter__(self):
        self.data.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            # Each has a group of its own: what it forked ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start(self, name, command, **variables):
        with open(self.data / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **{key: str(value) for key, value in variables.items()}},
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def prometheus(self):
        """Starts Prometheus on what is in its folder already, if anything is."""
        config = self.data / "prometheus.yml"
        rules = {path.name: path for path in ROOT.glob("rules/*.yaml")}
        if self.native:
            # These take the place of those of the same name.
            rules |= {path.name: path for path in ROOT.glob("rules/native/*.yaml")}
        # Minutes stand for hours here, so that no group of rules has an interval of its own; but amounts are of whole minutes.
        prices = ROOT.glob("rules/prices/*.yaml")
        for path in [*rules.values(), *prices, *ROOT.glob("alerts/*.yaml")]:
            copy = self.data / path.relative_to(ROOT).parts[0] / path.name
            copy.parent.mkdir(exist_ok=True)
            text = path.read_text()
            copy.write_text(text if path.name == "cost.yaml" else re.sub(r"(?m)^ +interval: .*\n", "", text))
        config.write_text(
            f"global: {{scrape_interval: {INTERVAL}s, evaluation_interval: {INTERVAL}s}}\n"
            "rule_files: [rules/*.yaml, alerts/*.yaml]\n"
            "scrape_configs:\n"
            "  - job_name: gpucause\n"
            f"    static_configs: [{{targets: ['{self.exporter}'], labels: {{instance: gpu-node-1}}}}]\n"
        )
        self.start(
            "prometheus",
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={self.data}/tsdb",
                "--log.level=warn",
                *(["--enable-feature=native-histograms"] if self.native else []),
                f"--web.listen-address={self.prometheus_url.removeprefix('http://')}",
            ],
        )
        self.until_answers(f"{self.prometheus_url}/-/ready")

    def until_answers(self, url):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(url, timeout=5):
                    return
            time.sleep(0.2)
        raise Failed(f"nobody answers at {url}; see the logs in {self.data}")

    def rank(self, number):
        """One of a job's ranks, at a light and steady rate."""
        late = number == LATE
        return self.start(
            f"rank-{number}",
            [
                self.programs / "gpucause-workload",
                "--libs",
                self.stand_ins,
                "--with-parent",
                "--comm",
                "trainer-rank",
                "--kernels",
                5,
                "--ranks",
                RANKS,
                "--rank",
                number,
                "--copy-bytes",
                262144 if number else 4194304,
                "--copy-kind",
                "d2h" if late else "h2d",
                "--script",
                BEHIND if late else ON_TIME,
                "rate",
                "--seconds",
                3600,
                "--per-second",
                260,
                "--mix",
                MIX,
            ],
            RANK=number,
            LOCAL_RANK=number,
            WORLD_SIZE=RANKS,
        )

    def fault(self, name, seconds):
        """The trainer: healthy at first, then with one fault."""
        log = f"trainer-{name}"
        healthy = min(HEALTHY_SECONDS, seconds / 3)
        process = self.start(
            log,
            [
                self.programs / "gpucause-workload",
                "--libs",
                self.late_stand_ins,
                "--with-parent",
                "--comm",
                "demo-trainer",
                "scenario",
                name,
                "--baseline",
                healthy,
                "--seconds",
                3600,
            ],
        )
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        self.running.remove(process)

    def run(self, seconds):
        """Feeds for about `seconds`; returns the begin and end in seconds since the Unix epoch."""
        subprocess.run(
            [self.programs / "gpucause-workload", "lay-out", self.late_stand_ins], check=True, stdout=subprocess.DEVNULL
        )
        begin = time.time()
        ranks = [self.rank(number) for number in range(RANKS)]
        gpus = ",".join("+".join(f"{rank.pid}:4000000000" for rank in ranks[gpu::2]) for gpu in range(2))
        # Nothing else that runs here is to be in the pictures.
        config = self.data / "gpucause.yaml"
        workload = re.escape(str((self.programs / "gpucause-workload").resolve()))
        config.write_text(f"processes: {{include: [{{exe: '{workload}'}}]}}\n")
        self.start(
            "exporter",
            [
                self.programs / "gpucause",
                "exporter",
                f"--config.file={config}",
                f"--web.listen-address={self.exporter}",
                f"--metrics.level={self.level}",
                f"--nvml.library={self.stand_ins}/libnvidia-ml.so.1",
            ],
            GPUCAUSE_FAKE_NVML=f"gpus=2;util=97,91;mem_used=34359738368,17179869184;processes={gpus}",
        )
        self.until_answers(f"http://{self.exporter}/-/ready")
        self.prometheus()
        for fault in FAULTS:
            self.fault(fault, seconds / len(FAULTS))
        # A scrape that is under way when Prometheus ends counts as failed.
        return begin, time.time() - 2 * INTERVAL
