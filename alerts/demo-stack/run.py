#!/usr/bin/env python3
"""An incident from its cause to the pager, on loopback: a stand-in workload with a fault, the exporter, Prometheus with the
rules and alerts of this repository, Alertmanager with its routes, and a receiver that prints each notification.

Only what must be another address is changed in the shipped files. Everything is a child of this program and ends with it,
and the data of Prometheus and Alertmanager are in a temporary folder.
"""

import argparse
import contextlib
import errno
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import stack_files
from stack import Failure, Stack
from webhook import Receiver

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Ports that neither Debian's packages nor exporters use.
PORTS = {"exporter": 19400, "prometheus": 19090, "alertmanager": 19093, "webhook": 19095}


def arguments():
    parser = argparse.ArgumentParser(description="See an injected fault fire its alert.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, metavar="DIR", help="folder of gpucause and stand-ins/")
    parser.add_argument("--scenario", default="cpu-contention", help="the fault; gpucause-workload scenario --help lists them")
    parser.add_argument("--healthy", type=float, default=20, metavar="SECONDS", help="time before the fault [%(default)s]")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="end after this time rather than on Ctrl-C")
    parser.add_argument("--interval", default="5s", help="of scrapes and evaluations [%(default)s]")
    for name, port in PORTS.items():
        parser.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help="[%(default)s]")
    return parser.parse_args()


def ports(args):
    """The ports, once all of them are known to be free."""
    chosen = {name: getattr(args, f"{name}_port") for name in PORTS}
    for name, port in chosen.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise Failure(f"port {port} is in use: choose another with --{name}-port, or "
                              f'make demo-stack DEMO_STACK_ARGS="--{name}-port N"') from error
    return chosen


def say(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def workload(args):
    return args.programs / "stand-ins" / "gpucause-workload"


def start_servers(stack, args, port):
    """Starts exporter, Alertmanager and Prometheus, each after those that it needs."""
    config = stack_files.exporter(stack.folder, workload(args))
    stack.start("exporter", [args.programs / "gpucause", "exporter", f"--web.listen-address=127.0.0.1:{port['exporter']}",
                             f"--config.file={config}"])
    stack.until_ready("exporter", f"http://127.0.0.1:{port['exporter']}/-/ready")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    prometheus = shutil.which("prometheus")
    if not (alertmanager and prometheus):
        raise Failure("this needs Prometheus and Alertmanager: apt install prometheus prometheus-alertmanager")
    config = stack_files.alertmanager(ROOT, stack.folder, port)
    stack.start("alertmanager", [alertmanager, f"--config.file={config}", f"--storage.path={stack.folder / 'alertmanager'}",
                                 f"--web.listen-address=127.0.0.1:{port['alertmanager']}", "--cluster.listen-address="],
                own_user=True)
    config = stack_files.prometheus(ROOT, stack.folder, port, args.interval)
    stack.start("prometheus", [prometheus, f"--config.file={config}", f"--storage.tsdb.path={stack.folder / 'prometheus'}",
                               f"--web.listen-address=127.0.0.1:{port['prometheus']}",
                               f"--web.external-url=http://127.0.0.1:{port['prometheus']}"], own_user=True)
    stack.until_ready("alertmanager", f"http://127.0.0.1:{port['alertmanager']}/-/ready")
    stack.until_ready("prometheus", f"http://127.0.0.1:{port['prometheus']}/-/ready")


def start_workload(stack, args, events):
    # Other load on this host must not disturb it. A real-time thread has no competitors and no CPU limit.
    contended = args.scenario in ("incident", "cpu-contention", "cpu-limit")
    before, first = (["nice", "-n", "-20"], []) if contended else ([], ["--undisturbed"])
    child = stack.start("workload", [*before, workload(args), "scenario", args.scenario, *first, "--with-parent",
                                     "--libs", workload(args).parent, "--comm", "demo-trainer", "--baseline", args.healthy, "--seconds", 86400,
                                     "--every", "1s"],
                        stdout=subprocess.PIPE)
    if not child.stdout.readline().startswith(b"ready "):
        child.wait()
        raise Failure(f"no workload:\n{stack.log_of('workload')}")

    def listen():
        for line in child.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if "injected" in said:
                    events.put(("injected", said["injected"]))

    threading.Thread(target=listen, daemon=True).start()
    return child.pid


def hear_enter(events):
    """Enter at a terminal ends the fault."""
    def listen():
        if sys.stdin.readline():
            events.put(("enter", None))

    threading.Thread(target=listen, daemon=True).start()


def where_to_look(args, port, pid):
    host = "http://127.0.0.1"
    print(f"""
Scenario {args.scenario}: demo-trainer (PID {pid}) feeds a simulated GPU; its fault is real.
  alerts     {host}:{port['prometheus']}/alerts
  graphs     {host}:{port['prometheus']}/graph?g0.tab=0&g0.range_input=10m&g0.expr=cause%3Agpucause_attributed%3Arate1m
  routing    {host}:{port['alertmanager']}/#/alerts
  metrics    {host}:{port['exporter']}/metrics
  why        sudo {args.programs}/gpucause explain --url {host}:{port['exporter']}
  panels     PROMETHEUS_URL={host}:{port['prometheus']} and the line for Grafana in alerts/README.md
Most alerts take about a minute: the loss must last 30 s, and Alertmanager groups for 10 s.
{'Enter ends the fault, ' if sys.stdin.isatty() else ''}Ctrl-C ends everything.
""", flush=True)


def report_injected(injected):
    culprit = injected.get("culprit")
    by = f" by {culprit['comm']} (PID {' or '.join(map(str, culprit['pids']))})" if culprit else ""
    say(f"the fault begins: {injected['cause']}{by}" if injected["cause"] else "no fault is injected, and no alert is expected")


def report_alert(receiver, alert, since):
    labels, notes = alert["labels"], alert["annotations"]
    resolved = alert["status"] == "resolved"
    after = f", {time.time() - since:.0f} s after the fault {'ended' if resolved else 'began'}" if since else ""
    runbook = notes.get("runbook_url", "").rpartition("/")[2]
    say(f"{'RESOLVED' if resolved else 'ALERT'} {labels['alertname']} [{labels.get('severity')}] to {receiver}{after}: "
        f"{notes.get('summary')} investigations/{runbook}")
    if not resolved:
        print("          " + " ".join(notes.get("description", "").split()), flush=True)


def follow(stack, args, events):
    """Prints events until the time is over."""
    end = time.monotonic() + args.duration if args.duration else float("inf")
    begun = ended = None
    # A notification repeats the earlier alerts of its group.
    reported = set()
    while time.monotonic() < end:
        stack.check()
        try:
            kind, what = events.get(timeout=min(0.5, max(end - time.monotonic(), 0)))
        except queue.Empty:
            continue
        if kind == "injected":
            begun = what["at_unix"]
            report_injected(what)
        elif kind == "enter" and not ended:
            stack.end(["workload"])
            ended = time.time()
            say("the fault and its program have ended; the alert resolves when the last minute shows no loss")
        elif kind == "alert":
            receiver, alert = what
            state = (receiver, alert["fingerprint"], alert["startsAt"], alert["status"])
            if state not in reported:
                reported.add(state)
                report_alert(receiver, alert, ended if alert["status"] == "resolved" else begun)


def stop(signum, _frame):
    # No signal interrupts the ending.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(signum)


def main():
    args = arguments()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    events = queue.Queue()
    try:
        port = ports(args)
        with tempfile.TemporaryDirectory(prefix="gpucause-demo-stack-") as name:
            stack = Stack(pathlib.Path(name))
            if os.environ.get("SUDO_UID"):
                os.chown(name, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
            try:
                with Receiver(port["webhook"], lambda receiver, alert: events.put(("alert", (receiver, alert)))):
                    start_servers(stack, args, port)
                    where_to_look(args, port, start_workload(stack, args, events))
                    if sys.stdin.isatty():
                        hear_enter(events)
                    follow(stack, args, events)
            finally:
                stack.end()
    except Failure as failure:
        sys.exit(f"demo-stack: {failure}")
    except KeyboardInterrupt:
        print("\nended; nothing is left behind", flush=True)


if __name__ == "__main__":
    main()
