#!/usr/bin/env python3
"""Tests of the receiver: what it does, and above all what it does not do, whoever asks."""

import contextlib
import http.client
import http.server
import io
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import unittest
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import receiver  # noqa: E402

HOSTILE = [
    "fluent-bit.service; reboot",
    "$(reboot).service",
    "`reboot`.service",
    "--help",
    "-H root@other.service",
    "a b.service",
    "../../x.service",
    "x.service\nCPUWeight=1",
    "fluent-bit.service\x00",
    "флюент.service",
    "",
]


def table(**changes):
    """The example's settings, with changes."""
    return tomllib.loads((HERE / "receiver.toml").read_text()) | {"act": True, "listen": "127.0.0.1:0"} | changes


def starved(pid, instance="gpu-1:9400", cause="cpu_preemption", **more):
    return {"alertname": "GpucauseDispatcherStarved", "cause": cause, "instance": instance, "pid": str(pid), **more}


def straggler(pid, instance="gpu-1:9400"):
    return {"alertname": "GpucauseStraggler", "instance": instance, "pid": str(pid)}


def body(*labels, status="firing"):
    return json.dumps({"version": "4", "status": status, "alerts": [{"status": status, "labels": own} for own in labels]}).encode()


class Firing:
    """A Prometheus in which these alerts fire, and these units are culprits."""

    def __init__(self, *alerts, units=(), cause="cpu_preemption", silent=0):
        self.alerts, self.units, self.cause, self.silent, self.asked = alerts, units, cause, silent, 0

    def series(self, name, **labels):
        self.asked += 1
        if self.asked <= self.silent:
            raise receiver.Unanswered("Prometheus does not answer")
        if name == "ALERTS":
            labels.pop("alertstate")
            found = self.alerts
        else:
            found = [{"instance": "gpu-1:9400", "cause": self.cause, "pid": str(pid), "culprit_unit": unit} for pid, unit in self.units]
        return [own for own in found if all(own.get(key) == value for key, value in labels.items())]


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.state = pathlib.Path(self.folder.name) / "state.json"
        self.now, self.ran, self.slept, self.log = 1e9, [], [], io.StringIO()

    def receiver(self, prometheus, **changes):
        settings = receiver.Settings(table(state_file=str(self.state), **changes))
        run = lambda command: self.ran.append(command) or "done"  # noqa: E731
        return receiver.Receiver(settings, prometheus, receiver.Limits(self.state), run, lambda: self.now, self.slept.append)

    def notify(self, one, text):
        self.now += 60
        with contextlib.redirect_stdout(self.log):
            return one.notification(text)


class Acts(Base):
    def test_the_culprits_unit_gets_less_weight(self):
        one = self.receiver(Firing(starved(7), units=[(7, "fluent-bit.service")]))
        self.notify(one, body(starved(7)))
        self.assertEqual(self.ran, [["systemctl", "set-property", "--runtime", "--", "fluent-bit.service", "CPUWeight=20"]])

    def test_waits_for_a_cpu_are_of_either_cause(self):
        for alert, chain in [("cpu_preemption", "runqueue_wait"), ("runqueue_wait", "cpu_preemption")]:
            self.state.unlink(missing_ok=True)
            one = self.receiver(Firing(starved(7, cause=alert), units=[(7, "fluent-bit.service")], cause=chain))
            self.notify(one, body(starved(7, cause=alert)))
        self.assertEqual([own[4] for own in self.ran], ["fluent-bit.service"] * 2)

    def test_a_notification_waits_for_a_prometheus_that_restarts(self):
        one = self.receiver(Firing(straggler(1), straggler(2), silent=2))
        self.notify(one, body(straggler(1)))
        self.assertEqual((len(self.ran), len(self.slept)), (1, 2))

    def test_a_question_without_an_answer_is_asked_again_by_the_next_notification(self):
        one = self.receiver(Firing(straggler(1), straggler(2), silent=1 + len(receiver.PAUSES_SECONDS)))
        with contextlib.redirect_stdout(self.log):
            one.notification(body(straggler(1)))
            self.assertEqual(self.ran, [])
            one.notification(body(straggler(1)))
        self.assertEqual(len(self.ran), 1)

    def test_a_node_is_drained_and_one_is_tainted(self):
        throttled = [{"alertname": "GpucauseGpuThrottled", "instance": "gpu-2:9400", "UUID": f"GPU-{n}"} for n in range(2)]
        one = self.receiver(Firing(straggler(1), straggler(2), *throttled))
        self.notify(one, body(straggler(1), *throttled))
        self.assertEqual(
            self.ran,
            [
                ["scontrol", "update", "NodeName=gpu-1", "State=DRAIN", "Reason=gpucause: GpucauseStraggler"],
                ["kubectl", "taint", "--overwrite", "nodes", "gpu-2", "gpucause.io/throttled=true:NoSchedule"],
            ],
        )

    def test_a_dry_run_is_the_default_and_runs_nothing(self):
        settings = table(state_file=str(self.state))
        del settings["act"]
        one = receiver.Receiver(
            receiver.Settings(settings), Firing(straggler(1), straggler(2)), receiver.Limits(self.state), self.ran.append
        )
        self.assertEqual(self.notify(one, body(straggler(1))), 1)
        self.assertEqual(self.ran, [])
        self.assertIn('"result": "dry run"', self.log.getvalue())

    def test_a_dry_run_says_of_what_it_logged_before_that_it_was_proposed(self):
        settings = receiver.Settings(table(state_file=str(self.state), act=False))
        prometheus = Firing(*[straggler(pid, instance) for pid in (1, 2) for instance in ("gpu-1:9400", "gpu-2:9400")])
        one = receiver.Receiver(settings, prometheus, receiver.Limits(self.state, act=False), clock=lambda: self.now)
        for instance in ["gpu-1:9400", "gpu-1:9400", "gpu-2:9400"]:
            self.notify(one, body(straggler(1, instance)))
        for part in ["gpu-1 was proposed before", "1 proposals of this kind within 24 h"]:
            self.assertIn(part, self.log.getvalue())
        self.assertNotIn("acted on", self.log.getvalue())

    def test_arguments_reach_a_program_as_they_are(self):
        echo = [sys.executable, "-c", "import sys, json; sys.exit(json.dumps(sys.argv[1:]))", "$(id)", "a;b", "c d"]
        self.assertIn('["$(id)", "a;b", "c d"]', receiver.run(echo))
        self.assertTrue(receiver.run(["/no/such/program"]).startswith("failed: "))


class Refuses(Base):
    def refuses(self, prometheus, *texts, why=None, **changes):
        one = self.receiver(prometheus, **changes)
        for text in texts:
            self.notify(one, text)
        self.assertEqual(self.ran, [])
        if why:
            self.assertIn(why, self.log.getvalue())

    def test_a_forged_alert_that_prometheus_does_not_know(self):
        self.refuses(Firing(), body(straggler(1), straggler(2)), why="0 have GpucauseStraggler, and 2 must")

    def test_too_few_processes(self):
        self.refuses(Firing(straggler(1)), body(*[straggler(pid) for pid in range(100)]), why="1 have GpucauseStraggler, and 2 must")

    def test_the_same_process_twice_is_no_quorum(self):
        self.refuses(Firing(straggler(1), straggler(1) | {"cause": "block_io"}), body(straggler(1)))

    def test_a_process_and_its_gpu_are_no_quorum(self):
        gpu = {"alertname": "GpucauseStraggler", "instance": "gpu-1:9400", "UUID": "GPU-1"}
        self.refuses(Firing(straggler(1), gpu), body(straggler(1)), why="1 have GpucauseStraggler, and 2 must")

    def test_a_culprit_without_a_unit_is_logged(self):
        self.refuses(Firing(starved(7)), body(starved(7)), why="no listed unit is the culprit of 1")
        self.refuses(Firing(starved(7), units=[(7, "fluent-bit.service")], cause="lock_wait"), body(starved(7)))

    def test_alerts_of_another_host_are_no_quorum(self):
        self.refuses(Firing(straggler(1), straggler(2, "gpu-2:9400")), body(straggler(1)))

    def test_resolved_alerts(self):
        prometheus = Firing(straggler(1), straggler(2))
        self.refuses(prometheus, body(straggler(1), status="resolved"))
        self.assertEqual(prometheus.asked, 0)

    def test_hosts_alerts_and_causes_that_are_not_listed(self):
        prometheus = Firing(straggler(1), straggler(2))
        others = [straggler(1, "gpu-9:9400"), {"alertname": "HostDown", "instance": "gpu-1:9400"}, starved(1, cause="block_io")]
        self.refuses(prometheus, body(*others, *others))
        self.assertEqual(prometheus.asked, 0)
        self.assertEqual(
            [json.loads(line)["refused"] for line in self.log.getvalue().splitlines()],
            [
                "host gpu-9:9400 is not listed for GpucauseStraggler",
                "alert HostDown is not listed",
                "alert GpucauseDispatcherStarved of gpu-1:9400 has no listed cause (it is 'block_io')",
            ],
        )

    def test_lines_about_what_is_not_listed_are_short_and_few(self):
        hostile = "x\n{\"result\": \"done\"}\x1b[2J" + "y" * 10_000
        one = self.receiver(Firing())
        for batch in range(3):
            self.notify(one, body(*[straggler(1, f"gpu-{batch}-{number}{hostile}") for number in range(400)]))
        lines = self.log.getvalue().splitlines()
        self.assertEqual(len(lines), receiver.MAX_REFUSALS + 1)
        self.assertTrue(all(line.startswith('{"time": ') and len(line) < 400 and line.isprintable() for line in lines), lines[0])
        self.assertIn("more that is not listed", lines[-1])
        self.now += receiver.REFUSAL_SECONDS
        self.notify(one, body({"alertname": "HostDown"}, {}))
        lines = [json.loads(line)["refused"] for line in self.log.getvalue().splitlines()][receiver.MAX_REFUSALS + 1 :]
        self.assertEqual(lines, ["alert HostDown is not listed", "alert without a name is not listed"])

    def test_units_that_are_not_listed_with_hostile_names_too(self):
        units = [(7, unit) for unit in [*HOSTILE, "sshd.service"]]
        self.refuses(Firing(starved(7), units=units), body(starved(7)), why="units that are not listed")
        self.assertTrue(all(line.startswith("{") for line in self.log.getvalue().splitlines()))

    def test_a_listed_unit_that_is_culprit_of_too_few(self):
        action = table()["action"][0] | {"quorum": 2}
        prometheus = Firing(starved(7), starved(8), units=[(7, "fluent-bit.service"), (8, "x.service"), (9, "fluent-bit.service")])
        self.refuses(prometheus, body(starved(7)), action=[action])

    def test_hostile_labels(self):
        prometheus = Firing(straggler(1), straggler(2))
        texts = [body(straggler(1, instance)) for instance in ['gpu-1:9400"} or vector(1)#', "gpu-1:9400\n", *HOSTILE]]
        self.refuses(prometheus, *texts)
        self.assertEqual(prometheus.asked, 0)

    def test_what_is_no_notification(self):
        one = self.receiver(Firing(straggler(1), straggler(2)))
        wrong = [
            b"", b"{}", b"[]", b"null", b"{\"alerts\": 1}", b"{\"alerts\": [1]}", b"{\"alerts\": [{\"status\": \"firing\"}]}",
            b"[" * 200_000, b"{\"alerts\": [" + b"9" * 10_000 + b"]}", b"\xff", json.dumps({"alerts": [{}] * 501}).encode(),
        ]
        for text in wrong:
            with self.assertRaises(receiver.Refused, msg=text[:40]):
                one.notification(text)
        # Labels that are no texts.
        for value in ([], {}, 1, None):
            self.notify(one, body(straggler(1) | {"instance": value}))
        self.assertEqual(self.ran, [])

    def test_when_prometheus_does_not_answer_as_it_should(self):
        for answer in [b"", b"{}", b"[1]", b'{"data": {"result": [1]}}', b"[" * 100_000, b"x" * (receiver.MAX_ANSWER + 1)]:
            with serving(answer) as url:
                one = self.receiver(receiver.Prometheus(url))
                self.notify(one, body(straggler(1)))
        with serving(b"", redirect=True) as url:
            self.notify(self.receiver(receiver.Prometheus(url)), body(straggler(1)))
        self.notify(self.receiver(receiver.Prometheus("http://127.0.0.1:9")), body(straggler(1)))
        self.assertEqual((self.ran, self.log.getvalue().count("Prometheus")), ([], 8))


class Limited(Base):
    def test_a_flood_is_one_question_and_one_action(self):
        prometheus = Firing(straggler(1), straggler(2))
        one = self.receiver(prometheus)
        with contextlib.redirect_stdout(self.log):
            for _ in range(1000):
                one.notification(body(*[straggler(pid) for pid in range(500)]))
        self.assertEqual((len(self.ran), prometheus.asked), (1, 1))

    def test_no_more_than_so_many_nodes_within_so_many_hours_also_after_a_restart(self):
        both = Firing(*[straggler(pid, instance) for pid in (1, 2) for instance in ("gpu-1:9400", "gpu-2:9400")])
        self.notify(self.receiver(both), body(straggler(1)))
        self.notify(self.receiver(both), body(straggler(1, "gpu-2:9400")))
        self.assertEqual([own[2] for own in self.ran], ["NodeName=gpu-1"])
        self.now += 24 * 3600
        self.notify(self.receiver(both), body(straggler(1, "gpu-2:9400")))
        self.assertEqual([own[2] for own in self.ran], ["NodeName=gpu-1", "NodeName=gpu-2"])

    def test_the_same_target_once(self):
        one = self.receiver(Firing(starved(7), units=[(7, "fluent-bit.service")]))
        for _ in range(3):
            self.notify(one, body(starved(7)))
        self.assertEqual(len(self.ran), 1)

    def test_nothing_is_done_when_it_cannot_be_noted(self):
        one = self.receiver(Firing(straggler(1), straggler(2)))
        one.limits.path = pathlib.Path(self.folder.name) / "missing" / "state.json"
        self.notify(one, body(straggler(1)))
        self.assertEqual(self.ran, [])
        self.assertIn("cannot write", self.log.getvalue())


class ReadsSettings(Base):
    def wrong(self, **changes):
        with self.assertRaises((receiver.Refused, ValueError, KeyError, OSError)):
            receiver.Settings(table(state_file=str(self.state), **changes))

    def test_names_that_are_no_names_and_settings_that_are_not_there(self):
        cpu, drain, taint = table()["action"]
        for unit in HOSTILE:
            self.wrong(action=[cpu | {"units": [unit]}])
        for node in ["-x", "gpu-1,gpu-2", "gpu-[1-9]", "ALL", "gpu 1", ""]:
            self.wrong(nodes={"gpu-1:9400": node, "gpu-2:9400": "gpu-2"})
        self.wrong(nodes={})
        for broken in [{"taint": "x=y:NoExecute"}, {"taint": "-x"}, {"quorum": 0}, {"at_most": True}, {"kind": "reboot"}, {"command": "x"}]:
            self.wrong(action=[taint | broken])
        self.wrong(action=[drain | {"alertname": "X; reboot"}])
        self.wrong(prometheus="file:///etc/passwd")
        self.wrong(secret="x")

    def test_what_is_wrong_is_a_sentence_and_an_exit_status(self):
        path, state = pathlib.Path(self.folder.name) / "settings.toml", f'state_file = "{self.state}"\n'
        start = f'prometheus = "http://localhost:9090"\n{state}'
        damaged = pathlib.Path(self.folder.name) / "damaged.json"
        damaged.write_text("{")
        for text, said in [
            (None, f"{path}: No such file or directory"),
            ("[", ""),
            ("", "prometheus is no http:// or https:// address"),
            ('prometheus = "http://p"\n', "state_file is missing"),
            ("listen = 1\n", "a setting has the wrong type ("),
            ('listen = "localhost"\n', "listen is 'localhost'; expected ADDRESS:PORT"),
            (start + '[[action]]\nkind = "reboot"\n', "kind is 'reboot'; expected one of"),
            (start.replace(str(self.state), str(damaged)) + "act = true\n", f"{damaged} is no list of actions"),
        ]:
            if text is not None:
                path.write_text(text)
            done = subprocess.run([sys.executable, HERE / "receiver.py", path], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (78, ""), done.stderr)
            self.assertTrue(done.stderr.startswith(f"receiver.py: cannot start with {path}: {said}"), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = subprocess.run([sys.executable, HERE / "receiver.py"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("receiver.py SETTINGS.toml", done.stderr)

    def test_other_addresses_than_loopback_need_a_token(self):
        self.wrong(listen="0.0.0.0:9096")
        token = pathlib.Path(self.folder.name) / "token"
        token.write_text("short\n")
        self.wrong(listen="0.0.0.0:9096", token_file=str(token))
        token.write_text("0123456789abcdef\n")
        receiver.Settings(table(state_file=str(self.state), listen="0.0.0.0:9096", token_file=str(token)))


@contextlib.contextmanager
def serving(answer, redirect=False):
    """A server that answers every request so, and keeps the queries."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            text = answer(self.path) if callable(answer) else answer
            self.send_response(302 if redirect else 200)
            if redirect:
                self.send_header("Location", "file:///etc/passwd")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(text)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def prometheus_with(*alerts):
    """The answers of a Prometheus in which these fire."""

    def answer(path):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["query"][0]
        assert query.startswith('ALERTS{alertname="GpucauseStraggler",alertstate="firing",instance="gpu-1:9400"}'), query
        return json.dumps({"status": "success", "data": {"result": [{"metric": own, "value": [0, "1"]} for own in alerts]}}).encode()

    return answer


class OverHttp(Base):
    def start(self, prometheus, **changes):
        settings = receiver.Settings(table(state_file=str(self.state), prometheus=prometheus, **changes))
        run = lambda command: self.ran.append(command) or "done"  # noqa: E731
        own = receiver.Receiver(settings, receiver.Prometheus(settings.prometheus), receiver.Limits(self.state), run)
        server = receiver.Server(settings, own)
        for work in (server.work, server.serve_forever):
            threading.Thread(target=work, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        # The threads log for as long as they live.
        redirected = contextlib.redirect_stdout(self.log)
        redirected.__enter__()
        self.addCleanup(redirected.__exit__, None, None, None)
        return server

    def post(self, server, text, **headers):
        client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        self.addCleanup(client.close)
        client.request("POST", "/", text, headers)
        return client.getresponse().status

    def until(self, holds):
        deadline = time.monotonic() + 30
        while not holds():
            self.assertLess(time.monotonic(), deadline, self.log.getvalue())
            time.sleep(0.05)

    def test_a_notification_is_taken_and_acted_on(self):
        with serving(prometheus_with(straggler(1), straggler(2))) as url:
            server = self.start(url)
            self.assertEqual(self.post(server, body(straggler(1))), 200)
            self.until(lambda: self.ran)
            self.assertEqual(self.ran[0][2], "NodeName=gpu-1")

    def test_only_with_the_token(self):
        token = pathlib.Path(self.folder.name) / "token"
        token.write_text("0123456789abcdef\n")
        server = self.start("http://127.0.0.1:9", token_file=str(token))
        for wrong in [None, "", "Bearer ", "Bearer 0123456789abcdeX", "Basic 0123456789abcdef", "Bearer é"]:
            headers = {} if wrong is None else {"Authorization": wrong.encode()}
            self.assertEqual(self.post(server, b"{}", **headers), 401)
        self.assertEqual(self.post(server, b"{}", Authorization="Bearer 0123456789abcdef"), 200)

    def test_sizes_have_limits(self):
        server = self.start("http://127.0.0.1:9")
        for length, status in [("-1", 411), ("x", 411), ("1e3", 411), (str(receiver.MAX_BODY + 1), 413), ("9" * 30, 411)]:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as client:
                client.sendall(f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
                self.assertIn(str(status).encode(), client.recv(100))

    def test_clients_that_send_nothing_do_not_keep_others_out_for_long(self):
        receiver.READ_SECONDS, before = 1, receiver.READ_SECONDS
        self.addCleanup(setattr, receiver, "READ_SECONDS", before)
        self.addCleanup(setattr, receiver.Handler, "timeout", receiver.Handler.timeout)
        receiver.Handler.timeout = 1
        server = self.start("http://127.0.0.1:9")
        clients = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(receiver.MAX_CONNECTIONS + 4)]

        def taken():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.post(server, b"{}") == 200

        self.until(taken)
        for client in clients:
            client.close()

    def test_a_full_queue_refuses(self):
        server = self.start("http://127.0.0.1:9")
        server.waiting.put_nowait = lambda _: (_ for _ in ()).throw(receiver.queue.Full)
        self.assertEqual(self.post(server, b"{}"), 503)

    @unittest.skipUnless(shutil.which("prometheus-alertmanager") and shutil.which("amtool"), "no Alertmanager here")
    def test_a_real_alertmanager_is_understood(self):
        with serving(prometheus_with(straggler(1), straggler(2))) as url:
            server = self.start(url)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            config = pathlib.Path(self.folder.name) / "alertmanager.yml"
            config.write_text(
                "route: {receiver: act, group_wait: 0s, group_by: [instance]}\n"
                f"receivers: [{{name: act, webhook_configs: [{{url: 'http://127.0.0.1:{server.server_port}/'}}]}}]\n"
            )
            command = [
                "prometheus-alertmanager", f"--config.file={config}", f"--storage.path={self.folder.name}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=error",
            ]
            alertmanager = subprocess.Popen(command)
            self.addCleanup(alertmanager.wait)
            self.addCleanup(alertmanager.kill)
            add = ["amtool", f"--alertmanager.url=http://127.0.0.1:{port}", "alert", "add", "GpucauseStraggler", "instance=gpu-1:9400", "pid=1"]
            self.until(lambda: subprocess.run(add, capture_output=True).returncode == 0)
            self.until(lambda: self.ran)
            self.assertEqual(self.ran[0][0], "scontrol")


if __name__ == "__main__":
    unittest.main()
