/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The task that a thread waited for, by name: another process by that of its leader, a thread of the same process by its
 * own.
 *
 * A wakeup runs in the context of some task, which is unrelated if an interrupt caused it. Not all kernels report which it
 * was, so a waker is named only when it is in a system call that wakes such waiters; other wakeups are the kernel's: a
 * timer, a device, a network card.
 *
 * Waits for a CPU are charged to those that have it in cpu_wait.bpf.h. */
#pragma once

static __always_inline long syscall_number(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (long)regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Sets a name without a task. */
static __always_inline void set_nobody(struct other_task *other, __u64 text)
{
	((__u64 *)other->comm)[0] = text;
	((__u64 *)other->comm)[1] = 0;
	other->tgid = 0;
	other->relation = RELATION_NONE;
}

#define NAME_IDLE 0x656c6469ULL       /* "idle" */
#define NAME_KERNEL 0x6c656e72656bULL /* "kernel" */
#define NAME_OTHER 0x726568746fULL    /* "other" */

/* The relation of another process's task to the process `proc_id`. */
static __noinline __u32 relation_of(struct task_struct *task, __u32 tgid, __u32 proc_id)
{
	struct thread *thread;
	struct proc *proc;
	__u32 other_id;

	if (!maybe_tracked(tgid))
		return RELATION_OTHER;
	thread = thread_of(task);
	if (!thread)
		return RELATION_OTHER;
	other_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &other_id);
	return proc && proc->parent_id == proc_id ? RELATION_WORKER : RELATION_OTHER;
}

/* Names a task as seen by threads of process `proc_id`, whose thread-group id is `own_tgid`. */
static __always_inline void name_task(struct other_task *other, struct task_struct *task, __u32 own_tgid, __u32 proc_id)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!tgid) {
		set_nobody(other, NAME_IDLE);
		return;
	}
	other->tgid = tgid;
	if (tgid == own_tgid) {
		other->relation = RELATION_THREAD;
		bpf_probe_read_kernel(other->comm, COMM_LEN, &task->comm);
		return;
	}
	other->relation = relation_of(task, tgid, proc_id);
	bpf_probe_read_kernel(other->comm, COMM_LEN, &BPF_CORE_READ(task, group_leader)->comm);
}

/* Names the running task: the one that leaves the CPU at a switch, or the waker. */
VERIFIED_ONCE int name_current(struct other_task *other, __u32 own_tgid, __u32 proc_id)
{
	if (other)
		name_task(other, bpf_get_current_task_btf(), own_tgid, proc_id);
	return 0;
}

/* The mask is kept where comparisons make it redundant: on arm64 the verifier of Linux 6.1 does not know them any more. */
static __always_inline __u32 syscall_index(long number)
{
	__u32 index = number;

	barrier_var(index);
	return index & (MAX_SYSCALLS - 1);
}

/* Remembers the task that wakes the thread, and what its system call can wake. */
static __noinline void note_waker(struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	long number = syscall_number((struct pt_regs *)bpf_task_pt_regs(waker));
	struct thread *of_waker;

	thread->wakes = number >= 0 && number < MAX_SYSCALLS ? syscall_wakes[syscall_index(number)] : 0;
	if (!thread->wakes)
		return;
	name_current(&thread->waker, thread->tgid, thread->proc_id);
	thread->waker_busy_since_ns = 0;
	thread->waker_proc_id = 0;
	if (thread->waker.relation == RELATION_OTHER)
		return;
	of_waker = thread_of(waker);
	if (of_waker && thread->waker.relation == RELATION_WORKER)
		thread->waker_proc_id = of_waker->proc_id;
	else if (of_waker && thread->waker.relation == RELATION_THREAD)
		thread->waker_busy_since_ns = of_waker->busy_since_ns;
}

/* A shorter wait on a futex is for a lock that is passed on, and the thread busy all the same: one that keeps Python's interpreter
 * lock gives it away for that long whenever it is asked to. */
#define BRIEF_NS 100000ULL

/* Whether an idle thread waits like this: for work, a message or a time. */
static __always_inline bool is_idle(__u32 reason, __u64 ns)
{
	return (reason == REASON_FUTEX && ns > BRIEF_NS) || reason == REASON_POLL || reason == REASON_NET ||
	       reason == REASON_SLEEP || reason == REASON_OTHER;
}

/* Sets the `waker` to blame for a wait of this reason. */
static __always_inline void settle_waker(struct thread *thread, __u32 reason)
{
	__u32 needed;

	switch (reason) {
	case REASON_FUTEX:
		needed = WAKES_FUTEX;
		break;
	case REASON_POLL:
	case REASON_NET:
		needed = WAKES_FD;
		break;
	case REASON_OTHER:
		needed = WAKES_FUTEX | WAKES_FD;
		break;
	default:
		needed = 0;
	}
	if (!(thread->wakes & needed))
		set_nobody(&thread->waker, NAME_KERNEL);
}

/* A process may use a bounded part of the map, as programs could give each thread its own name. Half of it is for
 * entries by thread. */
static __always_inline bool may_add_name(struct proc *proc, __u32 tid)
{
	__u32 limit = tid ? MAX_NAMES / 2 : MAX_NAMES;

	return proc->names < limit && __sync_fetch_and_add(&proc->names, 1) < limit;
}

/* The entry of a new name, or of `other` when the process has too many; `other` then has that name. */
static __noinline struct blamed *new_blamed(struct blame_key *key, struct other_task *other)
{
	__u32 proc_id = key->proc_id;
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);
	struct blamed *blamed;

	/* User space has deleted the process and would never delete the entry. */
	if (!proc)
		return 0;
	if (!may_add_name(proc, key->tid)) {
		key->tid = 0;
		blamed = bpf_map_lookup_elem(&blame, key);
		if (blamed)
			return blamed;
		if (!may_add_name(proc, 0)) {
			set_nobody(other, NAME_OTHER);
			__builtin_memcpy(key->comm, other->comm, COMM_LEN);
			blamed = bpf_map_lookup_elem(&blame, key);
			if (blamed)
				return blamed;
		}
	}
	bpf_map_update_elem(&blame, key, &zero_blamed, BPF_NOEXIST);
	blamed = bpf_map_lookup_elem(&blame, key);
	if (!blamed)
		count_self(SELF_FULL_BLAME);
	return blamed;
}

VERIFIED_ONCE int blame_add(__u64 victim, __u32 wait, struct other_task *other, __u64 ns, __u64 held)
{
	struct blame_key key = { .proc_id = victim, .tid = victim >> 32, .reason = wait, .phase = wait >> 16 };
	struct blamed *blamed;

	if (!other)
		return 0;
	__builtin_memcpy(key.comm, other->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (!blamed)
		blamed = new_blamed(&key, other);
	if (!blamed)
		return 0;
	__sync_fetch_and_add(&blamed->total_ns, ns);
	if (held)
		__sync_fetch_and_add(&blamed->held_ns, held);
	blamed->tgid = other->tgid;
	blamed->relation = other->relation;
	return 0;
}

/* Credits a worker with ending its parent's wait. */
static __always_inline void credit_worker(__u32 proc_id, __u64 ns)
{
	struct proc *worker = bpf_map_lookup_elem(&procs, &proc_id);

	if (worker)
		__sync_fetch_and_add(&worker->measures.ended_waits, ns);
}

/* Some locks are waited for in pieces that time out, as Python's for its interpreter every 5 ms: only the last is ended by
 * the holder. Those before it, on the same futex or another of the same lock, are charged with it. The longest such piece, the
 * longest time between two, how much of them is kept, and the size of a lock. */
#define RETRY_NS 20000000ULL
#define BETWEEN_NS 10000000ULL
#define RETRIES_NS 100000000ULL
#define LOCK_BYTES 64

/* Charges the timer with the pieces that nobody ended, but for the last `kept` ns. The waker's name is not needed any more. */
static __always_inline void charge_retries(struct thread *thread, __u32 tid, __u64 kept)
{
	__u64 ns = thread->retried_ns;

	if (ns <= kept)
		return;
	ns -= kept;
	thread->retried_since_ns += ns;
	thread->retried_ns = kept;
	set_nobody(&thread->waker, NAME_KERNEL);
	blame_add(VICTIM(thread->proc_id, tid), WAIT(REASON_FUTEX, thread->retried_phase), &thread->waker, ns, 0);
}

/* Whether a wait from `since` is for the lock of the pieces, and soon after them. */
static __always_inline bool is_same_lock(const struct thread *thread, __u32 reason, __u64 since)
{
	return reason == REASON_FUTEX && thread->phase == thread->retried_phase &&
	       thread->futex - thread->retried_futex + LOCK_BYTES <= 2 * LOCK_BYTES &&
	       since - thread->retried_until_ns <= BETWEEN_NS;
}

/* Keeps a piece. */
static __always_inline void keep_retry(struct thread *thread, __u64 since, __u64 woken)
{
	if (!thread->retried_ns) {
		thread->retried_since_ns = since;
		thread->retried_futex = thread->futex;
		thread->retried_phase = thread->phase;
	}
	thread->retried_until_ns = woken;
	thread->retried_ns += woken - since;
}

/* For how long of a wait the waker had held a lock, and with the pieces before it where it goes on after them: of a lock, for all of
 * the wait, and else for as long as it had been busy. */
static __always_inline __u64 held_of(const struct thread *thread, __u32 reason, bool goes_on, __u64 since, __u64 woken)
{
	__u64 busy = thread->waker_busy_since_ns, held = 0, slept;

	if (reason != REASON_FUTEX)
		return 0;
	if (thread->waits_for_lock)
		held = woken - since;
	if (thread->waker.relation != RELATION_THREAD || !busy || busy >= woken)
		return held;
	if (busy > since)
		return held ? held : woken - busy;
	/* It may have slept through pieces or between them: all of that is taken off. */
	slept = busy > thread->retried_since_ns ? busy - thread->retried_since_ns : 0;
	return woken - since + (goes_on && thread->retried_ns > slept ? thread->retried_ns - slept : 0);
}

/* A blocked wait from `since` to `woken` is over. */
VERIFIED_ONCE int blame_waker(struct thread *thread, __u32 tid, __u32 reason, __u64 since, __u64 woken)
{
	bool is_same, goes_on;
	__u64 held;

	if (!thread)
		return 0;
	settle_waker(thread, reason);
	is_same = is_same_lock(thread, reason, since);
	goes_on = is_same && !thread->waits_for_lock && thread->waker.relation == RELATION_THREAD;
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, tid),
			      WAIT(reason, thread->phase) | WAIT_FLAGS(thread->waits_for_lock ? EVENT_LOCK : 0),
			      &thread->waker, since, woken - since);
	if (reason == REASON_FUTEX && thread->waker.relation == RELATION_NONE && !thread->waits_for_lock &&
	    woken - since <= RETRY_NS) {
		if (!is_same)
			charge_retries(thread, tid, 0);
		keep_retry(thread, since, woken);
		charge_retries(thread, tid, RETRIES_NS);
		return 0;
	}
	if (thread->waker.relation == RELATION_WORKER)
		credit_worker(thread->waker_proc_id, woken - since);
	held = held_of(thread, reason, goes_on, since, woken);
	blame_add(VICTIM(thread->proc_id, tid), WAIT(reason, thread->phase), &thread->waker,
		  woken - since + (goes_on ? thread->retried_ns : 0), held);
	if (goes_on)
		thread->retried_ns = 0;
	/* A mutex beside the lock is part of it, and whoever has that need not have the lock. */
	if (is_same && thread->waits_for_lock)
		thread->retried_until_ns = woken;
	else
		charge_retries(thread, tid, 0);
	return 0;
}
