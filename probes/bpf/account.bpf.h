/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Where the wall time of a dispatcher thread goes, by phase and state, from its first traced call on; and that of the main
 * thread of a worker, from when it is first seen.
 *
 * A stretch of running time is open from the moment that was subtracted from its cell until the moment that is added to
 * it, so the sum of all cells plus the present moment is the wall time, in whatever order the additions happen: the call
 * programs add between phases, sched_switch adds between states, and one can come between any two instructions of the
 * other. Each has sums of its own, so that neither needs an atomic addition to keep the other's: in a launch that is the most
 * of what its account costs. What such a moment may get wrong is to which phase time belongs, never the sum: a few nanoseconds, or a
 * time slice where a thread is preempted while it changes its phase. */
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

/* Opens the account of a thread that is on a CPU. */
static __always_inline void open_account(struct thread *thread)
{
	__u64 now = bpf_ktime_get_ns();

	if (thread->account_since_ns)
		return;
	__builtin_memset(&thread->account, 0, sizeof(thread->account));
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

/* The running thread goes from one phase to another at `now`, when its off-CPU time was `offcpu`. Off-CPU time since then was
 * charged to the old phase; the change is moved behind it. */
static __always_inline void change_phase(struct thread *thread, __u32 to, __u64 now, __u64 offcpu)
{
	__u32 from = thread->phase;
	__u64 at = now + (*(volatile __u64 *)&thread->offcpu_total_ns - offcpu);

	move_running(thread, from, at);
	move_running(thread, to, -at);
	barrier();
	*(volatile __u32 *)&thread->phase = to;
}

/* Adds the account of a thread that ends to that of its process. Readers look again when the counts of begun and done
 * flushes differ or have moved. */
static __noinline void close_account(struct thread *thread)
{
	__u32 proc_id = thread->proc_id;
	struct account *account;
	struct proc *proc;

	if (!thread->account_since_ns)
		return;
	if (thread->role != ROLE_DISPATCHER) {
		thread->account_since_ns = 0;
		return;
	}
	account_add(thread, thread->phase, STATE_RUNNING, bpf_ktime_get_ns());
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (!proc) {
		/* User space has deleted the process already. */
		thread->account_since_ns = 0;
		return;
	}
	account = bpf_map_lookup_elem(&accounts, &proc_id);
	if (!account) {
		bpf_map_update_elem(&accounts, &proc_id, &zero_account, BPF_NOEXIST);
		account = bpf_map_lookup_elem(&accounts, &proc_id);
	}
	if (!account) {
		count_self(SELF_FULL_ACCOUNTS);
		thread->account_since_ns = 0;
		return;
	}
	__sync_fetch_and_add(&proc->flushes_begun, 1);
	for (int phase = 0; phase < PHASES; phase++)
		account_add(thread, phase, STATE_RUNNING, thread->moved_ns[phase]);
	for (int cell = 0; cell < ACCOUNT_CELLS; cell++) {
		__u64 ns = thread->account.cells_ns[cell];

		if (ns)
			__sync_fetch_and_add(&account->cells_ns[cell], ns);
	}
	thread->account_since_ns = 0;
	__sync_fetch_and_add(&proc->flushes_done, 1);
}
