/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The tasks that run on a CPU while a thread waits for it, preempted or after a wakeup. The task that replaces a thread often runs
 * only briefly, and others run before the thread does, so the wait is split at each switch of that CPU.
 *
 * Slots are charged by their CPU's own switches, one at a time. They are taken by whoever preempts, wakes or migrates a thread, at
 * once on several CPUs. A migrated or woken thread may free its slot from another CPU: who takes `since_ns` away charges the
 * time from then on. */
#pragma once

/* `pid` of a slot that is being filled. */
#define SLOT_RESERVED 0xffffffff
/* Later than any time. */
#define NEVER_NS (~0ULL)

struct victim {
	__u64 since_ns;
	/* 0 for a free slot; written last. */
	__u32 pid;
	__u32 proc_id;
	__u32 tgid;
	/* Reason and phase of the wait. */
	__u32 wait;
};

struct cpu_victims {
	__u32 waiting;
	__u32 pad;
	struct victim slots[MAX_VICTIMS];
};

struct cpu_victims cpu_victims[MAX_CPUS];

static __always_inline struct cpu_victims *victims_on(__u32 cpu)
{
	return cpu < MAX_CPUS ? &cpu_victims[cpu & (MAX_CPUS - 1)] : 0;
}

/* The slot that the thread has, if any, and the CPU's slots. */
static __always_inline struct victim *slot_of(const struct thread *thread, struct cpu_victims **all)
{
	__u32 index = thread->slot - 1;

	*all = victims_on(thread->slot_cpu);
	return *all && index < MAX_VICTIMS ? &(*all)->slots[index] : 0;
}

/* Frees the slot of a thread. Returns the time up to which its wait is charged, or NEVER_NS if the slot is already free. */
static __always_inline __u64 release_slot(struct cpu_victims *all, struct victim *slot, __u32 pid)
{
	__u64 since;

	if (__sync_val_compare_and_swap(&slot->pid, pid, SLOT_RESERVED) != pid)
		return NEVER_NS;
	since = __sync_lock_test_and_set(&slot->since_ns, NEVER_NS);
	__sync_val_compare_and_swap(&slot->pid, SLOT_RESERVED, 0);
	__sync_fetch_and_add(&all->waiting, -1);
	return since;
}

/* For a thread that no longer waits for a CPU without a reported switch-in: it exits, or leaves another CPU. */
VERIFIED_ONCE int free_slot(struct thread *thread, __u32 pid)
{
	struct cpu_victims *all;
	struct victim *slot;

	if (!thread)
		return 0;
	slot = slot_of(thread, &all);
	if (slot)
		release_slot(all, slot, pid);
	thread->slot = 0;
	return 0;
}

/* Blames the running task, which leaves this CPU, for the wait of the thread `pid`. */
VERIFIED_ONCE int charge_slot(struct cpu_victims *all, struct victim *slot, __u32 pid, __u64 now)
{
	struct other_task other = {};
	__u64 since;

	if (!all || !slot)
		return 0;
	if (pid == (__u32)bpf_get_current_pid_tgid()) {
		/* Its switch-in was never seen. */
		release_slot(all, slot, pid);
		return 0;
	}
	since = *(volatile __u64 *)&slot->since_ns;
	/* Another thread may have got the slot meanwhile. */
	if (*(volatile __u32 *)&slot->pid != pid || now <= since ||
	    __sync_val_compare_and_swap(&slot->since_ns, since, now) != since)
		return 0;
	name_current(&other, slot->tgid, slot->proc_id);
	blame_add(VICTIM(slot->proc_id, pid), slot->wait, &other, now - since, 0);
	if (is_recording())
		record_offcpu(VICTIM(slot->proc_id, pid), slot->wait, &other, since, now - since);
	return 0;
}

/* Blames the running task for the wait of each thread that waits for this CPU. */
VERIFIED_ONCE int charge_time_slice(struct cpu_victims *all, __u64 now)
{
	if (!all)
		return 0;
	for (int i = 0; i < MAX_VICTIMS; i++) {
		__u32 pid = *(volatile __u32 *)&all->slots[i].pid;

		if (pid && pid != SLOT_RESERVED)
			charge_slot(all, &all->slots[i], pid, now);
	}
	return 0;
}

/* Takes a free slot; its number from 1, or 0 if there is none. */
static __noinline __u32 reserve_slot(struct cpu_victims *all, struct thread *thread, __u32 pid, __u32 reason,
				     __u64 since)
{
	if (!all)
		return 0;
	for (int i = 0; i < MAX_VICTIMS; i++) {
		struct victim *slot = &all->slots[i];

		if (*(volatile __u32 *)&slot->pid || __sync_val_compare_and_swap(&slot->pid, 0, SLOT_RESERVED))
			continue;
		slot->since_ns = since;
		slot->proc_id = thread->proc_id;
		slot->tgid = thread->tgid;
		slot->wait = WAIT(reason, thread->phase);
		__sync_fetch_and_add(&all->waiting, 1);
		__sync_val_compare_and_swap(&slot->pid, SLOT_RESERVED, pid);
		return i + 1;
	}
	return 0;
}

/* The thread waits for this CPU since then. Without a free slot the whole wait is charged to one task: the one that replaced the
 * thread, or after a wakeup the one that it replaces. */
VERIFIED_ONCE int await_cpu(struct thread *thread, __u32 pid, __u32 cpu, __u32 reason, __u64 since)
{
	if (!thread)
		return 0;
	thread->slot = reserve_slot(victims_on(cpu), thread, pid, reason, since);
	thread->slot_cpu = cpu;
	thread->charged_until_ns = 0;
	return 0;
}

/* The kernel queues the woken thread on this CPU, not on that of its slot. Returns 0 if the slot is already free. */
VERIFIED_ONCE int move_slot(struct thread *thread, __u32 pid, __u32 cpu)
{
	struct cpu_victims *all;
	struct victim *slot;
	__u64 since;

	if (!thread)
		return 0;
	slot = slot_of(thread, &all);
	since = slot ? release_slot(all, slot, pid) : NEVER_NS;
	thread->slot = 0;
	if (since == NEVER_NS)
		return 0;
	await_cpu(thread, pid, cpu, REASON_RUNQUEUE, since);
	thread->charged_until_ns = thread->slot ? 0 : since;
	return 1;
}

/* The thread gets a CPU `ns` after it began to wait for one, for this reason. The part not charged to a time slice is charged to the
 * thread's `culprit`. */
VERIFIED_ONCE int settle_cpu_wait(struct thread *thread, __u32 pid, __u32 reason, __u64 now, __u64 ns)
{
	struct cpu_victims *all;
	struct victim *slot;

	if (!thread)
		return 0;
	slot = slot_of(thread, &all);
	if (slot) {
		__u64 since = release_slot(all, slot, pid);

		thread->slot = 0;
		ns = now > since ? now - since : 0;
	} else if (thread->charged_until_ns) {
		ns = now > thread->charged_until_ns ? now - thread->charged_until_ns : 0;
	}
	thread->charged_until_ns = 0;
	if (!ns)
		return 0;
	blame_add(VICTIM(thread->proc_id, pid), WAIT(reason, thread->phase), &thread->culprit, ns, 0);
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, pid), WAIT(reason, thread->phase), &thread->culprit, now - ns,
			      ns);
	return 0;
}

/* Returns true if the task that took the CPU from a preempted thread still has it: none was charged since. */
static __always_inline bool has_still_cpu(const struct thread *thread)
{
	struct cpu_victims *all;
	struct victim *slot = slot_of(thread, &all);

	return thread->off_reason == REASON_PREEMPTED && slot && slot->since_ns == thread->off_since_ns;
}

/* The thread goes on waiting, for another CPU. What is left of its wait for this one is charged to the task that took the CPU from it
 * while that has it. Else nobody is known who has this CPU and has not left it, as nobody is who has the other. */
VERIFIED_ONCE int await_other_cpu(struct thread *thread, __u32 pid, __u32 cpu, __u64 now)
{
	__u32 reason;

	if (!thread || cpu == thread->slot_cpu)
		return 0;
	reason = thread->off_reason == REASON_PREEMPTED ? REASON_PREEMPTED : REASON_RUNQUEUE;
	if (!has_still_cpu(thread))
		set_nobody(&thread->culprit, NAME_OTHER);
	settle_cpu_wait(thread, pid, reason, now, 0);
	set_nobody(&thread->culprit, NAME_OTHER);
	await_cpu(thread, pid, cpu, reason, now);
	thread->charged_until_ns = thread->slot ? 0 : now;
	return 0;
}
