#!/usr/bin/env python3
"""Tests of what the exporter reports about PyTorch programs on a simulated GPU: test.py GPUCAUSE FOLDER [--quick] [--seconds N] [PROGRAM...]

FOLDER is that of `install`. Launches are held against the stand-ins' own count, chains and lost time against the programs' clocks and
the kernel's. Needs root and a quiet host: what fails while others use its CPUs runs again, twice at most, and is named at the end. --quick
has the programs that differ most, and --seconds runs the healthy ones alone, each for so long.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import expected
from expected import FAULT_SECONDS, FAULTS, HEALTHY, MOST_LOST
from exporter import SEVERITIES, Exporter, within
from host import FIRST, Host, cpu_seconds, step_back
from observed import LostTime, Shown, names_line, shown, taken, until
from started import Started, check, failed

ADDRESS = "127.0.0.1:9437"
# A program that failed while others used the CPUs runs again so often.
REPEATS = 2


class Bed:
    """The exporter, and what programs run with."""

    def __init__(self, gpucause, folder, *options, seconds=None):
        # How long healthy programs run.
        self.seconds = seconds
        self.exporter, site = Exporter(gpucause, ADDRESS, "--nvml.off", *options), folder / "site"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(site),
            "LD_LIBRARY_PATH": str(site / "nvidia/cu13/lib"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache/inductor"),
            "TRITON_CACHE_DIR": str(folder / "cache/triton"),
        }
        check(self.exporter.starts(), "the exporter starts")

    def start(self, name, seconds, prefix=()):
        program = Started(name, seconds, prefix, {**self.environment, **expected.ENVIRONMENTS.get(name, {})})
        if check(program.warm(), f"{name} starts"):
            within(10, self.is_calm)
            return program
        program.end()
        return None

    def is_calm(self):
        """Returns True once the exporter has finished reading a new process: PyTorch's libraries have a gigabyte."""
        before = cpu_seconds(self.exporter.child.pid)
        time.sleep(0.4)
        return cpu_seconds(self.exporter.child.pid) - before < 0.1

    def host(self, program, *others):
        return Host([self.exporter.child.pid, program.pid, *program.descendants(), *others])


def pids_of(program):
    """Its own, and those of its ranks."""
    return [program.pid, *(program.children() if program.name == "two_ranks" else [])]


def healthy(bed, name):
    """Runs it; what is returned evaluates it, while the next program runs, and says whether others were in its way."""
    program = bed.start(name, bed.seconds or HEALTHY[name].seconds)
    if not program:
        return lambda: False
    pids, host = pids_of(program), bed.host(program)
    program.go()
    lost, top = LostTime(bed.exporter, pids), Shown(bed.exporter, pids)
    for line in program.lines():
        lost.mark(line.get("phase", "after its end"))
    ended = time.monotonic()
    host.end()

    def finish():
        time.sleep(max(0, ended + expected.AFTER - time.monotonic()))
        lost.mark(None)
        shares, most, unnamed = list(lost.phases()), top.end(), [lost.unnamed(pid) for pid in pids]
        program.end()
        check_named(name, unnamed)
        check(max(share for _, share in shares) < MOST_LOST, f"{name}: less than {MOST_LOST:.0%} is lost in each phase: {shown(shares)}")
        check(most < MOST_LOST, f"{name}: top shows less than {MOST_LOST:.0%} as lost: at most {most:.1%}")
        found = {cause: severity for pid in pids for cause, severity in bed.exporter.severities(pid).items()}
        wanted = HEALTHY[name].allowed
        check(found == wanted, f"{name}: {wanted or 'no chain'}: found {found or 'no chain'}")
        return show(bed, name, pids, wanted, host)

    return finish


def fault(bed, name):
    """Runs a program with a fault; the returned function evaluates it, as that of `healthy` does."""
    program = bed.start(name, FAULT_SECONDS, ["taskset", "-c", "0"] if name == "preempted" else ())
    if not program:
        return lambda: False
    with tempfile.TemporaryDirectory() as folder:
        hogs = []
        if name == "preempted":
            os.symlink("/bin/sh", f"{folder}/hog")
            hogs.append(subprocess.Popen([*FIRST, "taskset", "-c", "0", f"{folder}/hog", "-c", "while :; do :; done"]))
        begin, host, lost = time.time(), bed.host(program, *(hog.pid for hog in hogs)), LostTime(bed.exporter, [program.pid])
        program.go()
        # Until after the last evaluation within it.
        for second in range(1, FAULT_SECONDS + 1):
            lost.mark(name)
            time.sleep(max(0, begin + second - 0.2 - time.time()))
        lost.mark(None)
        chains, unnamed, family = bed.exporter.chains(program.pid), lost.unnamed(program.pid), program.descendants()
        host.end()
        result = program.result()
        program.end()
        for hog in hogs:
            hog.kill()
            hog.wait()

    def finish():
        check_named(name, [unnamed])
        evaluate(bed, name, begin, chains, result)
        check_own(name, bed.exporter.chains(program.pid), family)
        return show(bed, name, [program.pid], [FAULTS[name].cause], host)

    return finish


def check_named(name, unnamed):
    """The law of `rules/unexplained.rs`: few waits for CPUs are no cause."""
    for share, cpu in unnamed:
        rest = share - min(cpu, expected.MOST_WITHOUT_CPU - MOST_LOST)
        text = f"{share:.1%} is lost beyond what chains have, {cpu:.1%} in waits for CPUs that none has"
        check(rest <= MOST_LOST, f"{name}: all but {MOST_LOST:.0%} of the time that is shown as lost is named: {text}")


def evaluate(bed, name, begin, chains, result):
    wanted, found = FAULTS[name], bed.exporter.severities(result["pid"])
    own = [chain for chain in chains if chain["cause"] == wanted.cause]
    known = {wanted.cause, *wanted.allowed}
    others = {cause: severity for cause, severity in found.items() if cause not in known and severity != "low"}
    check(SEVERITIES.index(found.get(wanted.cause, "low")) > 0, f"{name}: {wanted.cause} is found: {found or 'no chain'}")
    check(not others, f"{name}: nothing else is above low: {others or 'no chain'}")
    losses = {loss["comm"]: loss["seconds"] / max(own[0]["lost_seconds"], 1e-9) for loss in own[0].get("losses", [])} if own else {}
    shares = ", ".join(f"{comm} {share:.0%}" for comm, share in losses.items() if share >= 0.01) or "no chain"
    if wanted.culprit:
        culprit, tid = own and own[0]["culprit"] or {}, result["culprit_tid"]
        is_right = culprit.get("comm") == wanted.culprit and tid in (None, culprit.get("tid"))
        check(is_right, f"{name}: the culprit is {wanted.culprit} {tid or ''}: {culprit.get('comm')} {culprit.get('tid')}")
        is_right = losses.get(wanted.culprit, 0) >= expected.CULPRITS_SHARE
        check(is_right, f"{name}: {expected.CULPRITS_SHARE:.0%} of it are {wanted.culprit}'s: {shares}")
    elif "keepers" in result:
        check_keepers(name, result["keepers"], losses, own[0]["sentence"] if own else "no chain")
    check_cpu_waits(name, chains, result["waited"])
    if wanted.line:
        sentence = own[0]["sentence"] if own else ""
        check(names_line(sentence, wanted.line), f"{name}: a line of {wanted.line.__qualname__} is named: {sentence or 'no chain'}")
    first = min([chain["first_seen"] for chain in own], default=begin + expected.FOUND_AFTER)
    last = max([chain["last_seen"] for chain in own], default=begin + FAULT_SECONDS)
    between = lambda curve: until(curve, last) - until(curve, first)
    truth, measured = between([tuple(point) for point in result["curve"]]), sum(between(taken(chain)) for chain in own)
    check(
        abs(measured - truth) <= expected.TOLERANCE * truth and first <= begin + expected.FOUND_AFTER,
        f"{name}: {measured:.2f} s of {wanted.cause} between {first - begin:.1f} and {last - begin:.1f} s; {truth:.2f} s by its own clock",
    )


def check_cpu_waits(name, chains, waited):
    """Checks what chains have of waits for CPUs against the kernel's account of the program's threads."""
    own = [chain for chain in chains if chain["cause"] in expected.CPU_WAITS]
    if not own or not waited:
        return
    # A chain takes all of a window when it is found, and nothing while it is below its threshold.
    first, last = min(chain["first_seen"] for chain in own), max(chain["last_seen"] for chain in own)
    between = lambda curve: until(curve, last) - until(curve, first)
    measured, truth = sum(between(taken(chain)) for chain in own), between(waited)
    text = f"{measured:.2f} s of waits for CPUs in {last - first:.1f} s; {truth:.2f} s by the kernel's account"
    check(measured <= (1 + expected.TOLERANCE) * truth + expected.LEAST_DIFFERENCE, f"{name}: {text}")


def check_own(name, chains, family):
    """Checks that the program's own processes are no culprits from outside, after its end, too."""
    is_wrong = lambda chain: (chain["culprit"] or {}).get("pid") in family and not chain["sentence"].startswith("Its own threads compete")
    wrong = [chain["sentence"] for chain in chains if chain["cause"] in expected.CPU_WAITS and is_wrong(chain)]
    check(not wrong, f"{name}: it is not delayed by its own workers as by others: {wrong or 'no chain'}")


def check_keepers(name, keepers, losses, sentence):
    """Checks the shares of several threads that keep a lock against what each ran, and that the sentence names some."""
    both = sum(losses.get(keeper, 0) for keeper in keepers)
    check(both >= expected.KEEPERS_SHARE, f"{name}: {expected.KEEPERS_SHARE:.0%} of it are theirs: {both:.0%}")
    # One that has half of the waits for a while is the culprit then.
    check(any(keeper in sentence for keeper in keepers), f"{name}: those that keep it are named: {sentence}")
    for keeper, seconds in keepers.items():
        part, share = seconds / sum(keepers.values()), losses.get(keeper, 0) / max(both, 1e-9)
        check(abs(share - part) <= expected.PART_TOLERANCE, f"{name}: {part:.0%} of that are {keeper}'s: {share:.0%}")


def show(bed, name, pids, wanted, host):
    """Prints what explains a failure, and returns True if others were in the way."""
    print(f"{'':8}{name}: {host}", flush=True)
    is_surprise = lambda chain: chain["cause"] not in wanted or chain["severity"] != "low"
    for chain in (chain for pid in pids for chain in bed.exporter.chains(pid) if is_surprise(chain)):
        print(f"{'':8}{name}: {chain['sentence']}", flush=True)
    return not host.is_quiet()


def chains(bed, names):
    """Runs programs; those that failed beside others."""
    again, finish, before = [], lambda: False, None
    for name in [*names, None]:
        later = (healthy if name in HEALTHY else fault)(bed, name) if name else None
        count = len(failed)
        if finish() and len(failed) > count:
            del failed[count:]
            again.append(before)
        finish, before = later, name
    return again


def counts(bed, name):
    program = bed.start(name, expected.COUNTED_SECONDS)
    if not program:
        return
    pids = pids_of(program)
    counted = lambda: [bed.exporter.launches(pid) for pid in pids]
    within(10, lambda: all(counted()))
    # Until what warmed it up is counted.
    time.sleep(0.5)
    before = counted()
    program.go()
    result = program.result()
    time.sleep(0.5)
    for old, new, own in zip(before, counted(), [result, *result.get("ranks", [])]):
        rate = own["launches"] / expected.COUNTED_SECONDS
        check(new - old == own["launches"], f"{name}: {new - old:.0f} launches counted, {own['launches']} made, {rate:.0f}/s")
    program.end()


def counts_errors(bed):
    """Counts the errors that the script made, by the driver and, for allocations, also by the runtime above it."""
    program = bed.start(expected.ERRORS, 0)
    if not program:
        return
    counted = lambda: {labels["op"]: count for labels, count in bed.exporter.samples("gpucause_cuda_call_errors_total", program.pid)}
    before = counted()
    program.go()
    result = program.result()
    time.sleep(0.5)
    found = {op: count - before.get(op, 0) for op, count in counted().items()}
    launches, allocations = result["failed"]["cuLaunchKernel"], result["failed"]["cuMemAlloc_v2"]
    wanted = {"cuLaunchKernel": launches, "cuMemAlloc": allocations, "cudaMalloc": allocations}
    check(found == wanted and min(wanted.values()) > 0, f"{program.name}: errors {wanted}: counted {found}")
    check(result["raised"] == launches, f"{program.name}: PyTorch raised {result['raised']} errors of {launches} launches that failed")
    program.end()


def count_all(given, names):
    if not names:
        return
    bed = Bed(given.gpucause, given.folder, "--probe.budget", "off")
    try:
        for name in names:
            (counts_errors(bed) if name == expected.ERRORS else counts(bed, name))
    finally:
        bed.exporter.end()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("gpucause")
    parser.add_argument("folder", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("programs", nargs="*")
    return parser.parse_args()


def main():
    given, begin, repeated = arguments(), time.monotonic(), []
    step_back()
    # So that it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    default = HEALTHY if given.seconds else expected.QUICK if given.quick else [*HEALTHY, *FAULTS, expected.ERRORS]
    names = given.programs or default
    counted = () if given.seconds else expected.QUICK_COUNTED if given.quick else expected.COUNTED
    count_all(given, [name for name in counted if name in names])
    bed = Bed(given.gpucause, given.folder, seconds=given.seconds)
    try:
        again = chains(bed, [name for name in names if name != expected.ERRORS])
        for _ in range(REPEATS):
            if again:
                print(f"once more, as others used the CPUs: {', '.join(again)}", flush=True)
                repeated.extend(again)
                again = chains(bed, again)
        failed.extend(f"{name} beside others" for name in again)
    finally:
        bed.exporter.end()
    print(f"{len(failed)} failed; ran again beside other load: {', '.join(repeated) or 'none'}; {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root, to load eBPF programs into the kernel")
    sys.exit(main())
