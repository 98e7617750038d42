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

/* The relation of the process `other_id` to the process `proc_id`. */
static __always_inline __u32 relation_of_process(__u32 other_id, __u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &other_id);

	return proc && proc->parent_id == proc_id && !proc->dispatches ? RELATION_WORKER : RELATION_OTHER;
}

/* The relation of another process's task to the process `proc_id`. */
static __noinline __u32 relation_of(struct task_struct *task, __u32 tgid, __u32 proc_id)
{
	struct thread *thread;

	if (!maybe_tracked(tgid))
		return RELATION_OTHER;
	thread = thread_of(task);
	return thread ? relation_of_process(thread->proc_id, proc_id) : RELATION_OTHER;
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

/* Returns the bits of all that the running task's system call can wake. */
VERIFIED_ONCE int wakes_of_current(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	long number = syscall_number((struct pt_regs *)bpf_task_pt_regs(task));

	/* Its registers are zeros, as in a system call. */
	if (task->flags & PF_KTHREAD)
		return 0;
	/* It may be in any system call, by a signal. */
	if (task->flags & PF_EXITING)
		return WAKES_FUTEX | RELEASES_FILE_LOCK;
	return number >= 0 && number < MAX_SYSCALLS ? syscall_wakes[syscall_index(number)] : 0;
}

static __always_inline void forget_waker(struct thread *thread)
{
	thread->waker_busy_since_ns = 0;
	thread->waker_lock_ns = 0;
	thread->waker_proc_id = 0;
	thread->waker_tid = 0;
	thread->waker_polled = 0;
	thread->waker_took_ns = 0;
}

/* Remembers the task that wakes the thread, and what its system call can wake. Who ends a wait for a lock of the kernel is taken for its
 * owner, unless that was known when the wait began. */
static __noinline void note_waker(struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct thread *of_waker;

	if (thread->contended && thread->wakes)
		return;
	thread->wakes = thread->contended ? HOLDS_LOCK : wakes_of_current();
	if (thread->wakes == MAKES_ROOM)
		thread->wakes = thread->waits_for & WAITS_LOCALLY ? WAKES_FD | MAKES_ROOM : 0;
	else if (thread->wakes & WAKES_FD && may_be_of_file(thread->off_reason) && serves_files(waker))
		thread->wakes |= WAKES_FILES;
	settle_reason(thread, waker);
	if (!thread->wakes)
		return;
	name_current(&thread->waker, thread->tgid, thread->proc_id);
	forget_waker(thread);
	if (thread->waker.tgid != thread->tgid && may_be_fed(thread->off_reason))
		note_feeder(thread);
	if (thread->waker.relation == RELATION_OTHER)
		return;
	of_waker = thread_of(waker);
	if (!of_waker)
		return;
	if (thread->waker.relation == RELATION_WORKER)
		thread->waker_proc_id = of_waker->proc_id;
	if (thread->waker.relation != RELATION_THREAD)
		return;
	thread->waker_tid = waker->pid;
	thread->waker_busy_since_ns = of_waker->busy_since_ns;
	thread->waker_lock_ns = of_waker->offcpu_ns[REASON_LOCK] - of_waker->busy_lock_ns;
	/* Each of its waits is part of one wait for it. */
	if (thread->off_reason == REASON_FUTEX)
		of_waker->busy_lock_ns = of_waker->offcpu_ns[REASON_LOCK];
	thread->waker_polled = of_waker->polled;
	thread->waker_took_ns = of_waker->took_ns;
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
		key->by_tid = 0;
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
	ADD_ENTRY(&blame, ADDED_BLAME, key, &zero_blamed);
	blamed = bpf_map_lookup_elem(&blame, key);
	if (!blamed)
		add_self(SELF_FULL_BLAME, 1);
	return blamed;
}

/* In the wait of `blame_add`: the thread that held a lock, the system call of a wait without a reason of its own, and the kind of a kernel's
 * lock; the latter two counted from 1. */
#define HELD_BY(tid) ((__u64)(tid) << 32)
#define IN_SYSCALL(number) ((__u64)(number) << 32)
#define FOR_LOCK(kind) ((__u64)(kind) << 24)

VERIFIED_ONCE int blame_add(__u64 victim, __u64 wait, struct other_task *other, __u64 ns, __u64 held)
{
	struct blame_key key = { .proc_id = victim,
				 .tid = victim >> 32,
				 .reason = wait,
				 .phase = wait >> 16,
				 .lock = wait >> 24,
				 .by_tid = wait >> 32 };
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
	/* Among several of this name, one that held or owes something counts; its relation may change. */
	if (held || !blamed->held_ns || blamed->tgid == other->tgid) {
		blamed->tgid = other->tgid;
		blamed->relation = other->relation;
	}
	return 0;
}

/* Adds how long the thread that ended such a wait, for its work, waited for locks itself. */
VERIFIED_ONCE int blame_behind(__u64 victim, __u64 wait, struct other_task *other, __u64 ns)
{
	struct blame_key key = { .proc_id = victim, .tid = victim >> 32, .reason = wait, .phase = wait >> 16 };
	struct blamed *blamed;

	if (!other)
		return 0;
	__builtin_memcpy(key.comm, other->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (blamed)
		__sync_fetch_and_add(&blamed->behind_ns, ns);
	return 0;
}

/* Credits a worker with ending its parent's wait. */
static __always_inline void credit_worker(__u32 proc_id, __u64 ns)
{
	struct proc *worker = bpf_map_lookup_elem(&procs, &proc_id);

	if (worker)
		__sync_fetch_and_add(&worker->measures.ended_waits, ns);
}
