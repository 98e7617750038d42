/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* All maps and globals. Bounds are defaults that the loader may change: enough for a thousand processes with twenty ops
 * each, or ten thousand mostly idle ones; not larger, as a scrape walks empty buckets too whenever an entry was added, or
 * many are known. Maps are shared between CPUs and cumulative: user space reads them and deletes the entries of ended
 * processes. */
#pragma once

/* Fixed when the programs are loaded. */
const volatile struct settings settings;
const volatile __u8 syscall_reason[MAX_SYSCALLS];
const volatile __u8 syscall_wakes[MAX_SYSCALLS];

/* Tracked processes by hash of their tgid. Zero saves an untracked task every map lookup; a collision costs one. */
__u32 tgid_filter[FILTER_SLOTS];
/* Last process id that was assigned. */
__u32 last_proc_id;
/* Number of processes that have become dispatchers: when it changes, there may be children to adopt. Read by user space. */
__u32 new_dispatchers SEC(".data.adopt");
/* LINK_ states of links that no longer count, else 0. Written by user space. */
__u8 closed_links[MAX_LINKS] SEC(".data.links");
/* Written by user space in one piece. */
volatile struct watch watch SEC(".data.watch");
/* Written by user space: before loading, and `is_launch` again when the configuration changes. */
volatile struct op_info op_info[MAX_OPS] SEC(".data.ops");

/* How often the programs have tried to add an entry to each map: while that is the same, user space need not walk the map. */
__u32 added[GROWING_MAPS] SEC(".data.added");

/* One row a map. Storage maps have no bound of their own. */
#define MAP(name, kind, flags, entries, key_type, value_type)                                                          \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_##kind);                                                                     \
		__uint(map_flags, flags);                                                                              \
		__uint(max_entries, entries);                                                                          \
		__type(key, key_type);                                                                                 \
		__type(value, value_type);                                                                             \
	} name SEC(".maps")

/* A tracked thread, about 4 KiB. Freed by the kernel with its task. */
MAP(threads, TASK_STORAGE, BPF_F_NO_PREALLOC, 0, int, struct thread);

/* Records of threads to whose task the kernel gives no storage, by address of the task; deleted when it exits. Storage is
 * refused while another task was preempted inside the helper on this CPU, and when its allocator would have to wait; a
 * preallocated map never is, except by its bound. Where even lookups are refused, it has all threads, and a bound for them:
 * see src/program/task_storage.rs. */
MAP(hashed_threads, HASH, 0, 2048, __u64, struct thread);
/* 1 from the first record in it on. */
__u32 has_hashed_threads;

/* tgid -> process id, for live processes only: written at the first call or fork, deleted at exit or exec. */
MAP(tracked, HASH, 0, 16384, __u32, __u32);

/* tgid -> id of the process that it works for, of processes whose parents have ended. Written by user space while it runs
 * adopt_workers. */
MAP(orphans, HASH, BPF_F_NO_PREALLOC, 1024, __u32, __u32);

/* process id -> process. Deleted by user space some time after the process has ended. */
MAP(procs, HASH, 0, 16384, __u32, struct proc);

/* Histogram chunks, 512 bytes each, allocated on first use. */
MAP(hists, HASH, BPF_F_NO_PREALLOC, 131072, struct hist_key, struct hist);

MAP(stalls, HASH, BPF_F_NO_PREALLOC, 32768, struct call_key, struct stall);

MAP(errors, HASH, BPF_F_NO_PREALLOC, 8192, struct error_key, __u64);

MAP(kernels, HASH, BPF_F_NO_PREALLOC, 32768, struct kernel_key, struct kernel);

/* Handle -> name, for handles that processes asked the driver or the runtime for; 256 bytes each. */
MAP(kernel_names, HASH, BPF_F_NO_PREALLOC, 8192, struct kernel_key, struct kernel_name);

/* Launch durations of selected kernels, 4.3 KiB each. User space zeroes reused entries. */
MAP(kernel_hists, ARRAY, 0, KERNEL_HISTS, __u32, struct kernel_hist);

/* Allocated device memory: address, array or handle -> bytes. Deleted when freed, and by user space when the process has
 * ended. */
MAP(allocations, HASH, BPF_F_NO_PREALLOC, 262144, struct allocation_key, __u64);

/* Byte counts. */
MAP(bytes, HASH, BPF_F_NO_PREALLOC, 32768, struct bytes_key, __u64);

/* process id -> launch mode, for processes over budget. Written by user space. */
MAP(launch_modes, HASH, 0, 4096, __u32, struct launch_mode);

/* Ids of processes whose hits took far more than their part of a window; user space sleeps on it. The size is one page of any kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} overspent SEC(".maps");

/* Time accounts of ended dispatcher threads, by process. Those of live threads are in their records. */
MAP(accounts, HASH, BPF_F_NO_PREALLOC, 16384, __u32, struct account);

/* Waits of dispatchers and workers, by the task waited for. */
MAP(blame, HASH, BPF_F_NO_PREALLOC, 65536, struct blame_key, struct blamed);

/* Completed block I/O. */
MAP(block_io, HASH, BPF_F_NO_PREALLOC, 8192, struct block_key, struct block_total);

struct block_request {
	__u64 since_ns;
	struct block_key key;
	/* The submitting thread, and the completed bytes. */
	__u32 tid;
	__u32 done_bytes;
};

/* Requests of tracked processes in flight, by address. A request that never completes because it was merged stays until
 * its address is reused: no more than the host has requests. */
MAP(block_requests, HASH, BPF_F_NO_PREALLOC, 16384, __u64, struct block_request);

/* Process id of the last tracked process that connected or received from a socket. Freed by the kernel with the socket. */
MAP(sockets, SK_STORAGE, BPF_F_NO_PREALLOC, 0, int, __u32);

/* process id -> tenures of futexes that its threads poll. Deleted by user space with the process. */
MAP(tenures_of, HASH, BPF_F_NO_PREALLOC, 4096, __u32, struct tenures);

/* The programs' self counters. */
MAP(self_counters, PERCPU_ARRAY, 0, SELF_COUNTERS, __u32, __u64);

/* Adds an entry, unless there is one, and counts that: the only way to add to a map that is counted. A reader that sees the new
 * count also finds the entry, as an atomic addition whose result is used is ordered. */
#define ADD_ENTRY(map, counted, key, value)                                                                            \
	({                                                                                                             \
		long failed = bpf_map_update_elem(map, key, value, BPF_NOEXIST);                                       \
		__u32 before = __sync_fetch_and_add(&added[counted], 1);                                               \
                                                                                                                       \
		barrier_var(before);                                                                                   \
		failed;                                                                                                \
	})

/* Initial values, too large for the BPF stack. */
static const struct hist zero_hist;
static const struct proc zero_proc;
static const struct tenures zero_tenures;
static const struct thread zero_thread;
static const struct stall zero_stall;
static const struct account zero_account;
static const struct blamed zero_blamed;
static const struct block_total zero_block_total;
static const struct kernel_name zero_kernel_name;
static const __u64 zero_u64;

/* Atomic although per CPU: a uprobe program can be preempted between load and store. */
static __always_inline void add_self(__u32 counter, __u64 amount)
{
	__u64 *value = bpf_map_lookup_elem(&self_counters, &counter);

	if (value)
		__sync_fetch_and_add(value, amount);
}

VERIFIED_ONCE int count_self_by(__u32 counter, __u64 amount)
{
	add_self(counter, amount);
	return 0;
}

static __always_inline void count_self(__u32 counter)
{
	count_self_by(counter, 1);
}

/* One in so many runs of a program per CPU is timed, for all; a power of two. */
#define TIMED_RUNS 64

/* Returns the time for one call in so many, and otherwise 0. Inline, as each call comes here: where the kernel returns by a thunk, a
 * function call costs as much as a lookup. */
static __always_inline __u64 count_call(void)
{
	__u32 counter = SELF_HIT_CALL;
	__u64 *calls = bpf_map_lookup_elem(&self_counters, &counter);

	if (calls && ((__sync_fetch_and_add(calls, 1) & (TIMED_RUNS - 1)) == 0 || watch.calibrates == CALIBRATE_LOOKUP))
		return bpf_ktime_get_ns();
	return 0;
}

struct run {
	__u64 since_ns;
	__u32 counter;
};

static __always_inline struct run begin_run(__u32 counter, bool uninterrupted)
{
	struct run run = { .counter = counter };
	__u64 *runs = bpf_map_lookup_elem(&self_counters, &counter);
	__u64 before;

	if (!runs)
		return run;
	before = uninterrupted ? (*runs)++ : __sync_fetch_and_add(runs, 1);
	if ((before & (TIMED_RUNS - 1)) == TIMED_RUNS - 1)
		run.since_ns = bpf_ktime_get_ns();
	return run;
}

static __always_inline void end_run(struct run *run)
{
	if (run->since_ns)
		count_self_by(run->counter + (SELF_COST_SWITCH - SELF_HIT_SWITCH),
			      (bpf_ktime_get_ns() - run->since_ns) * TIMED_RUNS);
}

/* Counts this run of a host program, and times a sample of runs, wherever it returns. */
#define COUNT_RUN_AS(probe, uninterrupted)                                                                             \
	struct run run __attribute__((cleanup(end_run), unused)) = begin_run(SELF_HIT_##probe, uninterrupted)
#define COUNT_RUN(probe) COUNT_RUN_AS(probe, false)
/* Programs of the scheduler count so, as an atomic count would be a fifth of the cost of a switch between tasks that are not tracked. They
 * run with interrupts off, but for a wakeup of the running task itself: an interrupt that moves another task meanwhile costs a count. */
#define COUNT_UNINTERRUPTED_RUN(probe) COUNT_RUN_AS(probe, true)
