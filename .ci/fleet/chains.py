"""Chains of eight producers, through a real OpenTelemetry collector, into ClickHouse: no chain is lost or counted twice, although
the collector is killed, the store refuses for a while, and a producer is killed.

What is real: sender, spool and records of the exporter (`exporter/examples/otlp_producer.rs`), the collector (Debian's packages), and
ClickHouse (in process, chdb) with the tables and views of `investigations/clickhouse.sql`. What is not: chains are those of a recorded
trace under made-up ids, not found live, and a script takes the place of the collector's ClickHouse exporter, which Debian does not
package: it writes rows as that does.
"""

import argparse
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

NODES, CHAINS, SECONDS = 8, 250, 60
# When what happens, after the producers began.
KILL_PRODUCER, STORE_REFUSES, STORE_TAKES, KILL_COLLECTOR, START_COLLECTOR = 8, 14, 20, 26, 46
DEADLINE = 300
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{receiver}"}}}}}}}}
exporters:
  otlp_http:
    endpoint: http://127.0.0.1:{store}
    encoding: json
    compression: none
    # All that the collector takes is stored: a queue of its own would be lost with it.
    sending_queue: {{enabled: false}}
    retry_on_failure: {{enabled: false}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
  pipelines: {{logs: {{receivers: [otlp], exporters: [otlp_http]}}}}
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Store:
    """Appends what the collector exports to a file, in OTLP's JSON, a request a line."""

    def __init__(self, path):
        self.path, self.refuses, self.refused = path, False, 0
        lock, store = threading.Lock(), self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    # The collector was killed meanwhile.
                    self.close_connection = True
                    return
                with lock:
                    refuses = store.refuses
                    if refuses:
                        store.refused += 1
                    else:
                        with open(store.path, "ab") as lines:
                            lines.write(body + b"\n")
                answer = b"" if refuses else b"{}"
                self.send_response(503 if refuses else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Producer:
    def __init__(self, args, endpoint, node):
        self.out = args.work / f"{node}.out"
        self.command = [args.producer, "--endpoint", endpoint, "--spool", args.work / f"{node}.spool", "--node", node,
                        "--trace", args.trace, "--chains", str(CHAINS), "--seconds", str(SECONDS)]
        self.run(0)

    def run(self, start):
        self.process = subprocess.Popen([*self.command, "--from", str(start)], stdout=open(self.out, "ab"))

    def kill_and_restart(self):
        self.process.kill()
        self.process.wait()
        ended = int(self.out.read_text().rsplit("\n", 2)[-2])
        self.run(ended)
        return ended


def plain(value):
    """Returns a value as the collector's ClickHouse exporter writes it into a map of text."""
    (kind, content), = value.items()
    return json.dumps(content).lower() if kind == "boolValue" else str(content)


def plain_map(attributes):
    return {own["key"]: plain(own["value"]) for own in attributes}


def rows(lines):
    for line in lines:
        for resource in json.loads(line)["resourceLogs"]:
            of_resource = plain_map(resource["resource"]["attributes"])
            for scope in resource["scopeLogs"]:
                for record in scope["logRecords"]:
                    nanos = int(record["timeUnixNano"])
                    yield {
                        "Timestamp": f"{nanos // 10**9}.{nanos % 10**9:09}",
                        "SeverityText": record["severityText"],
                        "SeverityNumber": record["severityNumber"],
                        "ServiceName": of_resource["service.name"],
                        "Body": record["body"]["stringValue"],
                        "ResourceAttributes": of_resource,
                        "ScopeName": scope["scope"]["name"],
                        "ScopeVersion": scope["scope"]["version"],
                        "LogAttributes": plain_map(record["attributes"]),
                    }


def produce(args):
    store = Store(args.work / "logs.jsonl")
    receiver = free_port()
    config = args.work / "collector.yaml"
    config.write_text(CONFIG.format(receiver=receiver, store=store.port))

    def collector():
        return subprocess.Popen([args.collector, f"--config=file:{config}"], stderr=open(args.work / "collector.log", "ab"))

    running = collector()
    begin = time.monotonic()
    producers = [Producer(args, f"http://127.0.0.1:{receiver}", f"gpu-{index}") for index in range(NODES)]

    def at(seconds):
        time.sleep(max(0, begin + seconds - time.monotonic()))

    try:
        at(KILL_PRODUCER)
        print(f"{KILL_PRODUCER} s: a producer is killed after {producers[3].kill_and_restart()} chains, and starts again")
        at(STORE_REFUSES)
        store.refuses = True
        at(STORE_TAKES)
        store.refuses = False
        print(f"{STORE_REFUSES} to {STORE_TAKES} s: the store refused {store.refused} requests")
        at(KILL_COLLECTOR)
        running.kill()
        running.wait()
        at(START_COLLECTOR)
        running = collector()
        print(f"{KILL_COLLECTOR} to {START_COLLECTOR} s: the collector was killed, and away")
        for producer in producers:
            producer.process.wait(timeout=begin + DEADLINE - time.monotonic())
            if producer.process.returncode:
                sys.exit(f"a producer ended with {producer.process.returncode}")
    finally:
        running.send_signal(signal.SIGTERM)
        for producer in producers:
            producer.process.kill()
    outcomes = [json.loads(producer.out.read_text().splitlines()[-1]) for producer in producers]
    print(f"{time.monotonic() - begin:.0f} s: nothing waits any more")
    for outcome in outcomes:
        share = outcome["cpu_seconds"] / outcome["wall_seconds"]
        failures = ", ".join(f"{count} {reason}" for reason, count in outcome["failures"].items())
        print(f"  {outcome['node']}: {outcome['sent']} records sent, {outcome['lost'] or 0} lost; failed requests: {failures or 0};"
              f" {share:.3%} of a core")
    return store.path, outcomes


def questions(args, lines):
    from chdb import session

    table = args.work / "rows.jsonl"
    with open(table, "w") as out:
        for row in rows(open(lines)):
            print(json.dumps(row), file=out)
    database = session.Session(str(args.work / "clickhouse"))
    begin = time.monotonic()
    statements = (args.root / "investigations/clickhouse.sql").read_text()
    for statement in statements.split(";\n"):
        if statement.strip():
            database.query(statement)
    columns = "Timestamp, SeverityText, SeverityNumber, ServiceName, Body, ResourceAttributes, ScopeName, ScopeVersion, LogAttributes"
    database.query(f"INSERT INTO otel_logs ({columns}) SELECT {columns} FROM file('{table}', JSONEachRow,"
                   " 'Timestamp DateTime64(9), SeverityText String, SeverityNumber UInt8, ServiceName String, Body String,"
                   " ResourceAttributes Map(String, String), ScopeName String, ScopeVersion String, LogAttributes Map(String, String)')")

    def ask(query):
        return [json.loads(line) for line in str(database.query(query, "JSONCompactEachRow")).splitlines()]

    answers = {
        "rows": ask("SELECT count(), uniqExact(LogAttributes['log.record.uid']) FROM otel_logs")[0],
        "records": ask("SELECT State, count(), uniqExact(Node, ChainId) FROM gpucause_chain_records FINAL GROUP BY State ORDER BY State"),
        "chains": ask("SELECT Node, count(), countIf(State = 'ended'), sum(LostSeconds) FROM gpucause_chain_latest GROUP BY Node ORDER BY Node"),
        "jobs": ask("SELECT Job, sum(Chains), round(sum(Lost), 6), max(Nodes) FROM gpucause_chain_lost_by_job GROUP BY Job"),
        "whole": ask("SELECT countIf(Cause = '' OR Sentence = '' OR empty(Evidence) OR Rank != 0 OR Victim = '') FROM gpucause_chain_latest")[0],
    }
    print(f"ClickHouse: tables, rows and answers in {time.monotonic() - begin:.2f} s")
    return answers


def main():
    parser = argparse.ArgumentParser()
    for name in ["--collector", "--producer", "--trace", "--work", "--root"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(os.path.realpath(path)), required=True)
    args = parser.parse_args()
    lines, outcomes = produce(args)
    answers = questions(args, lines)
    for name, answer in answers.items():
        print(f"  {name}: {answer}")
    received, distinct = answers["rows"]
    counted = [(count, ended) for _, count, ended, _ in answers["chains"]]
    wrong = {
        "every node has its chains, and all have ended": counted == [(CHAINS, CHAINS)] * NODES,
        "each chain began and ended once": answers["records"] == [[state, NODES * CHAINS, NODES * CHAINS] for state in ("ended", "new")],
        "no row is missing": distinct == 2 * NODES * CHAINS,
        "no producer lost a record": all(not outcome["lost"] for outcome in outcomes),
        "the producers saw the outage": all(outcome["failures"] for outcome in outcomes),
        "chains are whole": answers["whole"] == [0],
        "one job has them all": [row[:2] for row in answers["jobs"]] == [["17", NODES * CHAINS]],
    }
    print(f"{NODES * CHAINS} of {NODES * CHAINS} chains, {distinct} records; {received - distinct} came twice, and count once"
          if all(wrong.values()) else "\n".join(f"WRONG: {name}" for name, holds in wrong.items() if not holds))
    sys.exit(0 if all(wrong.values()) else 1)


main()
