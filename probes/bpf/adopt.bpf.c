// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Children older than the tracking of their parent, such as data-loader workers forked before the first CUDA call. Run
 * by user space when a process has become a dispatcher; later children are seen at fork. */

SEC("iter/task")
int adopt_workers(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 tgid, parent_tgid, child_id;
	__u32 *parent_id;

	if (!task || task->pid != task->tgid)
		return 0;
	tgid = task->tgid;
	parent_tgid = BPF_CORE_READ(task, real_parent, tgid);
	if (!maybe_tracked(parent_tgid) || parent_tgid == tgid || tgid == settings.own_tgid)
		return 0;
	parent_id = bpf_map_lookup_elem(&tracked, &parent_tgid);
	if (!parent_id || bpf_map_lookup_elem(&tracked, &tgid))
		return 0;
	/* One that has exited may have been tracked until then, and is in the kernel's list until its parent reaps it. */
	if (BPF_CORE_READ(task, signal, live.counter) <= 0)
		return 0;
	child_id = track_process(task, tgid, *parent_id, EVENT_SEEN);
	/* Its threads get records when they are next seen. If the last thread had exited before the child was tracked,
	 * nobody would end the process. */
	if (child_id && BPF_CORE_READ(task, signal, live.counter) <= 0)
		end_process(tgid, child_id, false);
	return 0;
}
