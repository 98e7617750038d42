#!/usr/bin/env python3
"""An example of a receiver that acts on alerts: receiver.py receiver.toml

Alertmanager notifies it; it asks Prometheus whether the alert really fires, and lowers the CPU weight of the culprit's unit, drains a node
in Slurm, or taints one in Kubernetes. It acts only on what its settings list, only when enough processes have the alert, and seldom. Without
`act = true` it logs the commands and runs none. Labels are data: no command passes through a shell, and no name that was not listed reaches one.
"""

import contextlib
import hmac
import http.server
import ipaddress
import json
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.parse
import urllib.request

MAX_BODY = 1 << 20
MAX_ALERTS = 500
MAX_ANSWER = 4 << 20
# Notifications that wait, and connections at a time. Alertmanager tries again what is refused.
MAX_WAITING = 16
MAX_CONNECTIONS = 8
READ_SECONDS = 5
CONNECTION_SECONDS = 15
COMMAND_SECONDS = 30
# Notifications of the same instance within this time are one.
SETTLE_SECONDS = 10
# Different lines about alerts that are not listed, within so many seconds.
MAX_REFUSALS = 20
REFUSAL_SECONDS = 600
# Exit status for a wrong command line, and for settings that cannot be used.
USAGE, CONFIGURATION = 2, 78
# Pauses between questions to a Prometheus that does not answer, as while it restarts.
PAUSES_SECONDS = (5, 15, 30)
# The alert has the cause that took more of both, and chains have either.
WAITS_FOR_A_CPU = {"cpu_preemption", "runqueue_wait"}

ALERT = re.compile(r"Gpucause[A-Za-z0-9]{1,60}")
LABEL = re.compile(r"[a-z][a-z_]{0,60}")
VALUE = re.compile(r"[A-Za-z0-9_.:/ -]{1,200}")
INSTANCE = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:\[\]-]{0,252}")
NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}\.(service|scope|slice)")
TAINT = re.compile(r"[a-z0-9][a-z0-9./-]{0,100}=[A-Za-z0-9.-]{0,63}:(NoSchedule|PreferNoSchedule)")


class Refused(Exception):
    """Why nothing is done."""


class Unanswered(Refused):
    """Prometheus does not answer now."""


def need(pattern, value, what):
    """The value, when it is a text of this form."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Refused(f"invalid {what}: {value!r:.80}")
    return value


def number(table, key, low, high):
    value = table.get(key)
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{key} is {value!r:.80}; expected {low} to {high}")
    return value


def labels_of(value):
    """Labels, when all of them are texts."""
    is_labels = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    return value if is_labels else {}


def known(table, keys, where):
    if unknown := set(table) - set(keys):
        raise Refused(f"unknown settings of {where}: {sorted(unknown)}")


class Action:
    """One entry of the settings: which alert, whom it may touch, and how often."""

    KINDS = {"cpu-weight": {"units", "weight"}, "slurm-drain": set(), "kubernetes-taint": {"taint"}}

    def __init__(self, table, nodes):
        self.kind = table.get("kind")
        if self.kind not in self.KINDS:
            raise Refused(f"kind is {self.kind!r:.80}; expected one of {sorted(self.KINDS)}")
        common = {"kind", "alertname", "labels", "instances", "quorum", "at_most", "within_hours"}
        known(table, common | self.KINDS[self.kind], self.kind)
        self.alertname = need(ALERT, table.get("alertname"), "alertname")
        self.labels = {
            need(LABEL, key, "label"): {need(VALUE, one, "value") for one in (values if isinstance(values, list) else [values])}
            for key, values in table.get("labels", {}).items()
        }
        self.instances = {need(INSTANCE, one, "instance") for one in table.get("instances", [])}
        if missing := self.instances - set(nodes) if self.kind != "cpu-weight" else set():
            raise Refused(f"instances without a node: {sorted(missing)}")
        self.quorum = number(table, "quorum", 1, 1000)
        self.at_most = number(table, "at_most", 1, 100)
        self.seconds = 3600 * number(table, "within_hours", 1, 24 * 31)
        self.units = {need(UNIT, one, "unit") for one in table.get("units", [])}
        self.weight = number(table, "weight", 1, 10000) if self.kind == "cpu-weight" else None
        self.taint = need(TAINT, table.get("taint"), "taint") if self.kind == "kubernetes-taint" else None

    def is_for(self, labels):
        """Returns true if the settings name this alert, its instance and its labels."""
        return (
            labels.get("alertname") == self.alertname
            and labels.get("instance") in self.instances
            and all(labels.get(key) in values for key, values in self.labels.items())
        )

    def command(self, target):
        """The arguments; `target` is of the settings."""
        if self.kind == "cpu-weight":
            return ["systemctl", "set-property", "--runtime", "--", target, f"CPUWeight={self.weight}"]
        if self.kind == "slurm-drain":
            return ["scontrol", "update", f"NodeName={target}", "State=DRAIN", f"Reason=gpucause: {self.alertname}"]
        return ["kubectl", "taint", "--overwrite", "nodes", target, self.taint]


class Settings:
    """The file, checked."""

    def __init__(self, table):
        known(table, {"listen", "token_file", "prometheus", "state_file", "act", "nodes", "action"}, "the file")
        host, _, port = table.get("listen", "127.0.0.1:9096").rpartition(":")
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise Refused(f"listen is {table['listen']!r:.80}; expected ADDRESS:PORT")
        self.address = (str(ipaddress.ip_address(host.strip("[]"))), int(port))
        self.token = pathlib.Path(table["token_file"]).read_text().strip() if "token_file" in table else None
        if self.token is not None and len(self.token) < 16:
            raise Refused("the token is shorter than 16 characters")
        if self.token is None and not ipaddress.ip_address(self.address[0]).is_loopback:
            raise Refused(f"listen is {table['listen']}, which needs a token_file")
        self.prometheus = table.get("prometheus", "")
        if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", self.prometheus):
            raise Refused("prometheus is no http:// or https:// address")
        self.state_file = pathlib.Path(table["state_file"])
        self.act = table.get("act", False) is True
        self.nodes = {
            need(INSTANCE, instance, "instance"): need(NODE, node, "node") for instance, node in table.get("nodes", {}).items()
        }
        self.actions = [Action(one, self.nodes) for one in table.get("action", [])]

    def why_not(self, labels):
        """Why no action is for this alert; nothing where one is."""
        if any(action.is_for(labels) for action in self.actions):
            return None
        alert, instance = labels.get("alertname", "without a name"), labels.get("instance", "without an instance")
        of_alert = [action for action in self.actions if action.alertname == alert]
        if not of_alert:
            return f"alert {alert:.80} is not listed"
        of_host = [action for action in of_alert if instance in action.instances]
        if not of_host:
            return f"host {instance:.80} is not listed for {alert:.80}"
        keys = sorted({key for action in of_host for key in action.labels})
        return f"alert {alert:.80} of {instance:.80} has no listed " + ", ".join(f"{key} (it is {labels.get(key, '')!r:.80})" for key in keys)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Prometheus:
    """A Prometheus server that the settings name, which is asked for the alerts that fire now."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.opener = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))

    def series(self, name, **labels):
        """Labels of all series that have these."""
        matchers = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
        query = urllib.parse.urlencode({"query": f"{name}{{{matchers}}}"})
        try:
            with self.opener.open(f"{self.url}/api/v1/query?{query}", timeout=READ_SECONDS) as answer:
                body = answer.read(MAX_ANSWER + 1)
            if len(body) > MAX_ANSWER:
                raise Refused("Prometheus' answer is too large")
            return [labels_of(one["metric"]) for one in json.loads(body)["data"]["result"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unanswered(f"Prometheus does not answer: {error!r:.200}") from error


class Limits:
    """When which target was acted on, in a file that is written before each action."""

    def __init__(self, path, act=True):
        self.path, self.act = path, act
        try:
            self.done = json.loads(path.read_text()) if path.exists() else []
        except ValueError:
            self.done = None
        if not isinstance(self.done, list) or not all(isinstance(one, list) and [type(part) for part in one] == [str, str, float] for one in self.done):
            raise Refused(f"{path} is no list of actions")

    def take(self, action, target, now):
        """Counts an action, or refuses it."""
        recent = [one for one in self.done if one[0] == action.kind and now - one[2] < action.seconds]
        if any(one[1] == target for one in recent):
            raise Refused(f"{target} was {'acted on' if self.act else 'proposed'} before")
        if len(recent) >= action.at_most:
            raise Refused(f"{len(recent)} {'actions' if self.act else 'proposals'} of this kind within {action.seconds // 3600} h")
        kept = [one for one in self.done if now - one[2] < 3600 * 24 * 31] + [[action.kind, target, now]]
        unfinished = self.path.with_suffix(".new")
        try:
            unfinished.write_text(json.dumps(kept))
            os.replace(unfinished, self.path)
        except OSError as error:
            raise Refused(f"cannot write {self.path}: {error.strerror}") from error
        self.done = kept


def run(command):
    """Runs it without a shell, input or more environment than it needs."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "KUBECONFIG", "SLURM_CONF") if key in os.environ}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error!r:.200}"
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    return "done" if done.returncode == 0 else f"failed with {done.returncode}: {said[:200]!r}"


def log(**fields):
    """One line of JSON, so that no name can make a line of its own."""
    print(json.dumps({"time": round(time.time(), 3), **fields}), flush=True)


class Receiver:
    """Decides. One notification at a time."""

    def __init__(self, settings, prometheus, limits, runner=run, clock=time.time, sleep=time.sleep):
        self.settings, self.prometheus, self.limits, self.runner = settings, prometheus, limits, runner
        self.clock, self.sleep = clock, sleep
        self.asked = {}
        self.refusals, self.refusals_since = set(), float("-inf")

    def notification(self, body):
        """Acts on what a notification hints at; returns how many actions were taken or logged."""
        try:
            alerts = json.loads(body)["alerts"]
            if not isinstance(alerts, list) or len(alerts) > MAX_ALERTS:
                raise Refused("no list of alerts, or too many")
            labels = [labels_of(one["labels"]) for one in alerts if one["status"] == "firing"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused(f"no notification of Alertmanager: {type(error).__name__}") from error
        for own in labels:
            if why := self.settings.why_not(own):
                self.refuse(why)
        # Once for each instance, however many of its processes are in the notification.
        hints = {
            (place, own["instance"])
            for own in labels
            for place, action in enumerate(self.settings.actions)
            if action.is_for(own)
        }
        return sum(self.hint(place, instance) for place, instance in sorted(hints))

    def refuse(self, why):
        """Logs it, each once and not too many within some minutes: anybody may send notifications."""
        if self.clock() - self.refusals_since >= REFUSAL_SECONDS:
            self.refusals, self.refusals_since = set(), self.clock()
        if why in self.refusals or len(self.refusals) > MAX_REFUSALS:
            return
        self.refusals.add(why)
        is_last = len(self.refusals) > MAX_REFUSALS
        log(refused=f"more that is not listed; such lines continue within {REFUSAL_SECONDS} s" if is_last else why)

    def hint(self, place, instance):
        action = self.settings.actions[place]
        if self.clock() - self.asked.get((place, instance), -SETTLE_SECONDS) < SETTLE_SECONDS:
            return 0
        try:
            targets = self.answered(action, instance)
        except Unanswered as why:
            log(action=action.kind, instance=instance, refused=str(why))
            return 0
        except Refused as why:
            log(action=action.kind, instance=instance, refused=str(why))
            targets = []
        self.asked[place, instance] = self.clock()
        return sum(self.one(action, instance, target) for target in targets)

    def answered(self, action, instance):
        """Whom to act on, once Prometheus answers."""
        for pause in PAUSES_SECONDS:
            try:
                return self.targets(action, instance)
            except Unanswered:
                self.sleep(pause)
        return self.targets(action, instance)

    def targets(self, action, instance):
        """Whom to act on: what enough processes have the alert for."""
        firing = self.prometheus.series("ALERTS", alertname=action.alertname, alertstate="firing", instance=instance)
        firing = [own for own in firing if action.is_for(own)]
        # Some alerts are about a GPU, and name no process: a process and its GPU are one.
        victims = {own["pid"] for own in firing if own.get("pid")}
        gpus = {own["UUID"] for own in firing if own.get("UUID") and not own.get("pid")}
        if (have := max(len(victims), len(gpus))) < action.quorum:
            raise Refused(f"{have} have {action.alertname}, and {action.quorum} must")
        if action.kind != "cpu-weight":
            return [self.settings.nodes[instance]]
        causes = action.labels.get("cause", set())
        causes = causes | WAITS_FOR_A_CPU if causes & WAITS_FOR_A_CPU else causes
        blamed = {}
        for own in self.prometheus.series("gpucause_causal_chain_info", instance=instance):
            if own.get("pid") in victims and own.get("culprit_unit") and (not causes or own.get("cause") in causes):
                blamed.setdefault(own["culprit_unit"], set()).add(own["pid"])
        if unlisted := sorted(set(blamed) - action.units):
            log(action=action.kind, instance=instance, refused="units that are not listed", units=[one[:200] for one in unlisted[:10]])
        units = sorted(unit for unit, of in blamed.items() if unit in action.units and len(of) >= action.quorum)
        if not units:
            raise Refused(f"no listed unit is the culprit of {action.quorum}")
        return units

    def one(self, action, instance, target):
        try:
            self.limits.take(action, target, self.clock())
        except Refused as why:
            log(action=action.kind, instance=instance, target=target, refused=str(why))
            return 0
        command = action.command(target)
        result = self.runner(command) if self.settings.act else "dry run"
        log(action=action.kind, instance=instance, target=target, command=command, result=result)
        return 1


class Server(http.server.ThreadingHTTPServer):
    """Takes notifications into a queue with an end."""

    daemon_threads = True

    def __init__(self, settings, receiver):
        self.token, self.receiver = settings.token, receiver
        self.waiting = queue.Queue(MAX_WAITING)
        self.slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in settings.address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(settings.address, Handler)

    def process_request(self, request, client_address):
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request, client_address):
        # However slowly its bytes come.
        timer = threading.Timer(CONNECTION_SECONDS, self.end, [request])
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self.slots.release()

    @staticmethod
    def end(request):
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_):
        log(error=f"a client's connection broke: {sys.exc_info()[1]!r:.200}")

    def work(self):
        while True:
            try:
                self.receiver.notification(self.waiting.get())
            except Refused as why:
                log(refused=str(why))
            except Exception as error:  # noqa: BLE001, the next notification is another
                log(error=f"{error!r:.200}")


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = READ_SECONDS

    def do_POST(self):  # noqa: N802, the name that the base class calls
        self.close_connection = True
        self.send_response(self.status())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def status(self):
        if self.server.token is not None:
            own = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(own, f"Bearer {self.server.token}".encode()):
                return 401
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length):
            return 411
        if int(length) > MAX_BODY:
            return 413
        body = self.body(int(length))
        if body is None:
            return 408
        try:
            self.server.waiting.put_nowait(body)
        except queue.Full:
            return 503
        return 200

    def body(self, length):
        """All of it within the time that all of it has, or nothing."""
        body, deadline = b"", time.monotonic() + READ_SECONDS
        while len(body) < length:
            part = self.rfile.read1(length - len(body))
            if not part or time.monotonic() > deadline:
                return None
            body += part
        return body

    def log_message(self, *_):
        pass


def explained(error):
    """Describes in a sentence why the settings are wrong."""
    match error:
        case OSError(strerror=str()):
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        case KeyError():
            return f"{error.args[0]} is missing"
        case TypeError() | AttributeError():
            return f"a setting has the wrong type ({error})"
    return str(error)


def main():
    if len(sys.argv) != 2:
        print("receiver.py: expected one argument, the file of settings: receiver.py SETTINGS.toml", file=sys.stderr)
        sys.exit(USAGE)
    try:
        settings = Settings(tomllib.loads(pathlib.Path(sys.argv[1]).read_text()))
        # Actions that were only logged do not count against the limits of real ones.
        state = settings.state_file if settings.act else settings.state_file.with_suffix(".dry-run")
        receiver = Receiver(settings, Prometheus(settings.prometheus), Limits(state, settings.act))
        server = Server(settings, receiver)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Refused) as error:
        print(f"receiver.py: cannot start with {sys.argv[1]}: {explained(error)}", file=sys.stderr)
        sys.exit(CONFIGURATION)
    threading.Thread(target=server.work, daemon=True).start()
    log(listening=settings.address, act=settings.act, actions=[one.kind for one in settings.actions])
    server.serve_forever()


if __name__ == "__main__":
    main()
