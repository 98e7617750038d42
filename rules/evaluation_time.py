#!/usr/bin/env python3
"""Measures the time that a real Prometheus takes to evaluate every rule and alert here, for many exporters.

One small server plays the exporters: each page has the series of its processes that rules read, and calls that rules do not read, as at
the exporter's default level; --level full adds that level's series of calls. The counters grow with time. CPU time is the time that the same
Prometheus needs in an interval with the rules, less its time without them. It is right on a busy host too: it is scaled up to all
evaluations that were due. The times of single groups and rules are the lowest that Prometheus reports, and are right where the host is
quiet for that long. Rules that read the last hour take less time here than in the long run, because that hour has no data.
"""

import argparse
import http.server
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = [
    "0.000001023", "0.000004095", "0.000008191", "0.000016383", "0.000032767", "0.000065535", "0.000131071",
    "0.000262143", "0.000524287", "0.001048575", "0.002097151", "0.004194303", "0.008388607", "0.016777215",
    "0.067108863", "0.268435455", "1.073741823", "8.589934591", "68.719476735", "+Inf",
]
# Bounds of launch and off-CPU durations.
FEWER_BOUNDS = [
    "0.000001023", "0.000004095", "0.000008191", "0.000016383", "0.000032767", "0.000065535", "0.000131071",
    "0.000262143", "0.000524287", "0.001048575", "0.002097151", "0.004194303", "0.016777215", "0.067108863", "1.073741823", "+Inf",
]
CAUSES = (
    "cpu_preemption runqueue_wait lock_wait kernel_lock block_io page_fault process_wait dataloader_starvation implicit_sync allocator_churn "
    "graph_recapture nccl_late_rank clock_throttling noisy_cgroup cold_start host_code large_copy unexplained"
).split()
# Causes whose time can be lost: no other cause has a series of lost time.
LOSSES = "cpu_preemption runqueue_wait lock_wait kernel_lock block_io page_fault dataloader_starvation noisy_cgroup".split()
LAUNCHES = [("runtime", "cudaLaunchKernel"), ("driver", "cuLaunchKernel")]
CALLS = [
    ("runtime", op) for op in (
        "cudaMemcpyAsync cudaMemsetAsync cudaStreamSynchronize cudaEventRecord cudaEventQuery cudaStreamWaitEvent "
        "cudaMalloc cudaFree cudaSetDevice cudaEventSynchronize"
    ).split()
] + [
    ("driver", op) for op in "cuMemcpyHtoDAsync cuMemsetD8Async cuStreamSynchronize cuEventRecord cuMemAlloc cuMemFree".split()
] + [("nccl", "ncclAllReduce"), ("nccl", "ncclAllGather")]
STATES = {
    "host": ["running", "preempted", "runqueue", "futex", "lock", "other"],
    "launch": ["running", "preempted", "runqueue"],
    "memcpy": ["running", "preempted"],
    "sync": ["running", "preempted", "runqueue", "poll"],
    "nccl": ["running", "preempted"],
}
REASONS = ["preempted", "runqueue"]


def histogram(name, labels, bounds=BOUNDS):
    """Values are powers of ten of the tick, which stands as @: most of them small, some large."""
    for index, bound in enumerate(bounds):
        value = "0" if index < 5 else "@" if index < 9 else "@0"
        yield f'{name}_bucket{{{labels},le="{bound}"}} {value}'
    yield from summary(name, labels)


def summary(name, labels):
    """The sum and count, which a histogram has without classic buckets too."""
    yield f"{name}_sum{{{labels}}} @e-3"
    yield f"{name}_count{{{labels}}} @0"


def process(instance, number, processes, level):
    """The lines of one process: twenty operations, as a training step has, and all else that rules read."""
    pid, rank, world = 1000 + number, instance * processes + number, processes * 1000
    me = f'pid="{pid}",comm="python3"'
    uuid = f"GPU-{instance:04}-{number}"
    yield (
        f'gpucause_process_info{{{me},ns_pid="{pid}",exe="/usr/bin/python3",container_id="",cgroup="/job",pod="",pod_uid="",'
        f'namespace="",slurm_job="{instance // 16}",user="ml",rank="{rank}",local_rank="{number}",world_size="{world}"}} 1'
    )
    yield f'gpucause_process_gpu_info{{{me},UUID="{uuid}"}} 1'
    yield f'DCGM_FI_DEV_GPU_UTIL{{gpu="{number}",UUID="{uuid}",Hostname="node{instance}",modelName="NVIDIA H100 80GB HBM3"}} 97'
    yield f'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu="{number}",UUID="{uuid}",Hostname="node{instance}"}} 0'
    durations = histogram if level == "full" else summary
    # Half of all programs launch graphs too.
    launch_types = ["kernel", "graph"] if number % 2 else ["kernel"]
    for api, op in LAUNCHES + CALLS + [("runtime", "cudaGraphLaunch")] * (len(launch_types) - 1):
        colds = ["true", "false"] if (api, op) in LAUNCHES else ["false"]
        for cold in colds:
            yield from durations("gpucause_cuda_call_duration_seconds", f'{me},api="{api}",op="{op}",cold="{cold}"')
        if level != "full":
            continue
        yield f'gpucause_cuda_call_stalled_total{{{me},api="{api}",op="{op}"}} @'
        for reason in REASONS:
            yield f'gpucause_cuda_call_offcpu_seconds_total{{{me},api="{api}",op="{op}",reason="{reason}"}} @e-3'
    yield f'gpucause_cuda_call_errors_total{{{me},api="runtime",op="cudaMalloc",error="cudaErrorInvalidValue"}} 1'
    yield f'gpucause_inflight_call_age_seconds{{{me},op="cudaStreamSynchronize"}} 0.001'
    for launch_type in launch_types:
        yield from histogram("gpucause_launch_duration_seconds", f'{me},launch_type="{launch_type}"', FEWER_BOUNDS)
    yield from durations("gpucause_launch_gap_seconds", me)
    yield from histogram("gpucause_offcpu_duration_seconds", f'{me},role="dispatcher",reason="all"', FEWER_BOUNDS)
    for name in ["launches", "launches_timed"]:
        yield f"gpucause_{name}_total{{{me}}} @"
    for phase, states in STATES.items():
        for state in states:
            value = "@e0" if state == "running" else "@e-2"
            yield f'gpucause_dispatcher_seconds_total{{{me},phase="{phase}",state="{state}"}} {value}'
    yield f"gpucause_dispatcher_wall_seconds_total{{{me}}} @e0"
    for state in ["preempted", "runqueue", "lock"]:
        yield f'gpucause_dispatcher_lost_seconds_total{{{me},state="{state}"}} @e-2'
    for name in ["kworker", "rustc", "other", "python3"]:
        yield f'gpucause_preempted_by_seconds_total{{{me},culprit="{name}"}} @e-2'
        for reason in ["lock", "poll"]:
            yield f'gpucause_blocked_on_seconds_total{{{me},reason="{reason}",waker="{name}"}} @e-2'
    for cause in CAUSES:
        value = "@e-3" if cause == "cpu_preemption" else "0"
        for name in ["stall"] * (cause in LOSSES) + ["causal_chain"]:
            yield f'gpucause_{name}_seconds_total{{{me},cause="{cause}"}} {value}'
    yield f"gpucause_device_memory_live_bytes{{{me}}} @e6"
    yield f"gpucause_device_memory_freed_bytes_total{{{me}}} @e3"
    for name in ["oom_kills", "cgroup_throttled_seconds"]:
        yield f"gpucause_{name}_total{{{me}}} 0"


def page(instance, processes, level):
    """The page of one exporter, with @ for the tick."""
    lines = [line for number in range(processes) for line in process(instance, number, processes, level)]
    lines += [f'gpucause_probe_status{{probe="probe{n}",library="",verdict="attached"}} 1' for n in range(20)]
    for n in range(12):
        lines += [f'gpucause_map_{what}{{map="map{n}"}} {value}' for what, value in
                  [("entries", 10), ("capacity", 1000), ("full_total", 0)]]
    lines += [f'gpucause_probe_cost_seconds_total{{probe="{n}"}} @e-3' for n in ["call", "switch"]]
    lines += [f'gpucause_scrape_collector_success{{collector="{n}"}} 1' for n in range(12)]
    lines += [f'gpucause_observation_state{{state="{state}"}} {value}' for state, value in
              [("attached", 1), ("partial", 0), ("disabled", 0)]]
    # One process of each page has a chain: by default, one in eight.
    lines += ['gpucause_causal_chain_info{pid="1000",comm="python3",cause="cpu_preemption",chain_id="1",culprit="rustc",'
              'culprit_unit="build.service",culprit_pod="",cpus="0-7",culprit_cpus="0-127"} 1',
              "gpucause_web_config_last_reload_successful 1", "gpucause_dcgm_up 1"]
    lines += ["gpucause_processes_folded_total 0",
              "gpucause_config_last_reload_successful 1", 'gpucause_build_info{version="1"} 1']
    return ("\n".join(lines) + "\n").encode()


def serve(pages):
    """Answers /N/metrics with the page of exporter N; returns the port."""
    begin = time.time()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):  # noqa: N802, the name that the base class calls
            body = pages[int(self.path.split("/")[1])].replace(b"@", str(int(time.time() - begin) + 10).encode())
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def configure(path, port, arguments, with_rules):
    """Writes Prometheus' configuration: the exporters, and every rule file or none."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{n}/metrics", "instance": f"node{n}:9400"}}
        for n in range(arguments.instances)
    ]
    rules = [str(ROOT / "alerts/*.yaml")]
    rules += [str(path) for folder in ["rules", "rules/prices"] for path in sorted((ROOT / folder).glob("*.yaml"))]
    interval = f"{arguments.interval}s"
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": rules if with_rules else [],
        "scrape_configs": [{"job_name": "gpucause", "static_configs": targets}],
    }
    path.write_text(json.dumps(config))


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=30) as answer:
        return json.load(answer)["data"]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(pid, seconds):
    """Seconds of CPU time a second."""
    before, begin = cpu_seconds(pid), time.time()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.time() - begin)


def iterations(port):
    """Evaluations of groups that were done so far. A busy host misses some."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    total = {"prometheus_rule_group_iterations_total": 0.0, "prometheus_rule_group_iterations_missed_total": 0.0}
    for line in lines:
        name = line.split("{")[0]
        if name in total:
            total[name] += float(line.rsplit(" ", 1)[1])
    due, missed = total.values()
    return due - missed


def watch(port, seconds):
    """Each group by its name: its interval, and the times of its rules in each evaluation."""
    groups, end = {}, time.time() + seconds
    while time.time() < end:
        time.sleep(2)
        for group in ask(port, "rules")["groups"]:
            if group["lastEvaluation"].startswith("0001"):
                continue  # Not yet.
            _, evaluations = groups.setdefault(group["name"], (group["interval"], {}))
            times = [rule["evaluationTime"] for rule in group["rules"]]
            evaluations[group["lastEvaluation"]] = (group["evaluationTime"], times, [rule["name"] for rule in group["rules"]])
    return groups


def report(groups, arguments, series, cpu):
    every = arguments.interval
    print(f"{arguments.instances} instances x {arguments.processes} processes, {series} series, scraped every {every} s")
    print(f"  CPU time of the rules in {every} s, of all groups as often as they are evaluated: {cpu:.2f} s")
    all_once = on_average = longest = 0.0
    for name, (interval, evaluations) in sorted(groups.items()):
        took = sorted(took for took, _, _ in evaluations.values())
        all_once += took[0]
        on_average += took[0] * every / interval
        longest = max(longest, took[0])
        print(
            f"  {name:34} every {interval:2.0f} s  best {took[0] * 1e3:8.1f} ms  median {statistics.median(took) * 1e3:8.1f} ms"
            f"  ({len(took)} evaluations)"
        )
        if arguments.rules:
            _, _, names = next(iter(evaluations.values()))
            best = [min(times) for times in zip(*(times for _, times, _ in evaluations.values()))]
            for rule, each in sorted(zip(names, best), key=lambda pair: -pair[1]):
                print(f"      {each * 1e3:8.1f} ms  {rule}")
    print(f"  every group once, one after the other    {all_once * 1e3:8.1f} ms")
    print(f"  the same on two cores, at the least      {max(all_once / 2, longest) * 1e3:8.1f} ms   (100 x 8: must be <= 450 ms)")
    print(f"  in {every} s on average, one after the other {on_average * 1e3:8.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--level", choices=["standard", "full"], default="standard", help="of the exporters' pages")
    parser.add_argument("--interval", type=int, default=15, help="seconds between scrapes, and between evaluations")
    parser.add_argument("--warm-up", type=int, default=330, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=int, default=120, help="length of each measurement")
    parser.add_argument("--rules", action="store_true", help="tell of every rule")
    arguments = parser.parse_args()
    port = serve([page(instance, arguments.processes, arguments.level) for instance in range(arguments.instances)])
    folder = pathlib.Path(tempfile.mkdtemp())
    config = folder / "prometheus.json"
    configure(config, port, arguments, with_rules=False)
    listen = port + 1 if port < 65535 else port - 1
    command = [
        arguments.prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{listen}", "--log.level=warn",
    ]
    daemon = subprocess.Popen(command)
    try:
        time.sleep(arguments.warm_up)
        without = cpu_share(daemon.pid, arguments.seconds)
        configure(config, port, arguments, with_rules=True)
        daemon.send_signal(signal.SIGHUP)
        time.sleep(30)
        groups = {}
        watcher = threading.Thread(target=lambda: groups.update(watch(listen, arguments.seconds)))
        watcher.start()
        before = iterations(listen)
        with_rules = cpu_share(daemon.pid, arguments.seconds)
        done = iterations(listen) - before
        watcher.join()
        due = sum(arguments.seconds / interval for interval, _ in groups.values())
        [(_, series)] = [sample["value"] for sample in ask(listen, "query?query=sum(scrape_samples_scraped)")["result"]]
        [(_, scraped)] = [sample["value"] for sample in ask(listen, "query?query=avg(avg_over_time(up[2m]))")["result"]]
        print(f"{with_rules:.3f} s/s with the rules, {without:.3f} s/s without")
        print(f"{done:.0f} of {due:.0f} evaluations were done, and {float(scraped):.0%} of scrapes: with few, times mean little")
        report(groups, arguments, series, (with_rules - without) * arguments.interval * due / done)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
