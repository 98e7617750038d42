/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Wall time of a dispatcher thread by phase and state, from its first traced call on; also of a worker's main thread,
 * from when it is first seen.
 *
 * A stretch of running time is open: its start was subtracted from its cell, its end is added later. So all cells plus
 * the current time add up to wall time, in any order of additions: call programs add between phases, sched_switch adds
 * between states, and one may interrupt the other anywhere. Each has its own sums, which saves atomic additions, most of
 * the cost of accounting for a launch. A race may assign time to the wrong phase, never change the sum: a few
 * nanoseconds, or a time slice when a thread is preempted while it changes its phase. */
#pragma once

#define STATE_RUNNING 0
#define STATE_OFF(reason) ((reason) + 1)

static __always_inline void account_add(struct thread *thread, __u32 phase, __u32 state, __u64 ns)
{
	__u32 cell = phase * STATES + state;

	barrier_var(cell);
	if (cell < ACCOUNT_CELLS)
		__sync_fetch_and_add(&thread->account.cells_ns[cell], ns);
}

/* Opens the account of a thread that is on a CPU. Others add nothing to it until `account_since_ns` is set, at the end. */
static __always_inline void open_account(struct thread *thread)
{
	__u64 now = bpf_ktime_get_ns();

	if (thread->account_since_ns)
		return;
	/* In parts: of as much at once, the compiler makes a call. */
	for (int phase = 0; phase < PHASES; phase++) {
		__builtin_memset(&thread->account.cells_ns[phase * STATES], 0, STATES * sizeof(__u64));
		barrier();
	}
	__builtin_memset(&thread->moved_ns, 0, sizeof(thread->moved_ns));
	thread->phase = PHASE_HOST;
	account_add(thread, PHASE_HOST, STATE_RUNNING, -now);
	barrier();
	thread->account_since_ns = now;
}

static __always_inline void move_running(struct thread *thread, __u32 phase, __u64 ns)
{
	barrier_var(phase);
	if (phase < PHASES)
		thread->moved_ns[phase] += ns;
}

/* Changes the phase of the running thread at `now`, when its off-CPU time was `offcpu`. Off-CPU time since then was
 * charged to the old phase; it is moved to the new one. */
static __always_inline void change_phase(struct thread *thread, __u32 to, __u64 now, __u64 offcpu)
{
	__u32 from = thread->phase;
	__u64 at = now + (*(volatile __u64 *)&thread->offcpu_total_ns - offcpu);

	move_running(thread, from, at);
	move_running(thread, to, -at);
	barrier();
	*(volatile __u32 *)&thread->phase = to;
}

struct flush {
	struct thread *from;
	struct account *to;
};

static long flush_cell(__u64 cell, void *context)
{
	const struct flush *flush = context;
	__u64 ns;

	barrier_var(cell);
	if (cell >= ACCOUNT_CELLS)
		return 1;
	ns = flush->from->account.cells_ns[cell];
	if (ns)
		__sync_fetch_and_add(&flush->to->cells_ns[cell], ns);
	return 0;
}

/* Adds the account of an exiting thread to that of its process. Readers retry when the counts of begun and done flushes
 * differ or have changed. */
VERIFIED_ONCE int close_account(struct thread *thread)
{
	struct account *account;
	struct flush flush;
	struct proc *proc;
	__u32 proc_id;

	if (!thread || !thread->account_since_ns)
		return 0;
	if (thread->role != ROLE_DISPATCHER) {
		thread->account_since_ns = 0;
		return 0;
	}
	account_add(thread, thread->phase, STATE_RUNNING, bpf_ktime_get_ns());
	proc_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (!proc) {
		/* Already deleted by user space. */
		thread->account_since_ns = 0;
		return 0;
	}
	account = bpf_map_lookup_elem(&accounts, &proc_id);
	if (!account) {
		ADD_ENTRY(&accounts, ADDED_ACCOUNTS, &proc_id, &zero_account);
		account = bpf_map_lookup_elem(&accounts, &proc_id);
	}
	if (!account) {
		count_self(SELF_FULL_ACCOUNTS);
		thread->account_since_ns = 0;
		return 0;
	}
	__sync_fetch_and_add(&proc->flushes_begun, 1);
	for (int phase = 0; phase < PHASES; phase++)
		account_add(thread, phase, STATE_RUNNING, thread->moved_ns[phase]);
	flush.from = thread;
	flush.to = account;
	bpf_loop(ACCOUNT_CELLS, flush_cell, &flush, 0);
	thread->account_since_ns = 0;
	__sync_fetch_and_add(&proc->flushes_done, 1);
	return 0;
}
