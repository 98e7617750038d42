/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* All maps and globals. Bounds are defaults that the loader may change: enough for a thousand processes with twenty ops
 * each, or ten thousand mostly idle ones; not larger, as a scrape walks empty buckets too. Maps are shared between CPUs
 * and cumulative: user space reads them and deletes the entries of ended processes. */
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

/* A tracked thread, about 1.2 KiB. Freed by the kernel with its task. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* tgid -> process id, for live processes only: written at the first call or fork, deleted at exit or exec. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} tracked SEC(".maps");

/* process id -> process. Deleted by user space some time after the process has ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct proc);
} procs SEC(".maps");

/* Histogram chunks, 512 bytes each, allocated on first use. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct hist_key);
	__type(value, struct hist);
} hists SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct call_key);
	__type(value, struct stall);
} stalls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct error_key);
	__type(value, __u64);
} errors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct kernel_key);
	__type(value, struct kernel);
} kernels SEC(".maps");

/* Handle -> name, for handles that processes asked the driver or the runtime for; 256 bytes each. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct kernel_key);
	__type(value, struct kernel_name);
} kernel_names SEC(".maps");

/* Launch durations of selected kernels, 4.3 KiB each. User space zeroes reused entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERNEL_HISTS);
	__type(key, __u32);
	__type(value, struct kernel_hist);
} kernel_hists SEC(".maps");

/* Allocated device memory: address, array or handle -> bytes. Deleted when freed, and by user space when the process has
 * ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct allocation_key);
	__type(value, __u64);
} allocations SEC(".maps");

/* Byte counts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct bytes_key);
	__type(value, __u64);
} bytes SEC(".maps");

/* process id -> launch mode, for processes over budget. Written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct launch_mode);
} launch_modes SEC(".maps");

/* Time accounts of ended dispatcher threads, by process. Those of live threads are in their records. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

/* Waits of dispatchers and workers, by the task waited for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct blame_key);
	__type(value, struct blamed);
} blame SEC(".maps");

/* Completed block I/O. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct block_key);
	__type(value, struct block_total);
} block_io SEC(".maps");

struct block_request {
	__u64 since_ns;
	struct block_key key;
	/* The submitting thread, and the completed bytes. */
	__u32 tid;
	__u32 done_bytes;
};

/* Requests of tracked processes in flight, by address. A request that never completes because it was merged stays until
 * its address is reused: no more than the host has requests. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct block_request);
} block_requests SEC(".maps");

/* Process id of the last tracked process that connected or received from a socket. Freed by the kernel with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} sockets SEC(".maps");

/* The programs' self counters. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SELF_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} self_counters SEC(".maps");

/* Initial values, too large for the BPF stack. */
static const struct hist zero_hist;
static const struct proc zero_proc;
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

static __noinline void count_self_by(__u32 counter, __u64 amount)
{
	add_self(counter, amount);
}

static __always_inline void count_self(__u32 counter)
{
	count_self_by(counter, 1);
}

/* Inline, as each call comes here: where the kernel returns by a thunk, a function call costs as much as a lookup. */
static __always_inline void count_call(void)
{
	add_self(SELF_HIT_CALL, 1);
}

/* One in so many runs of a program per CPU is timed, for all; a power of two. */
#define TIMED_RUNS 64

struct run {
	__u64 since_ns;
	__u32 counter;
};

static __always_inline struct run begin_run(__u32 counter)
{
	struct run run = { .counter = counter };
	__u64 *runs = bpf_map_lookup_elem(&self_counters, &counter);

	if (runs && (__sync_fetch_and_add(runs, 1) & (TIMED_RUNS - 1)) == TIMED_RUNS - 1)
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
#define COUNT_RUN(probe) struct run run __attribute__((cleanup(end_run), unused)) = begin_run(SELF_HIT_##probe)
