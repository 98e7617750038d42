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
	report.account_since_ns = thread->account_since_ns;
	report.off_since_ns = *(volatile __u64 *)&thread->off_since_ns;
	report.on_since_ns = thread->on_since_ns;
	report.woken_ns = thread->woken_ns;
	report.proc_id = thread->proc_id;
	report.tid = task->pid;
	report.phase = thread->phase;
	report.off_reason = thread->off_reason;
	if (thread->depth) {
		report.inflight_op = thread->frames[0].op;
		report.inflight_since_ns = thread->frames[0].start_ns;
	}
	report.now_ns = bpf_ktime_get_ns();
	bpf_seq_write(seq, &report, sizeof(report));
	bpf_seq_write(seq, &thread->account, sizeof(thread->account));
	return 0;
}
