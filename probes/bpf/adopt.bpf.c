// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Descendants older than the tracking of a dispatcher, such as data-loader workers forked before the first CUDA call. Run
 * by user space when a process has become a dispatcher; later children are seen at fork. */

/* Ancestors that are searched for a dispatcher. */
#define MAX_GENERATIONS 8
#define SIGNAL_UNKILLABLE 0x40

/* The nearest dispatcher above a process, or 0. One whose ancestors have ended has the leader of its session: only what
 * that forked is in it. */
static __noinline __u32 dispatcher_above(struct task_struct *leader)
{
	struct task_struct *task = leader;
	__u32 tgid, owner, session;

	for (int i = 0; i < MAX_GENERATIONS; i++) {
		task = BPF_CORE_READ(task, real_parent);
		tgid = BPF_CORE_READ(task, tgid);
		if (tgid <= 1)
			break;
		owner = dispatcher_with(tgid);
		if (owner)
			return owner;
	}
	session = BPF_CORE_READ(leader, signal, pids[PIDTYPE_SID], numbers[0].nr);
	return session == leader->tgid ? 0 : dispatcher_with(session);
}

/* Returns true if the parent is one that the kernel gives children of ended processes to: the first of a PID namespace,
 * or a subreaper. */
static __noinline bool may_be_orphan(struct task_struct *leader)
{
	struct signal_struct *signal = BPF_CORE_READ(leader, real_parent, signal);

	return BPF_CORE_READ(signal, flags) & SIGNAL_UNKILLABLE ||
	       BPF_CORE_READ_BITFIELD_PROBED(signal, is_child_subreaper);
}

/* Gives a tracked process that makes no calls to the dispatcher above it, which may be one since it was forked. */
static __noinline void entrust(__u32 id, __u32 owner)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &id);

	if (proc && !proc->dispatches)
		proc->parent_id = owner;
}

/* Reports the processes whose parents may have ended and that belong to no dispatcher. */
SEC("iter/task")
int adopt_workers(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 tgid, child_id, owner;
	__u32 *known, *given;

	if (!task || task->pid != task->tgid)
		return 0;
	tgid = task->tgid;
	if (tgid == settings.own_tgid)
		return 0;
	known = bpf_map_lookup_elem(&tracked, &tgid);
	owner = dispatcher_above(task);
	if (known) {
		if (owner)
			entrust(*known, owner);
		return 0;
	}
	if (!owner) {
		given = bpf_map_lookup_elem(&orphans, &tgid);
		owner = given ? *given : 0;
	}
	if (!owner) {
		/* A kernel thread has no memory. */
		if (BPF_CORE_READ(task, mm) && may_be_orphan(task))
			bpf_seq_write(ctx->meta->seq, &tgid, sizeof(tgid));
		return 0;
	}
	/* One that has exited may have been tracked until then, and is in the kernel's list until its parent reaps it. */
	if (BPF_CORE_READ(task, signal, live.counter) <= 0)
		return 0;
	child_id = track_process(task, tgid, owner, EVENT_SEEN);
	/* Its threads get records when they are next seen. If the last thread had exited before the child was tracked,
	 * nobody would end the process. */
	if (child_id && BPF_CORE_READ(task, signal, live.counter) <= 0)
		end_process(tgid, child_id, false);
	return 0;
}
