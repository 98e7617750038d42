/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Splits an off-CPU interval whose end the kernel did not report: the wakeup that ended the blocked part is reported
 * separately, the scheduler counts each task's wait for a CPU, and the rest was running. Compiled for BPF and, by a
 * test, for the host. */
#pragma once

/* End of the blocked part of an interval that began at `since`: `since` if there is none or its wakeup is unknown. */
static inline __attribute__((always_inline)) __u64 blocked_until(__u64 since, __u64 woken, __u64 now)
{
	return woken > since && woken <= now ? woken : since;
}

/* Time between `since` and `now` spent waiting for a CPU, from the scheduler's counter before and after. */
static inline __attribute__((always_inline)) __u64 queued_for(__u64 since, __u64 now, __u64 before, __u64 after)
{
	__u64 queued = after > before ? after - before : 0;
	__u64 most = now > since ? now - since : 0;

	return queued < most ? queued : most;
}
