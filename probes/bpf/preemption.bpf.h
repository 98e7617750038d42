/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The tasks that run on a CPU while a preempted thread waits for it. The task that replaces a thread often runs only
 * briefly, and others run before the thread does, so the wait is split at each switch of that CPU.
 *
 * A CPU's slots are taken and charged by its own switches, one at a time. A migrated thread frees its slot from another
 * CPU; a time slice that is charged concurrently is charged twice. */
#pragma once

struct victim {
	__u64 since_ns;
	/* 0 for a free slot; written last. */
	__u32 pid;
	__u32 proc_id;
	__u32 tgid;
	__u32 phase;
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

/* Frees the slot of a thread, unless already free. */
static __always_inline bool release_slot(struct cpu_victims *all, struct victim *slot, __u32 pid)
{
	if (__sync_val_compare_and_swap(&slot->pid, pid, 0) != pid)
		return false;
	__sync_fetch_and_add(&all->waiting, -1);
	return true;
}

/* For a thread that no longer waits for a CPU without a reported switch-in: it exits, or leaves another CPU. */
static __noinline void free_slot(struct thread *thread, __u32 pid)
{
	struct cpu_victims *all = victims_on(thread->slot_cpu);
	__u32 index = thread->slot - 1;

	if (all && index < MAX_VICTIMS)
		release_slot(all, &all->slots[index], pid);
	thread->slot = 0;
}

/* Blames the task that leaves this CPU for the wait of the thread `pid`. */
static __noinline void charge_slot(struct victim *slot, __u32 pid, struct task_struct *prev, __u64 now)
{
	struct other_task other = {};

	name_task(&other, prev, slot->tgid, slot->proc_id);
	blame_add(VICTIM(slot->proc_id, pid), WAIT(REASON_PREEMPTED, slot->phase), &other, now - slot->since_ns, 0);
	if (is_recording())
		record_offcpu(VICTIM(slot->proc_id, pid), WAIT(REASON_PREEMPTED, slot->phase), &other, slot->since_ns,
			      now - slot->since_ns);
	slot->since_ns = now;
}

/* The same for each thread that waits for this CPU. */
static __noinline void charge_time_slice(struct cpu_victims *all, struct task_struct *prev, __u64 now)
{
	for (int i = 0; i < MAX_VICTIMS; i++) {
		struct victim *slot = &all->slots[i];
		__u32 pid = *(volatile __u32 *)&slot->pid;

		if (!pid)
			continue;
		if (pid == prev->pid) {
			/* Its switch-in was never seen. */
			release_slot(all, slot, pid);
			continue;
		}
		charge_slot(slot, pid, prev, now);
	}
}

/* Takes a slot for a thread that is preempted now. Without a free one the task that replaces it is blamed for the whole
 * wait. */
static __noinline void await_cpu(struct thread *thread, __u32 pid, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_victims *all = victims_on(cpu);

	thread->slot = 0;
	if (!all)
		return;
	for (int i = 0; i < MAX_VICTIMS; i++) {
		struct victim *slot = &all->slots[i];

		if (*(volatile __u32 *)&slot->pid)
			continue;
		slot->since_ns = now;
		slot->proc_id = thread->proc_id;
		slot->tgid = thread->tgid;
		slot->phase = thread->phase;
		barrier();
		slot->pid = pid;
		__sync_fetch_and_add(&all->waiting, 1);
		thread->slot = i + 1;
		thread->slot_cpu = cpu;
		return;
	}
}

/* The thread gets a CPU `ns` after it was preempted. The part not charged to a time slice is blamed on the first
 * culprit. */
static __noinline void settle_preemption(struct thread *thread, __u32 pid, __u64 now, __u64 ns)
{
	struct cpu_victims *all = victims_on(thread->slot_cpu);
	__u32 index = thread->slot - 1;

	if (thread->slot && all && index < MAX_VICTIMS) {
		struct victim *slot = &all->slots[index];
		__u64 since = slot->since_ns;

		thread->slot = 0;
		ns = release_slot(all, slot, pid) && now > since ? now - since : 0;
	}
	if (!ns)
		return;
	blame_add(VICTIM(thread->proc_id, pid), WAIT(REASON_PREEMPTED, thread->phase), &thread->culprit, ns, 0);
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, pid), WAIT(REASON_PREEMPTED, thread->phase), &thread->culprit,
			      now - ns, ns);
}
