/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Whom a thread waited for, by name: another process by that of its leader, a thread of the same process by its own.
 *
 * A wakeup happens in the context of some task, but interrupts wake too, and then that task is a bystander. Kernels do not
 * all tell a program which it is, so a waker is named only when it was in a system call that wakes such waiters; all else
 * is the kernel's doing: a timer, a device, a network card. */
#pragma once

static __always_inline long syscall_number(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (long)regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Makes the party none of the tasks, under this name. */
static __always_inline void set_nobody(struct party *party, __u64 text)
{
	((__u64 *)party->comm)[0] = text;
	((__u64 *)party->comm)[1] = 0;
	party->tgid = 0;
	party->relation = RELATION_NONE;
}

#define NAME_IDLE 0x656c6469ULL       /* "idle" */
#define NAME_KERNEL 0x6c656e72656bULL /* "kernel" */

/* What a task of another process is to the process `proc_id`. */
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

static __noinline void name_task(struct party *party, struct task_struct *task, struct thread *thread)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!tgid) {
		set_nobody(party, NAME_IDLE);
		return;
	}
	party->tgid = tgid;
	if (tgid == thread->tgid) {
		party->relation = RELATION_THREAD;
		bpf_probe_read_kernel(party->comm, COMM_LEN, &task->comm);
		return;
	}
	party->relation = relation_of(task, tgid, thread->proc_id);
	bpf_probe_read_kernel(party->comm, COMM_LEN, &BPF_CORE_READ(task, group_leader)->comm);
}

/* Remembers who wakes the thread, and what the waker's system call can wake. */
static __noinline void note_waker(struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	long number = syscall_number((struct pt_regs *)bpf_task_pt_regs(waker));
	struct thread *of_waker;

	thread->wakes = number >= 0 && number < MAX_SYSCALLS ? syscall_wakes[number & (MAX_SYSCALLS - 1)] : 0;
	if (!thread->wakes)
		return;
	name_task(&thread->waker, waker, thread);
	of_waker = thread->waker.relation == RELATION_THREAD ? thread_of(waker) : 0;
	thread->waker_busy_since_ns = of_waker ? of_waker->busy_since_ns : 0;
}

/* Whether a thread that idles waits so: for work, for a message, for time to pass. */
static __always_inline bool is_idle(__u32 reason)
{
	return reason == REASON_FUTEX || reason == REASON_POLL || reason == REASON_NET || reason == REASON_SLEEP ||
	       reason == REASON_OTHER;
}

/* Makes `waker` the name to blame for a wait of this reason. */
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

static __noinline void blame_add(struct thread *thread, __u32 reason, struct party *party, __u64 ns, __u64 held)
{
	struct blame_key key = { .proc_id = thread->proc_id, .reason = reason, .phase = thread->phase };
	struct blamed *blamed;

	__builtin_memcpy(key.comm, party->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (!blamed) {
		bpf_map_update_elem(&blame, &key, &zero_blamed, BPF_NOEXIST);
		blamed = bpf_map_lookup_elem(&blame, &key);
		if (!blamed) {
			count_self(SELF_FULL_BLAME);
			return;
		}
	}
	__sync_fetch_and_add(&blamed->total_ns, ns);
	if (held)
		__sync_fetch_and_add(&blamed->held_ns, held);
	blamed->tgid = party->tgid;
	blamed->relation = party->relation;
}

/* A blocked wait from `since` to `woken` is over. */
static __noinline void blame_waker(struct thread *thread, __u32 reason, __u64 since, __u64 woken)
{
	__u64 busy = thread->waker_busy_since_ns, held = 0;

	settle_waker(thread, reason);
	if (reason == REASON_FUTEX && thread->waits_for_lock)
		held = woken - since;
	else if (reason == REASON_FUTEX && thread->waker.relation == RELATION_THREAD && busy && busy < woken)
		held = woken - (busy > since ? busy : since);
	blame_add(thread, reason, &thread->waker, woken - since, held);
}
