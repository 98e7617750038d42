// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Reports of live threads when user space asks: page faults and, where present, time accounts with the current stretch
 * and open call. Records may change while they are copied; user space reconciles them. */

/* Ends the account of a process whose end no program saw and whose PID this leader has now. */
static __noinline bool end_predecessor(struct task_struct *leader, __u32 tgid, __u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (!proc || proc->start_boot_ns == leader->start_boottime)
		return false;
	end_process(tgid, proc_id, false);
	return true;
}

SEC("iter/task")
int report_threads(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct thread_report report = {};
	struct thread *thread;
	__u32 tgid;
	__u32 *proc_id;

	if (!task || !maybe_tracked(task->tgid))
		return 0;
	tgid = task->tgid;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	if (!proc_id)
		return 0;
	if (task->pid == tgid && end_predecessor(task, tgid, *proc_id))
		return 0;
	report.proc_id = *proc_id;
	report.tid = task->pid;
	report.frees_memory = !!(task->flags & PF_MEMALLOC);
	report.faults[FAULT_MINOR] = task->min_flt;
	report.faults[FAULT_MAJOR] = task->maj_flt;
	/* A leader remains until all other threads have exited, which are added here. */
	if (task->pid == task->tgid) {
		report.faults[FAULT_MINOR] += UNTRUSTED(task_struct, task)->signal->min_flt;
		report.faults[FAULT_MAJOR] += UNTRUSTED(task_struct, task)->signal->maj_flt;
	}
	thread = thread_of(task);
	if (thread && thread->proc_id && thread->account_since_ns) {
		report.has_record = 1;
		report.proc_id = thread->proc_id;
	}
	report.now_ns = bpf_ktime_get_ns();
	bpf_seq_write(seq, &report, sizeof(report));
	if (thread && report.has_record)
		bpf_seq_write(seq, thread, sizeof(*thread));
	return 0;
}
