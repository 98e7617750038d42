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

static __always_inline void set_name(__u8 *name, __u64 text)
{
	((__u64 *)name)[0] = text;
	((__u64 *)name)[1] = 0;
}

#define NAME_IDLE 0x656c6469ULL       /* "idle" */
#define NAME_KERNEL 0x6c656e72656bULL /* "kernel" */
#define NAME_OTHER 0x726568746fULL    /* "other" */

static __noinline void name_task(__u8 name[COMM_LEN], struct task_struct *task, __u32 own_tgid)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!tgid)
		set_name(name, NAME_IDLE);
	else if (tgid == own_tgid)
		bpf_probe_read_kernel(name, COMM_LEN, &task->comm);
	else
		bpf_probe_read_kernel(name, COMM_LEN, &BPF_CORE_READ(task, group_leader)->comm);
}

/* Remembers who wakes the thread, and what the waker's system call can wake. */
static __noinline void note_waker(struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	long number = syscall_number((struct pt_regs *)bpf_task_pt_regs(waker));

	thread->wakes = number >= 0 && number < MAX_SYSCALLS ? syscall_wakes[number & (MAX_SYSCALLS - 1)] : 0;
	if (thread->wakes)
		name_task(thread->waker, waker, thread->tgid);
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
		set_name(thread->waker, NAME_KERNEL);
}

/* A process has a bounded part of the map: programs that give each of their threads a name of its own would fill it. */
static __noinline bool has_room_for_name(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->names < MAX_NAMES && __sync_fetch_and_add(&proc->names, 1) < MAX_NAMES;
}

static __noinline void blame_add(__u32 proc_id, __u32 reason, const __u8 name[COMM_LEN], __u64 ns)
{
	struct blame_key key = { .proc_id = proc_id, .reason = reason };
	__u64 *total;

	__builtin_memcpy(key.comm, name, COMM_LEN);
	total = bpf_map_lookup_elem(&blame, &key);
	if (!total && !has_room_for_name(proc_id)) {
		set_name(key.comm, NAME_OTHER);
		total = bpf_map_lookup_elem(&blame, &key);
	}
	if (!total) {
		bpf_map_update_elem(&blame, &key, &zero_u64, BPF_NOEXIST);
		total = bpf_map_lookup_elem(&blame, &key);
		if (!total) {
			count_self(SELF_FULL_BLAME);
			return;
		}
	}
	__sync_fetch_and_add(total, ns);
}
