// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Which lock of the kernel a tracked thread contends for: see kernel_lock.bpf.h.
 *
 * Most contended locks spin: those have a flag at their begin, and at their end they are no lock of the thread's. Locks that sleep are for
 * tasks alone, and a task waits for one at a time. */

/* The running thread; programs that interrupt it see it, too. */
static __noinline struct thread *contending_thread(void)
{
	struct thread *thread;

	COUNT_RUN(LOCK);
	thread = thread_of(bpf_get_current_task_btf());
	return thread && thread->proc_id ? thread : 0;
}

/* First, as programs are attached in this order: no begin is seen without its end. */
SEC("tp_btf/contention_end")
int BPF_PROG(lock_end, void *lock)
{
	struct thread *thread;

	if (!maybe_tracked(bpf_get_current_pid_tgid() >> 32))
		return 0;
	thread = contending_thread();
	if (thread && thread->contended == (__u64)lock)
		thread->contended = 0;
	return 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(lock_begin, void *lock, unsigned int flags)
{
	struct thread *thread;

	if (flags & LOCK_SPINS || !maybe_tracked(bpf_get_current_pid_tgid() >> 32))
		return 0;
	thread = contending_thread();
	if (!thread)
		return 0;
	thread->contended_flags = flags;
	thread->contended_ip = user_ip((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	/* Who ends the wait is not known yet. */
	thread->wakes = 0;
	thread->contended = (__u64)lock;
	return 0;
}
