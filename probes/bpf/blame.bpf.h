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
#define NAME_OTHER 0x726568746fULL    /* "other" */

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

/* Names a task as threads of process `proc_id`, whose kernel-side number is `own_tgid`, see it. */
static __noinline void name_task(struct party *party, struct task_struct *task, __u32 own_tgid, __u32 proc_id)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!tgid) {
		set_nobody(party, NAME_IDLE);
		return;
	}
	party->tgid = tgid;
	if (tgid == own_tgid) {
		party->relation = RELATION_THREAD;
		bpf_probe_read_kernel(party->comm, COMM_LEN, &task->comm);
		return;
	}
	party->relation = relation_of(task, tgid, proc_id);
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
	name_task(&thread->waker, waker, thread->tgid, thread->proc_id);
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

/* A process has a bounded part of the map: programs that give each of their threads a name of its own would fill it. Its
 * threads have entries of their own in half of that. */
static __always_inline bool has_room_for_name(struct proc *proc, __u32 tid)
{
	__u32 room = tid ? MAX_NAMES / 2 : MAX_NAMES;

	return proc->names < room && __sync_fetch_and_add(&proc->names, 1) < room;
}

/* The entry of a new name, or that of all others when the process has too many; then the party is made nobody. */
static __noinline struct blamed *new_blamed(struct blame_key *key, struct party *party)
{
	__u32 proc_id = key->proc_id;
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);
	struct blamed *blamed;

	/* User space has deleted the process already, and would never delete the entry. */
	if (!proc)
		return 0;
	if (!has_room_for_name(proc, key->tid)) {
		key->tid = 0;
		blamed = bpf_map_lookup_elem(&blame, key);
		if (blamed)
			return blamed;
		if (!has_room_for_name(proc, 0)) {
			set_nobody(party, NAME_OTHER);
			__builtin_memcpy(key->comm, party->comm, COMM_LEN);
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

static __noinline void blame_add(__u64 victim, __u32 wait, struct party *party, __u64 ns, __u64 held)
{
	struct blame_key key = { .proc_id = victim, .tid = victim >> 32, .reason = wait, .phase = wait >> 16 };
	struct blamed *blamed;

	__builtin_memcpy(key.comm, party->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (!blamed)
		blamed = new_blamed(&key, party);
	if (!blamed)
		return;
	__sync_fetch_and_add(&blamed->total_ns, ns);
	if (held)
		__sync_fetch_and_add(&blamed->held_ns, held);
	blamed->tgid = party->tgid;
	blamed->relation = party->relation;
}

/* Credits a worker with the end of a wait of its parent. */
static __always_inline void credit_worker(__u32 proc_id, __u64 ns)
{
	struct proc *worker = bpf_map_lookup_elem(&procs, &proc_id);

	if (worker)
		__sync_fetch_and_add(&worker->ended_waits_ns, ns);
}

/* A blocked wait from `since` to `woken` is over. */
static __noinline void blame_waker(struct thread *thread, __u32 tid, __u32 reason, __u64 since, __u64 woken)
{
	__u64 busy = thread->waker_busy_since_ns, held = 0;

	settle_waker(thread, reason);
	if (reason == REASON_FUTEX && thread->waits_for_lock)
		held = woken - since;
	else if (reason == REASON_FUTEX && thread->waker.relation == RELATION_THREAD && busy && busy < woken)
		held = woken - (busy > since ? busy : since);
	if (thread->waker.relation == RELATION_WORKER)
		credit_worker(thread->waker_proc_id, woken - since);
	blame_add(VICTIM(thread->proc_id, tid), WAIT(reason, thread->phase), &thread->waker, woken - since, held);
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, tid),
			      WAIT(reason, thread->phase) | WAIT_FLAGS(thread->waits_for_lock ? EVENT_LOCK : 0),
			      &thread->waker, since, woken - since);
}
