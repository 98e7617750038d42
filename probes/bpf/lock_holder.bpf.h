/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* How the holder of a lock is found: by who ended the wait, what it did meanwhile, and whether it takes that lock itself. Locks that
 * are polled are in polled_lock.bpf.h, those of the kernel in kernel_lock.bpf.h. */
#pragma once

/* How much of a futex wait from `since` to `woken` the thread that ended it was busy, or held the lock that it is for. */
static __always_inline __u64 held_of(const struct thread *thread, __u32 reason, __u64 since, __u64 woken)
{
	__u64 from;

	if (reason == REASON_KERNEL_LOCK || (reason == REASON_LOCK && !thread->polls_until_ns))
		return woken - since;
	if (thread->waker.relation != RELATION_THREAD)
		return 0;
	from = reason == REASON_LOCK ? thread->waker_took_ns : thread->waker_busy_since_ns;
	if (!from && reason == REASON_FUTEX)
		return 0;
	if (from < since)
		from = since;
	return from < woken ? woken - from : 0;
}

/* So many waits in a row that threads ended which have not polled the futex prove that it is another one by now. */
#define MAX_DOUBTS 8

/* The futex is a lock if the thread that ends the wait polls it, too: work is waited for by those alone who do it. */
static __always_inline void prove_lock(struct thread *thread)
{
	if (thread->waker.relation == RELATION_THREAD && thread->waker_polled == thread->polled) {
		thread->polled_lock = thread->polled;
		thread->doubts = 0;
	} else if (thread->polled_lock == thread->polled && ++thread->doubts >= MAX_DOUBTS) {
		thread->polled_lock = 0;
	}
}
