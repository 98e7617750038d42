"""DuckDB, ClickHouse, a Spark cluster and pandas with SQLite answer the same questions over the Parquet files of 100 nodes, and `gpucause query`
answers them over the merged trace file: the answers are equal, to the nanosecond.

What is real: traces (the worked cases, under names of other nodes and with other durations), exports, the merge, DuckDB, ClickHouse (in
process, chdb), and Spark (a master and two workers on loopback, each a process of its own). Each engine gets the statements as they are.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

NODES, WORKERS, DEADLINE = 100, 2, 600
# Names that need to be escaped in a path, or that an engine could take for a number or a date.
ODD_NAMES = {3: "gpu/3=a b%2F", 4: "0042", 5: "2026-01-31", 6: "é{}[]*?"}

# Sums are of whole nanoseconds: those of fractions depend on the order.
QUESTIONS = {
    "lost by node and cause": """
        SELECT node, cause, count(*) AS chains, sum(CAST(floor(lost_seconds * 1e9) AS BIGINT)) AS lost_ns
        FROM chains GROUP BY node, cause""",
    "time by node, reason and culprit": """
        SELECT node, kind, reason, by_comm, count(*) AS times, sum(duration_ns) AS taken_ns, min(start_ns), max(end_ns)
        FROM events GROUP BY node, kind, reason, by_comm""",
    "p99 by function": """
        SELECT op, max(of_op) AS calls, min(duration_ns) AS p99_ns FROM (
            SELECT op, duration_ns, row_number() OVER (PARTITION BY op ORDER BY duration_ns) AS place,
                count(*) OVER (PARTITION BY op) AS of_op
            FROM events WHERE kind = 'call') AS ranked
        WHERE place * 100 >= of_op * 99 GROUP BY op""",
}
# In a trace file, chains have the number of the node. SQLite has no floor, and its casts round down what others round to the nearest.
OF_TRACE = {"FROM chains": "FROM (SELECT nodes.name AS node, cause, lost_seconds FROM chains JOIN nodes ON nodes.id = node)", "floor": ""}


def timed(what, work):
    begin = time.monotonic()
    result = work()
    print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)
    return result


def normal(rows):
    return sorted([[value if value is None or isinstance(value, str) else int(value) for value in row] for row in rows], key=repr)


def traces(args):
    """A trace file for each node: a worked case with other durations, on one of three days."""
    cases = sorted((args.root / "investigations/cases").glob("*.db"))
    files = []
    for index in range(NODES):
        path = args.work / f"{index}.db"
        shutil.copy(cases[index % len(cases)], path)
        with sqlite3.connect(path) as trace:
            trace.execute("UPDATE nodes SET name = ?", [ODD_NAMES.get(index, f"gpu-{index}")])
            trace.execute("UPDATE event SET duration_ns = duration_ns + id * ? % 1009, start_ns = start_ns + ?",
                          [index, index % 3 * 86400 * 10**9])
        trace.close()
        files.append(path)
    return files


def exported(args, files):
    lake = args.work / "lake"
    for file in files:
        subprocess.run([args.gpucause, "export", "--db", file, "--format", "parquet", "-o", lake], check=True, stderr=subprocess.DEVNULL)
    return lake


def merged(args, files):
    merged = args.work / "merged.db"
    subprocess.run([args.gpucause, "merge", "-o", merged, *files], check=True, stderr=subprocess.DEVNULL)
    return merged


def gpucause(args, trace):
    answers = {}
    for name, statement in QUESTIONS.items():
        for ours, theirs in OF_TRACE.items():
            statement = statement.replace(ours, theirs)
        command = [args.gpucause, "query", "--db", trace, "--format", "json", "--limit", "100000", "--timeout", "60s", statement]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        if not answer["rows"] or answer["more_rows"]:
            sys.exit(f"gpucause query: {name}: {len(answer['rows'])} rows, more: {answer['more_rows']}")
        answers[name] = normal(answer["rows"])
    return answers


def duckdb(lake):
    import duckdb

    database = duckdb.connect()
    for table in ["events", "chains"]:
        database.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{lake}/{table}/*/*/*.parquet', hive_partitioning = true)")
    return {name: normal(database.execute(statement).fetchall()) for name, statement in QUESTIONS.items()}


def clickhouse(lake):
    from chdb import session

    database = session.Session()
    for table in ["events", "chains"]:
        database.query(f"CREATE VIEW {table} AS SELECT * FROM file('{lake}/{table}/*/*/*.parquet', Parquet)")
    answers = {}
    for name, statement in QUESTIONS.items():
        lines = str(database.query(statement, "JSONCompactEachRow")).splitlines()
        answers[name] = normal(json.loads(line) for line in lines)
    return answers


def pandas(lake):
    import pandas

    with sqlite3.connect(":memory:") as database:
        for table in ["events", "chains"]:
            frame = pandas.read_parquet(lake / table)
            frame.drop(columns=["host", "date"]).to_sql(table, database, index=False)
        return {name: normal(database.execute(statement.replace("floor", "")).fetchall()) for name, statement in QUESTIONS.items()}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """A Spark master and its workers, on loopback."""

    def __init__(self, args):
        self.args, self.processes = args, []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.start("master", "master.Master", "--port", str(port))
        for worker in range(WORKERS):
            self.start(f"worker-{worker}", "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir",
                       str(args.work / f"worker-{worker}"), self.url)

    def start(self, name, program, *arguments):
        command = [self.args.spark / "bin/spark-class", f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1", "--webui-port", "0"]
        # On a busy host, heartbeats of a minute ago are no reason to lose a worker.
        environment = {**os.environ, "SPARK_MASTER_OPTS": f"-Dspark.worker.timeout={DEADLINE}"}
        log = open(self.args.work / f"{name}.log", "wb")
        self.processes.append(subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environment))

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()


def spark(args, lake):
    from pyspark.sql import SparkSession

    cluster = Cluster(args)
    try:
        builder = SparkSession.builder.master(cluster.url).appName("gpucause")
        for name, value in {
            "driver.host": "127.0.0.1",
            "driver.bindAddress": "127.0.0.1",
            "executor.memory": "512m",
            "network.timeout": f"{DEADLINE}s",
            "log.level": "ERROR",
            # Nothing runs until both workers are there.
            "scheduler.minRegisteredResourcesRatio": "1.0",
            "scheduler.maxRegisteredResourcesWaitingTime": f"{DEADLINE}s",
            "sql.shuffle.partitions": "2",
            # Listed by the driver: tasks that list one folder each take longer.
            "sql.sources.parallelPartitionDiscovery.threshold": "1000",
            "ui.showConsoleProgress": "false",
            "sql.warehouse.dir": str(args.work / "warehouse"),
            "ui.enabled": "false",
        }.items():
            builder = builder.config(f"spark.{name}", value)
        database = builder.getOrCreate()
        for table in ["events", "chains"]:
            database.read.parquet(str(lake / table)).createOrReplaceTempView(table)
        answers = {name: normal(database.sql(statement).collect()) for name, statement in QUESTIONS.items()}
        executors = database.sparkContext._jsc.sc().statusStore().executorList(True)
        tasks = {own.id(): own.completedTasks() for own in (executors.apply(at) for at in range(executors.size())) if own.id() != "driver"}
        database.stop()
    finally:
        cluster.stop()
    print(f"Spark: tasks by executor: {tasks}")
    if len(tasks) != WORKERS or not all(tasks.values()):
        sys.exit(f"not all of {WORKERS} workers took part")
    return answers


def main():
    parser = argparse.ArgumentParser()
    for name in ["--gpucause", "--spark", "--work", "--root"]:
        parser.add_argument(name, type=lambda path: pathlib.Path(os.path.realpath(path)), required=True)
    args = parser.parse_args()
    files = timed(f"{NODES} trace files", lambda: traces(args))
    lake = timed("export", lambda: exported(args, files))
    trace = timed("merge", lambda: merged(args, files))
    parquet = list(lake.rglob("*.parquet"))
    sizes = [sum(path.stat().st_size for path in paths) >> 10 for paths in (files, parquet, [trace])]
    print(f"{sizes[0]} KiB of trace files, {len(parquet)} Parquet files of {sizes[1]} KiB, a merged file of {sizes[2]} KiB")
    expected = timed("gpucause query", lambda: gpucause(args, trace))
    answers = {
        "DuckDB": timed("DuckDB", lambda: duckdb(lake)),
        "ClickHouse": timed("ClickHouse", lambda: clickhouse(lake)),
        "pandas": timed("pandas", lambda: pandas(lake)),
        "Spark": timed("Spark", lambda: spark(args, lake)),
    }
    wrong = 0
    for name, rows in expected.items():
        for engine, answer in answers.items():
            differing = [pair for pair in zip(rows, answer[name]) if pair[0] != pair[1]]
            if len(rows) != len(answer[name]) or differing:
                wrong += 1
                print(f"WRONG: {engine}: {name}: {len(answer[name])} rows in place of {len(rows)}; first: {differing[:1]}")
        print(f"{name}: {len(rows)} rows, such as {rows[len(rows) // 2]}")
    missing = NODES - len({row[0] for row in expected["time by node, reason and culprit"]})
    sys.exit(f"{wrong} answers differ, {missing} nodes are missing" if wrong or missing else 0)


main()
