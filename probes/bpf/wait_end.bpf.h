/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The end of a blocked wait: who ended it, and how much of it that task owes. */
#pragma once

/* A thread is busy all the same in a shorter wait on a futex. */
#define BRIEF_NS 100000ULL
/* Waits that are worth an entry for their system call. */
#define LONG_NS 1000000ULL

/* Returns true if an idle thread waits like this: for work, a message or a time. */
static __always_inline bool is_idle(__u32 reason, __u64 ns)
{
	return (reason == REASON_FUTEX && ns > BRIEF_NS) || reason == REASON_POLL || reason == REASON_NET ||
	       reason == REASON_SLEEP || reason == REASON_CHILD || reason == REASON_OTHER;
}

/* Since when the thread is busy, and has the lock that it polled for, after a blocked wait. */
static __always_inline void end_wait(struct thread *thread, __u32 reason, __u64 since, __u64 woken)
{
	if (is_idle(reason, woken - since)) {
		thread->busy_since_ns = woken;
		thread->busy_lock_ns = thread->offcpu_ns[REASON_LOCK];
	}
	if (!thread->polls_until_ns)
		return;
	if (woken >= thread->polls_until_ns) {
		thread->timed_out_ns = woken;
		return;
	}
	thread->timed_out_ns = 0;
	take_lock(thread, woken);
}

/* Sets the `waker` to blame for a wait of this reason. */
static __always_inline void settle_waker(struct thread *thread, __u32 reason)
{
	__u32 needed;

	switch (reason) {
	case REASON_FUTEX:
	case REASON_LOCK:
	case REASON_CHILD:
		needed = WAKES_FUTEX;
		break;
	case REASON_POLL:
	case REASON_NET:
		needed = WAKES_FD;
		break;
	case REASON_KERNEL_LOCK:
		needed = HOLDS_LOCK;
		break;
	case REASON_OTHER:
		needed = WAKES_FUTEX | WAKES_FD | RELEASES_FILE_LOCK;
		break;
	default:
		needed = WAKES_FILES;
	}
	if (!(thread->wakes & needed))
		set_nobody(&thread->waker, NAME_KERNEL);
}

/* A blocked wait from `since` to `woken` is over. */
VERIFIED_ONCE int blame_waker(struct thread *thread, __u32 tid, __u32 reason, __u64 since, __u64 woken)
{
	__u64 total = woken - since, held, kept, behind, wait;
	bool polls, is_lock, is_own;

	if (!thread)
		return 0;
	settle_waker(thread, reason);
	polls = (reason == REASON_FUTEX || reason == REASON_LOCK) && thread->polls_until_ns;
	/* The timer's interrupt may have come while some task was in such a system call. */
	if (polls && woken >= thread->polls_until_ns)
		set_nobody(&thread->waker, NAME_KERNEL);
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, tid),
			      WAIT(reason, thread->phase) | WAIT_FLAGS(reason == REASON_LOCK ? EVENT_LOCK : 0),
			      &thread->waker, since, total);
	if (polls && reason == REASON_LOCK && thread->waker.relation == RELATION_NONE) {
		keep_retry(thread, tid, since, woken);
		return 0;
	}
	if (polls && thread->waker.relation != RELATION_NONE)
		prove_lock(thread);
	if (thread->waker.relation == RELATION_WORKER && !(thread->waits_for & WAITS_FOR_FILE_LOCK))
		credit_worker(thread->waker_proc_id, total);
	kept = polls && reason == REASON_LOCK && thread->waker.relation == RELATION_THREAD &&
			       thread->waker_polled == thread->retried_lock && thread->phase == thread->retried_phase
		       ? take_retries(thread, thread->waker_took_ns, 0)
		       : 0;
	/* Who ended the wait was asked first: its tenure has not ended. */
	if (polls && reason == REASON_LOCK)
		settle_all_ended(thread, tid);
	is_lock = reason == REASON_LOCK || reason == REASON_KERNEL_LOCK;
	is_own = reason == REASON_FUTEX && thread->waker.relation == RELATION_THREAD;
	held = is_own || is_lock ? held_of(thread, reason, since, woken) : owed_of(thread, reason, total);
	wait = WAIT(reason, thread->phase);
	/* Short ones have no entry for each system call: a process has so many. */
	if (reason == REASON_OTHER && total >= LONG_NS)
		wait |= IN_SYSCALL(thread->blocked_on);
	if (is_lock && thread->waker.relation == RELATION_THREAD)
		wait |= HELD_BY(thread->waker_tid);
	if (reason == REASON_KERNEL_LOCK) {
		wait |= FOR_LOCK(thread->blocked_on);
		/* Another may have taken the lock meanwhile, so that the thread waits again. */
		thread->wakes = 0;
	}
	blame_add(VICTIM(thread->proc_id, tid), wait, &thread->waker, total + kept, held + kept);
	behind = reason == REASON_FUTEX && thread->waker.relation == RELATION_THREAD ? thread->waker_lock_ns : 0;
	if (behind)
		blame_behind(VICTIM(thread->proc_id, tid), WAIT(reason, thread->phase), &thread->waker,
			     behind < held ? behind : held);
	return 0;
}
