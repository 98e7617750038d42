"""Expected reports of the exporter for each program."""

import collections

import errors
import faults

# Most of a dispatcher's time that a healthy program may show as lost.
MOST_LOST = 0.03
# Waits for CPUs that the program itself has are a cause from here on.
MOST_WITHOUT_CPU = 0.05
# For so long after its end a healthy program is observed.
AFTER = 10
FAULT_SECONDS, COUNTED_SECONDS = 16, 2
# By then a chain must have been found. What it took before that, it took at once, so that seconds are compared from then on.
FOUND_AFTER = 11
# Largest difference from the program's own clock, as a share of its seconds.
TOLERANCE = 0.1
# Chains may exceed the kernel's account by so many seconds more: a step over the boundary of two evaluations is counted with one.
LEAST_DIFFERENCE = 0.03
# Least share of a chain's loss that its culprit has, where nothing else is wrong.
CULPRITS_SHARE = 0.9
# Where several keep a lock, they have this share, as threads of the training keep it from each other, too; and each has its part of that
# by what it ran, but for so much.
KEEPERS_SHARE, PART_TOLERANCE = 0.7, 0.1

# `allowed`: chains that may be found.
Healthy = collections.namedtuple("Healthy", "seconds environment allowed", defaults=[9, {}, {}])
# Without this, as many threads spin as there may be CPUs.
SLEEPING_WAITS = {"FAKE_BLOCKING": "1"}
# A pool of processes that compile ends 60 s after its last work, and its end takes each of two CPUs for long enough to be found.
NO_COMPILERS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
HEALTHY = {
    "eager": Healthy(7),
    # For as long as it takes to find `host_code`.
    "full_queue": Healthy(12),
    "mixed": Healthy(15),
    "requests": Healthy(),
    "compiled": Healthy(environment=NO_COMPILERS),
    "graphs": Healthy(),
    "two_ranks": Healthy(environment=SLEEPING_WAITS),
    "prefetching": Healthy(),
    "checkpointing": Healthy(),
    "two_devices": Healthy(environment={"FAKE_DEVICES": "2", **SLEEPING_WAITS}),
    # Its own code limits it.
    "launch_bound": Healthy(12, allowed={"host_code": "low"}),
}

# Causes that the kernel accounts for: beside a fault they may be found, and take no more than a program's threads waited.
CPU_WAITS = ("cpu_preemption", "runqueue_wait")
# `culprit`: a thread of the program, or a process beside it. `line`: the function in which the sentence names a line. `allowed`: causes
# that may be found beside it.
Fault = collections.namedtuple("Fault", "cause culprit line allowed", defaults=[None, None, ()])
FAULTS = {
    "slow_dataset": Fault("host_code", line=faults.SlowSamples.__getitem__),
    # Two workers, and what trains: one more than there may be CPUs.
    "slow_workers": Fault("dataloader_starvation", allowed=CPU_WAITS),
    "slow_workers_of_a_server": Fault("dataloader_starvation", allowed=CPU_WAITS),
    "python_loop": Fault("lock_wait", "metrics", faults.aggregates),
    "two_python_loops": Fault("lock_wait"),
    # On two CPUs, what computes there competes with the training, too: by the kernel's account for a tenth to a fifth of the time.
    "held_by_c": Fault("lock_wait", "metrics", allowed=CPU_WAITS),
    "preempted": Fault("cpu_preemption", "hog"),
    # The kernel copies for it, which is time of its own on a CPU.
    "reads": Fault("block_io", allowed=("host_code",)),
}
# Its errors are counted.
ERRORS = "failing"
COUNTED = (ERRORS, "eager", "compiled", "graphs", "two_ranks", "checkpointing", "two_devices", "slow_workers")
# Programs that differ most.
QUICK = ("eager", "mixed", "slow_dataset", "python_loop")
QUICK_COUNTED = ("eager",)
ENVIRONMENTS = {ERRORS: {"FAKE_SCRIPT": errors.SCRIPT}, **{name: healthy.environment for name, healthy in HEALTHY.items()}}
