// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* What live dispatcher threads report when user space asks: their time account with the stretch that has not ended, and
 * the call they are in. A record may change while it is copied; user space settles what does not add up. */

SEC("iter/task")
int report_threads(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct thread_report report = {};
	struct thread *thread;

	if (!task || !maybe_tracked(task->tgid))
		return 0;
	thread = thread_of(task);
	if (!thread || !thread->proc_id || !thread->account_since_ns)
		return 0;
	report.tid = task->pid;
	report.now_ns = bpf_ktime_get_ns();
	bpf_seq_write(seq, &report, sizeof(report));
	bpf_seq_write(seq, thread, sizeof(*thread));
	return 0;
}
