"""`event_history` of `gpucause mcp` asks a real ClickHouse (in process, chdb) for the chains that `chains.py` put there. What is not
real is the HTTP interface: a script answers as that does, with the settings and parameters of the request. It refuses what would not
only read.
"""

import argparse
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.parse

NODES, CHAINS = 8, 250
# Texts of a node that sends what is as large in JSON as it can be.
LARGE = "repeat(char(1), 100000)"
HOSTILE = f"""
INSERT INTO gpucause_chain_records SELECT {LARGE}, concat(toString(number), {LARGE}), 1, {LARGE}, now64(3), now64(3), 1, {', '.join([LARGE] * 3)},
    1.7e308, 0.5, {LARGE}, 7, {LARGE}, NULL, {LARGE}, NULL, {', '.join([LARGE] * 6)},
    CAST((arrayMap(at -> concat(repeat(char(1), 60), toString(at)), range(36)), range(36)), 'Map(LowCardinality(String), Float64)')
FROM numbers(200)"""
# Parameters of the HTTP interface itself.
NO_SETTINGS = {"query", "database", "default_format", "wait_end_of_query"}


class ClickHouse:
    """The HTTP interface of a database. A setting that it does not know is an error."""

    def __init__(self, database):
        lock, store = threading.Lock(), self
        self.requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))
                store.requests.append(asked)
                with lock:
                    status, answer = store.answer(database, asked)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/default"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def answer(database, asked):
        settings = {name: value for name, value in asked.items() if name not in NO_SETTINGS and not name.startswith("param_")}
        try:
            for name, value in asked.items():
                if name.startswith("param_"):
                    # A literal has escapes of its own.
                    literal = value.replace("\\", "\\\\").replace("'", "\\'")
                    database.query(f"SET {name} = '{literal}'")
            listed = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
            return 200, str(database.query(f"{asked['query']}\nSETTINGS {listed}", asked["default_format"])).encode()
        except Exception as error:
            return 500, str(error).encode()


class Assistant:
    """Calls tools over standard input and output."""

    def __init__(self, program, arguments):
        self.process = subprocess.Popen([program, "mcp", "--log.level=warn", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
        self.request("initialize", client)
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.send({"id": 1, "method": method, "params": params})
        return json.loads(self.process.stdout.readline())["result"]

    def call(self, tool, **arguments):
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        text = result["content"][0]["text"]
        if result["isError"]:
            sys.exit(f"WRONG: {tool} {arguments}: {text}")
        return json.loads(text)

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=20)


def check(assistant, clickhouse, database):
    """Returns the statements that do not hold of the answers."""

    def history(**asked):
        begin = time.monotonic()
        answer = assistant.call("event_history", **asked)
        first = answer["chains"][0] if answer["chains"] else {}
        print(f"  {asked}: {answer['chains_in_all']:.0f} chains, {answer['lost_seconds_in_all']} s lost, newest record"
              f" {answer['newest_record_age_s']} s old; {time.monotonic() - begin:.2f} s")
        return answer, first

    all_chains, newest = history(detail=True)
    of_node, first_of_node = history(node="gpu-3", limit=200)
    of_job, _ = history(job="17")
    cause = newest.get("cause", "")
    of_cause, _ = history(cause=cause, comm=newest.get("victim", {}).get("comm", ""))
    nothing = [history(**asked)[0] for asked in
               ({"node": "gpu-3' OR 1 = 1 --"}, {"node": "a\\b"}, {"job": "nobody"}, {"hours": 1, "until": newest.get("first_seen", 0) - 86400})]
    writes = {**clickhouse.requests[-1], "query": "INSERT INTO otel_logs (Body) SELECT 'x'"}
    refused = clickhouse.answer(database, writes)
    database.query(HOSTILE)
    large, _ = history(detail=True)
    holds = {
        "all chains are there once": all_chains["chains_in_all"] == NODES * CHAINS,
        "source and age are said": clickhouse.url.startswith(all_chains["source"][:20]) and 0 <= all_chains["newest_record_age_s"] < 86400,
        "chains are whole": newest.get("sentence") and newest.get("evidence") and newest.get("fix") and newest.get("state") == "ended",
        "a node has its chains": of_node["chains_in_all"] == CHAINS and {row["node"] for row in of_node["chains"]} == {"gpu-3"},
        "the newest is first": first_of_node["last_seen"] == max(row["last_seen"] for row in of_node["chains"]),
        "a job has its chains": of_job["chains_in_all"] == NODES * CHAINS,
        "a cause has its chains": 0 < of_cause["chains_in_all"] <= NODES * CHAINS,
        "what is asked for is no SQL, and nothing is found of what is not there": all(not answer["chains_in_all"] for answer in nothing),
        "a node that sends much does not hide the others": large["chains_in_all"] == NODES * CHAINS + 200 and abs((large["lost_seconds_in_all"] or 0) - all_chains["lost_seconds_in_all"]) < 1e-3,
        "with its settings, a request can only read": refused[0] == 500 and b"READONLY" in refused[1],
        "each request may only read": all(asked["readonly"] == "2" and asked["max_execution_time"] == "8" for asked in clickhouse.requests),
    }
    return [name for name, right in holds.items() if not right]


def main():
    parser = argparse.ArgumentParser()
    for name in ["--gpucause", "--trace", "--database"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(os.path.realpath(path)), required=True)
    args = parser.parse_args()
    from chdb import session

    database = session.Session(str(args.database))
    clickhouse = ClickHouse(database)
    assistant = Assistant(args.gpucause, ["--db", args.trace, "--clickhouse", clickhouse.url])
    wrong = check(assistant, clickhouse, database)
    assistant.end()
    clickhouse.server.shutdown()
    database.close()
    for name in wrong:
        print(f"WRONG: {name}")
    sys.exit(1 if wrong else 0)


main()
