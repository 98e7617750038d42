/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Switch-ins that the kernel did not report, as of threads that follow one whose switches are hidden. */
#pragma once

#include "switch_in.h"

static __always_inline __u64 run_delay_of(struct task_struct *task)
{
	return bpf_core_field_exists(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
}

/* Returns true if the account was open when the interval began; a new dispatcher's opens later. */
static __always_inline bool is_in_account(const struct thread *thread, __u64 since)
{
	return thread->account_since_ns && thread->account_since_ns <= since;
}

/* Charges a part of the interval that began at `since`, like `charge` of sched.bpf.c, which may interrupt this. */
VERIFIED_ONCE int charge_unseen(struct thread *thread, __u32 reason, __u64 since, __u64 ns)
{
	if (!thread || !ns || reason >= REASONS)
		return 0;
	__sync_fetch_and_add(&thread->offcpu_ns[reason], ns);
	__sync_fetch_and_add(&thread->offcpu_total_ns, ns);
	if (is_in_account(thread, since))
		account_add(thread, thread->phase, STATE_OFF(reason), ns);
	hist_add(thread->proc_id, HIST_OFFCPU, thread->role, reason, ns);
	return 0;
}

/* The running thread left its CPU at `since` and its switch-in was not reported. All charged parts lie within the
 * interval; the unknown rest is running time. Call programs run this, too, and the switch program may interrupt it: who
 * takes `off_since_ns` away charges the interval, and sums of off-CPU time grow by atomic operations. What names the waker and
 * the culprit may then be of the later interval. */
VERIFIED_ONCE int recover_missed_switch_in(struct thread *thread, __u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 since, woken, queued;
	__u32 reason, pid = task->pid;

	if (!thread)
		return 0;
	since = *(volatile __u64 *)&thread->off_since_ns;
	reason = thread->off_reason;
	woken = reason == REASON_PREEMPTED ? since : blocked_until(since, thread->woken_ns, now);
	queued = queued_for(woken, now, thread->run_delay_ns, run_delay_of(task));
	/* Unless the switch that reports it interrupted this. */
	if (!since || __sync_val_compare_and_swap(&thread->off_since_ns, since, 0) != since)
		return 0;
	count_self(SELF_MISSED_ARRIVAL);
	if (reason == REASON_PREEMPTED) {
		charge_unseen(thread, reason, since, queued);
		if (thread->role != ROLE_HELPER)
			settle_cpu_wait(thread, pid, reason, woken + queued, queued);
	} else {
		charge_unseen(thread, reason, since, woken - since);
		if (woken > since && thread->role != ROLE_HELPER)
			blame_waker(thread, pid, reason, since, woken);
		end_wait(thread, reason, since, woken);
		charge_unseen(thread, REASON_RUNQUEUE, since, queued);
		if (queued && thread->role != ROLE_HELPER) {
			/* Who had the CPU in what is not charged yet is unknown. */
			set_nobody(&thread->culprit, NAME_OTHER);
			settle_cpu_wait(thread, pid, REASON_RUNQUEUE, woken + queued, queued);
		}
	}
	/* The charge of a wait goes by when the thread had a CPU before it. */
	thread->on_since_ns = woken + queued;
	if (queued)
		hist_add(thread->proc_id, HIST_RUNQUEUE, thread->role, 0, queued);
	if (thread->slot)
		free_slot(thread, pid);
	if (is_in_account(thread, since))
		account_add(thread, thread->phase, STATE_RUNNING, -(woken + queued));
	__sync_fetch_and_add(&thread->intervals, 1);
	return 0;
}
