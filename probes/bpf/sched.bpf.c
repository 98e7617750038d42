// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Off-CPU time of tracked threads, split by reason.
 *
 * A thread that leaves the CPU while runnable was preempted, unless it hands its work over. A blocked one waits for its blocked reason
 * until it is woken, and then for a CPU. These programs run for one task on one CPU at a time, so each field has one writer; `woken_ns`
 * and `awake_ns` are written by the waker, one at a time, and read when the thread returns. The waker also reserves the slot of a thread
 * that has left its CPU and has not got another yet. */

/* Linux's state of a task from its wakeup until it is in the queue of a CPU. */
#define TASK_WAKING 0x200
/* A thread that blocks leaves its CPU within this time after the kernel has taken it from the queue, unless interrupted. */
#define LEAVES_NS 5000ULL

/* How soon after a wakeup the woken thread replaces the one that woke it, if at once. */
#define AT_ONCE_NS 50000ULL

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_SCHED_YIELD 24
#else
#define SYSCALL_SCHED_YIELD 124
#endif

/* Returns true if the running thread gives its CPU away, and could go on. */
static __always_inline bool yields(struct task_struct *task, bool preempt)
{
	return !preempt && !task->__state &&
	       syscall_number((struct pt_regs *)bpf_task_pt_regs(task)) == SYSCALL_SCHED_YIELD;
}

/* Returns true if the running thread, between its calls, leaves its CPU to a thread of the same process that launches,
 * too, and that it woke just now: it handed its work over, as PyTorch's main thread and autograd's do to each other,
 * and waits for what the other does. */
static __noinline bool hands_over(const struct thread *thread, struct task_struct *task, __u64 now,
				  struct task_struct *next)
{
	struct thread *other;

	if (task->__state || next->tgid != task->tgid || thread->role != ROLE_DISPATCHER || thread->phase != PHASE_HOST)
		return false;
	other = thread_of(next);
	/* One that waited for a lock got no work. */
	return other && other->role == ROLE_DISPATCHER && other->off_reason == REASON_FUTEX &&
	       other->wakes & WAKES_FUTEX && other->waker_tid == task->pid && other->woken_ns >= thread->on_since_ns &&
	       now - other->woken_ns <= AT_ONCE_NS;
}

/* Begins the wait of the running thread for the one that it handed its work over to. */
static __noinline void await_other(struct thread *thread, __u32 tgid, __u64 now, struct task_struct *next)
{
	thread->off_reason = REASON_FUTEX;
	thread->polls_until_ns = 0;
	thread->handed_over = 1;
	name_task(&thread->waker, next, tgid, thread->proc_id);
	thread->wakes = WAKES_FUTEX;
	thread->waker_tid = next->pid;
	thread->waker_busy_since_ns = now;
	thread->waker_proc_id = 0;
	thread->waker_lock_ns = 0;
	thread->waker_polled = 0;
}

/* Ends such a wait. If another task had the CPU last, the thread waited for a CPU. Returns whether it did not. */
VERIFIED_ONCE int was_handed_over(struct thread *thread)
{
	struct task_struct *last = bpf_get_current_task_btf();

	if (!thread || !thread->handed_over)
		return false;
	if (!last->pid || last->tgid == thread->tgid)
		return true;
	thread->off_reason = REASON_PREEMPTED;
	name_current(&thread->culprit, thread->tgid, thread->proc_id);
	return false;
}

/* Begins the time off the CPU of the running task: `sched_switch` is about to put `next` there. */
static __noinline void off_cpu(struct task_struct *task, __u32 tgid, bool preempt, __u64 now, struct task_struct *next)
{
	struct thread *thread = tracked_thread(task, tgid);
	__u32 kind = SWITCH_VOLUNTARY;
	struct proc *proc;
	__u32 proc_id;
	__u64 index;

	if (!thread)
		return;
	/* Its switch-in was never seen. */
	if (thread->off_since_ns)
		recover_missed_switch_in(thread, now);
	if (thread->slot)
		free_slot(thread, task->pid);
	if (thread->retried_ns)
		settle_awake(thread, task->pid);
	thread->handed_over = 0;
	if (preempt || task->__state == 0)
		kind = SWITCH_INVOLUNTARY;
	if (kind == SWITCH_INVOLUNTARY && yields(task, preempt)) {
		thread->off_reason = REASON_YIELD;
	} else if (kind == SWITCH_INVOLUNTARY && hands_over(thread, task, now, next)) {
		await_other(thread, tgid, now, next);
	} else if (kind == SWITCH_INVOLUNTARY) {
		thread->off_reason = REASON_PREEMPTED;
		if (thread->role != ROLE_HELPER) {
			name_task(&thread->culprit, next, tgid, thread->proc_id);
			await_cpu(thread, task->pid, bpf_get_smp_processor_id(), REASON_PREEMPTED, now);
		}
	} else {
		note_reason(thread, now);
	}
	/* An account opened just above, after `now`, has no time yet. */
	if (thread->account_since_ns)
		account_add(thread, thread->phase, STATE_RUNNING,
			    now > thread->account_since_ns ? now : thread->account_since_ns);
	/* The node is that of the CPU that it leaves: a thread may have run there before it was tracked. */
	thread->node = bpf_get_numa_node_id() + 1;
	thread->run_delay_ns = run_delay_of(task);
	thread->off_since_ns = now;
	proc_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	index = kind + thread->role * SWITCHES;
	/* In 64 bits: the verifier of Linux 6.1 forgets the bound of half a register. */
	barrier_var(index);
	if (proc && index < CTX_SWITCHES)
		__sync_fetch_and_add(&proc->ctx_switches[index], 1);
}

VERIFIED_ONCE int charge(struct thread *thread, __u32 reason, __u64 ns)
{
	if (!thread)
		return 0;
	if (reason < REASONS)
		thread->offcpu_ns[reason] += ns;
	thread->offcpu_total_ns += ns;
	if (thread->account_since_ns)
		account_add(thread, thread->phase, STATE_OFF(reason), ns);
	hist_add(thread->proc_id, HIST_OFFCPU, thread->role, reason, ns);
	return 0;
}

static __always_inline void charge_queue(struct thread *thread, __u64 ns)
{
	hist_add(thread->proc_id, HIST_RUNQUEUE, thread->role, 0, ns);
}

/* Waits of helpers have no culprit. */
static __always_inline void record_helper(const struct thread *thread, __u32 pid, __u32 reason, __u64 since, __u64 ns)
{
	if (is_recording() && recording.helpers)
		record_offcpu(VICTIM(thread->proc_id, pid), WAIT(reason, PHASE_HOST) | WAIT_FLAGS(EVENT_HELPER), 0,
			      since, ns);
}

/* The wait for a CPU after a wakeup. What is not charged yet is charged to the running task, which leaves the CPU. */
static __always_inline void charge_runqueue(struct thread *thread, __u32 pid, __u64 since, __u64 now)
{
	__u64 ns = now - since;

	charge(thread, REASON_RUNQUEUE, ns);
	charge_queue(thread, ns);
	if (thread->role == ROLE_HELPER) {
		record_helper(thread, pid, REASON_RUNQUEUE, since, ns);
		return;
	}
	name_current(&thread->culprit, thread->tgid, thread->proc_id);
	settle_cpu_wait(thread, pid, REASON_RUNQUEUE, now, ns);
}

VERIFIED_ONCE int charge_interval(struct thread *thread, __u32 pid, __u64 now)
{
	__u64 since, woken;
	bool handed;

	if (!thread)
		return 0;
	since = thread->off_since_ns;
	if (thread->off_reason == REASON_YIELD) {
		charge(thread, REASON_YIELD, now - since);
		return 0;
	}
	handed = was_handed_over(thread);
	if (thread->off_reason == REASON_PREEMPTED) {
		charge(thread, REASON_PREEMPTED, now - since);
		charge_queue(thread, now - since);
		if (thread->role != ROLE_HELPER)
			settle_cpu_wait(thread, pid, REASON_PREEMPTED, now, now - since);
		else
			record_helper(thread, pid, REASON_PREEMPTED, since, now - since);
		return 0;
	}
	/* Every wait ends with one wakeup, but for that of a thread that could have run. An older one than the last run was
	 * missed by the program. So was that after one which found the thread on its CPU (`awake_ns`), unless that came while it left.
	 * A wakeup between the decision to block and the switch ends this wait at its start. */
	woken = *(volatile __u64 *)&thread->woken_ns;
	if (handed || !woken || woken < thread->on_since_ns || woken > now ||
	    (woken == thread->awake_ns && since - woken > LEAVES_NS)) {
		woken = now;
		/* Whoever is known ended an earlier one, but for a lock of the kernel, whose owner is known before. */
		if (!handed && thread->off_reason != REASON_KERNEL_LOCK)
			thread->wakes = 0;
	} else if (woken < since) {
		woken = since;
	}
	if (woken > since) {
		charge(thread, thread->off_reason, woken - since);
		if (thread->role != ROLE_HELPER)
			blame_waker(thread, pid, thread->off_reason, since, woken);
		else
			record_helper(thread, pid, thread->off_reason, since, woken - since);
	}
	end_wait(thread, thread->off_reason, since, woken);
	if (!handed)
		charge_runqueue(thread, pid, woken, now);
	return 0;
}

/* Stores the NUMA node of the CPU that the thread just got, and counts a dispatcher's change of node. */
VERIFIED_ONCE int note_node(struct thread *thread)
{
	__u32 last, node = bpf_get_numa_node_id() + 1;
	struct proc *proc;
	__u32 proc_id;

	if (!thread || thread->node == node)
		return 0;
	last = thread->node;
	thread->node = node;
	if (!last || thread->role != ROLE_DISPATCHER)
		return 0;
	proc_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->measures.numa_migrations, 1);
	return 0;
}

/* A launch whose return is not seen is over once the thread has waited, or makes another call. Not after a preemption: that
 * may have interrupted a call program that changes the phase. */
static __always_inline void end_unseen_launch(struct thread *thread)
{
	if (thread->phase == PHASE_LAUNCH && thread->off_reason != REASON_PREEMPTED && thread->depth &&
	    is_truncated(&thread->frames[0]))
		*(volatile __u32 *)&thread->phase = PHASE_HOST;
}

static __noinline void on_cpu(struct task_struct *task, __u32 tgid, __u64 now)
{
	struct thread *thread = tracked_thread(task, tgid);
	__u64 since;

	if (!thread)
		return;
	note_node(thread);
	since = thread->off_since_ns;
	if (since && since > now) {
		count_self(SELF_CLOCK_UNDERFLOW);
	} else if (since) {
		charge_interval(thread, task->pid, now);
		thread->intervals++;
	}
	end_unseen_launch(thread);
	if (since && thread->account_since_ns)
		account_add(thread, thread->phase, STATE_RUNNING, -now);
	thread->off_since_ns = 0;
	thread->on_since_ns = now;
}

static __noinline void on_switch(bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu_victims *victims = victims_on(bpf_get_smp_processor_id());
	__u32 prev_tgid = prev->tgid, next_tgid = next->tgid;
	__u64 now;
	bool leaves = maybe_tracked(prev_tgid), arrives = maybe_tracked(next_tgid);

	if (!leaves && !arrives && !(victims && victims->waiting))
		return;
	now = bpf_ktime_get_ns();
	if (victims && victims->waiting)
		charge_time_slice(victims, now);
	if (leaves)
		off_cpu(prev, prev_tgid, preempt, now, next);
	if (arrives)
		on_cpu(next, next_tgid, now);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	COUNT_UNINTERRUPTED_RUN(SWITCH);
	on_switch(preempt, prev, next);
	return 0;
}

/* Returns true if a task is in the queue of its CPU: if it is about to block, its wakeup lets it go on, unless it leaves just now. */
static __always_inline bool is_queued(const struct task_struct *task)
{
	/* Since 6.12 one that blocked may stay there until it is its turn. */
	return task->on_rq && !(bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed);
}

/* The woken thread waits for this CPU from its wakeup on. One that has not left its CPU yet gets no slot: its whole wait is charged to the
 * task that has the CPU last. */
VERIFIED_ONCE int await_cpu_after_wakeup(struct thread *thread, __u32 pid, __u32 cpu)
{
	__u64 since, woken;

	if (!thread)
		return 0;
	since = *(volatile __u64 *)&thread->off_since_ns;
	woken = thread->woken_ns;
	if (!since || thread->role == ROLE_HELPER || thread->slot || thread->off_reason == REASON_PREEMPTED ||
	    thread->off_reason == REASON_YIELD || woken < thread->on_since_ns)
		return 0;
	return await_cpu(thread, pid, cpu, REASON_RUNQUEUE, woken > since ? woken : since);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *task)
{
	struct thread *thread;

	COUNT_UNINTERRUPTED_RUN(WAKING);
	if (!maybe_tracked(task->tgid))
		return 0;
	thread = thread_of(task);
	if (!thread)
		return 0;
	if (thread->polled)
		settle_retries(task, thread);
	if (thread->role != ROLE_HELPER)
		note_waker(thread);
	thread->woken_ns = bpf_ktime_get_ns();
	if (!*(volatile __u64 *)&thread->off_since_ns && is_queued(task))
		thread->awake_ns = thread->woken_ns;
	/* If the kernel chooses another CPU than the last, it says so before the thread is queued there. */
	await_cpu_after_wakeup(thread, task->pid, task->thread_info.cpu);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(sched_migrate, struct task_struct *task, int cpu)
{
	struct thread *thread;

	COUNT_UNINTERRUPTED_RUN(WAKING);
	if (!maybe_tracked(task->tgid))
		return 0;
	thread = thread_of(task);
	if (!thread)
		return 0;
	if (task->__state == TASK_WAKING) {
		if (!thread->slot || !move_slot(thread, task->pid, cpu))
			await_cpu_after_wakeup(thread, task->pid, cpu);
	} else if (thread->slot) {
		await_other_cpu(thread, task->pid, cpu, bpf_ktime_get_ns());
	}
	return 0;
}
