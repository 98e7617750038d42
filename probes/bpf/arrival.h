/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What is known of an interval off the CPU whose end the kernel did not report. The wakeup that ended the blocked part is
 * reported by itself, and the scheduler counts for each task how long it waited for a CPU. The rest was running. Compiled for
 * BPF and, by a test, for the host. */
#pragma once

/* When the blocked part of an interval ended that began at `since`: then, when it had none or its wakeup is not known. */
static inline __attribute__((always_inline)) __u64 blocked_until(__u64 since, __u64 woken, __u64 now)
{
	return woken > since && woken <= now ? woken : since;
}

/* How long of the time from `since` to `now` was a wait for a CPU, by the scheduler's counter then and now. */
static inline __attribute__((always_inline)) __u64 queued_for(__u64 since, __u64 now, __u64 before, __u64 after)
{
	__u64 queued = after > before ? after - before : 0;
	__u64 most = now > since ? now - since : 0;

	return queued < most ? queued : most;
}
