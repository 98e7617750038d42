#!/usr/bin/env python3
"""Records the worked cases again: `make cases`. Needs root, two CPUs, and a host that does nothing else meanwhile.

For each case the stand-in workload injects its fault for real while `gpucause record` looks on; beside the trace file stands
what the workload says of itself, in a JSON file that a test compares the trace with. The programs run from /opt/gpucause in a
mount namespace of their own, in cgroup and UTS namespaces of their own, so that a file tells nothing of the host; names of other programs that ran there are
replaced.
"""

import argparse
import collections
import contextlib
import fcntl
import fnmatch
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
INSTALLED = pathlib.Path("/opt/gpucause")
START_SECONDS = 30
# Healthy seconds, so that the program counts as warm. With those of a fault they are no multiple of the 1.5 s between evaluations: the
# last one, which a chain's sentence is about, is then not of a few milliseconds.
BASELINE = 7.9
# The lost time that a chain reports may differ from the workload's own by this share.
TOLERANCE = 0.1
# Other programs get this name, as far as there is room.
NEIGHBOUR = "neighbour-unnamed"

# The effect of the first-ranked chain; seconds with the fault; whether only the fault may disturb the dispatcher thread; and how to
# record, PID being the program's. Only what is long enough to matter is recorded: the accounts hold all of it.
Case = collections.namedtuple("Case", "effect seconds undisturbed flags")
CASES = {
    "cpu-contention": Case("launch_tail", 9, False, "--pid=PID --calls-from=4ms --off-cpu-from=4ms"),
    "lock": Case("launch_gap", 9, True, "--pid=PID --calls-from=2500us --off-cpu-from=2500us"),
    "dataloader": Case("launch_gap", 9, True, "--pid=PID --calls-from=2500us --off-cpu-from=2500us"),
    "implicit-sync": Case("sync_storm", 9, False, "--pid=PID --calls-from=20ms --off-cpu-from=20ms --sample=150"),
    # All allocations are recorded.
    "alloc-churn": Case("alloc_tail", 5, True, "--pid=PID --calls-from=10ms --off-cpu-from=10ms"),
    "nccl-straggler": Case("launch_rate_drop", 7, True, "--calls-from=3ms --off-cpu-from=3ms"),
}


class Failure(Exception):
    """Shown to the user in one line."""


def arguments():
    parser = argparse.ArgumentParser(description="Record the worked cases again.")
    parser.add_argument("--programs", type=pathlib.Path, required=True, metavar="DIR",
                        help="folder of gpucause, gpucause-workload and the stand-in libraries")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    args = parser.parse_args()
    for name in args.cases:
        if name not in CASES:
            parser.error(f"no case {name!r}: write {', '.join(CASES)}")
    return args


def alone():
    """Held until this program ends, as by the tests: what others load onto the CPUs would be in the recording."""
    lock = open(pathlib.Path(tempfile.gettempdir()) / "gpucause-test-alone", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def install(programs):
    """Lays the programs out where a package could have put them; only this program and its children see them there."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(INSTALLED.parent)], check=True)
    INSTALLED.mkdir()
    shutil.copy2(programs / "gpucause", INSTALLED)
    subprocess.run([programs / "gpucause-workload", "lay-out", INSTALLED / "stand-ins"], check=True)
    # Lines of the sources would tell where they lie on the host.
    subprocess.run(["strip", "--strip-debug", *(INSTALLED / "stand-ins").iterdir()], check=True)


def favour(pid):
    """Gives a recorded process priority over the others that work on this host."""
    group = pathlib.Path(f"/proc/{pid}/autogroup")
    if not group.exists():
        return
    if group.read_text():
        group.write_text("-20")
    else:
        os.setpriority(os.PRIO_PROCESS, pid, -20)


class Program:
    """A child in a session of its own, whose lines are kept as they come."""

    def __init__(self, words, stream):
        pipes = {"stdin": subprocess.PIPE, stream: subprocess.PIPE, "text": True}
        self.child = subprocess.Popen([str(word) for word in words], start_new_session=True, **pipes)
        self.lines, self.said = queue.SimpleQueue(), []
        threading.Thread(target=self._listen, args=(getattr(self.child, stream),), daemon=True).start()
        favour(self.child.pid)

    def _listen(self, stream):
        for line in stream:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def until(self, is_it):
        """The first line that is it."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"{self.child.args[0]} did not get so far: {self.said[-5:]}") from None
            if line is None:
                raise Failure(f"{self.child.args[0]} ended: {self.said[-5:]}")
            self.said.append(line)
            if is_it(line):
                return line

    def rest(self):
        """Yields the lines of the program until it ends."""
        while (line := self.lines.get()) is not None:
            self.said.append(line)
            yield line
        if self.child.wait() != 0:
            raise Failure(f"{self.child.args[0]} failed: {self.said[-5:]}")

    def end(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def session_of(leader):
    """All processes of a program's session."""
    pids = {int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()}

    def is_in_it(pid):
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid) == leader
        return False

    return {pid for pid in pids if is_in_it(pid)}


def truth(workload):
    """Returns the workload's own report: the fault, the seconds that it had cost by each time, and the PIDs of its processes."""
    fault, lost, own = None, [], set()
    for line in workload.rest():
        said = json.loads(line)
        if "injected" in said:
            fault, own = said["injected"], session_of(workload.child.pid)
        said = said.get("truth", said)
        if "lost_seconds" in said and "at_unix" in said:
            lost.append([round(said["at_unix"], 3), round(said["lost_seconds"], 3)])
    if fault is None:
        raise Failure("the workload injected nothing")
    return fault, lost, own


def refuse_others(db, own):
    """Accounts are of all CUDA programs of the host."""
    with contextlib.closing(sqlite3.connect(db)) as trace:
        others = {pid for (pid,) in trace.execute("SELECT pid FROM processes")} - own
    if others:
        raise Failure(f"{db.name} tells of other CUDA programs, {sorted(others)}: record where none runs")


def record(name, case, db):
    """Returns what is to be found in the file."""
    workload = Program(
        [INSTALLED / "stand-ins/gpucause-workload", "scenario", name, "--wait", "--with-parent", "--comm=demo-trainer",
         "--every=500ms", f"--baseline={BASELINE}", f"--seconds={case.seconds}", f"--libs={INSTALLED / 'stand-ins'}",
         *(["--undisturbed"] if case.undisturbed else [])],
        "stdout")
    recorder = None
    try:
        workload.until(lambda line: line.startswith("ready "))
        flags = case.flags.replace("PID", str(workload.child.pid)).split()
        recorder = Program([INSTALLED / "gpucause", "record", f"--db={db}", "--node=gpu-1", *flags], "stderr")
        recorder.until(lambda line: ": recording: " in line)
        workload.child.stdin.write("go\n")
        workload.child.stdin.flush()
        fault, lost, own = truth(workload)
        recorder.child.send_signal(signal.SIGINT)
        print(*(line for line in recorder.rest() if line.startswith(str(db))), flush=True)
    finally:
        workload.end()
        if recorder:
            recorder.end()
    refuse_others(db, own)
    culprit = fault["culprit"]
    return {
        "cause": fault["cause"],
        "effect": case.effect,
        "victim": "trainer-rank" if name == "nccl-straggler" else "demo-trainer",
        "culprit": culprit and culprit["comm"],
        "tolerance": TOLERANCE,
        "lost_seconds": lost,
    }


def is_known(name):
    """Returns true if a name is one of the demonstration or the kernel."""
    known = (HERE / "names.txt").read_text().split()
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in known)


def stand_in_name(name, number):
    """A name of the same length, so that records keep their layout; it ends with `number` where there is room."""
    digits = str(number) if len(str(number)) < len(name) else ""
    return NEIGHBOUR[: len(name) - len(digits)] + digits


def leave_out_the_host(db):
    """Replaces the names of the host's other programs, and cuts the kernel's release down to its version."""
    trace = sqlite3.connect(db)
    with trace:
        (release,) = trace.execute("SELECT value FROM session_details WHERE name = 'kernel'").fetchone()
        trace.execute("UPDATE session_details SET value = ? WHERE name = 'kernel'", [release.split("-")[0]])
        names = trace.execute("SELECT comm FROM parties UNION SELECT comm FROM waited_for")
        # The shortest names have the least room for a number.
        foreign = sorted((name for (name,) in names if name and not is_known(name)), key=len)
        renamed = {name: stand_in_name(name, number) for number, name in enumerate(foreign, 1)}
        for table in ("parties", "waited_for"):
            trace.executemany(f"UPDATE {table} SET comm = ? WHERE comm = ?", [(new, old) for old, new in renamed.items()])
        for look, accounts in trace.execute("SELECT id, accounts FROM looks").fetchall():
            accounts = zlib.decompress(accounts)
            for old, new in renamed.items():
                old, new = (bytes([len(name)]) + name for name in (old.encode(), new.encode()))
                accounts = accounts.replace(old, new)
            trace.execute("UPDATE looks SET accounts = ? WHERE id = ?", [zlib.compress(accounts, 9), look])
        for (sentence, chain) in trace.execute("SELECT sentence, json FROM chains"):
            steps = json.loads(chain)["path"]
            words = " ".join([sentence, *(end for step in steps for end in (step["from"], step["to"]))])
            if named := [name for name in foreign if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", words)]:
                raise Failure(f"{named} took from the workload: record on a host that is less busy")
    # Old names stay in free pages until VACUUM rewrites the file.
    trace.execute("VACUUM")
    trace.close()


def within(args):
    lock = alone()
    install(args.programs)
    favour(os.getpid())
    for name in args.cases or CASES:
        db = INSTALLED / f"{name}.db"
        expected = record(name, CASES[name], db)
        leave_out_the_host(db)
        shutil.copyfile(db, HERE / db.name)
        (HERE / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")
    lock.close()


def main():
    args = arguments()
    if os.geteuid() != 0:
        raise Failure("this needs root: sudo -E make cases")
    if args.within:
        return within(args)
    args.programs = args.programs.resolve()
    own = [sys.executable, "-B", __file__, "--within", f"--programs={args.programs}", *args.cases]
    return subprocess.run(["unshare", "--mount", "--cgroup", "--uts", *own], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
