// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Start and end of tracked processes and threads. */

/* Closes the accounts of a process. Several threads may be the last one; the first closes. */
VERIFIED_ONCE int end_process(__u32 tgid, __u32 proc_id, bool execed)
{
	__u32 *current_id = bpf_map_lookup_elem(&tracked, &tgid);
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (!proc || !current_id || *current_id != proc_id)
		return 0;
	if (__sync_val_compare_and_swap(&proc->ended_ns, 0, bpf_ktime_get_ns()) != 0)
		return 0;
	proc->execed = execed;
	bpf_map_delete_elem(&tracked, &tgid);
	__sync_fetch_and_add(filter_slot(tgid), -1);
	if (is_recording())
		record_life(execed ? EVENT_EXECED : EVENT_EXITED, proc_id);
	return 0;
}

/* Adds the page faults of a thread that leaves the process. */
static __noinline void keep_faults(struct task_struct *task, __u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (!proc)
		return;
	__sync_fetch_and_add(&proc->faults_ended[FAULT_MINOR], BPF_CORE_READ(task, min_flt));
	__sync_fetch_and_add(&proc->faults_ended[FAULT_MAJOR], BPF_CORE_READ(task, maj_flt));
}

/* Closes the open state of a thread that leaves the process. */
static __noinline void end_thread(struct task_struct *task, struct thread *thread)
{
	if (thread->depth)
		abandon(thread, 0);
	/* Its switch-in was missed: another thread closed the process while this one waited. */
	if (thread->off_since_ns)
		recover_missed_switch_in(thread, bpf_ktime_get_ns());
	if (thread->slot)
		free_slot(thread, task->pid);
	charge_retries(thread, task->pid);
	close_account(thread);
	keep_faults(task, thread->proc_id);
}

/* Closes the open state of a live thread that will not be seen again: it lasts until now. */
VERIFIED_ONCE int forget_thread(struct thread *thread, __u32 pid)
{
	__u64 since, now = bpf_ktime_get_ns();

	if (!thread)
		return 0;
	since = thread->off_since_ns;
	if (thread->depth)
		count_self_by(SELF_CUT, thread->depth);
	thread->depth = 0;
	if (thread->slot)
		free_slot(thread, pid);
	charge_retries(thread, pid);
	thread->off_since_ns = 0;
	if (since && since <= now && thread->account_since_ns) {
		if (thread->off_reason < REASONS)
			account_add(thread, thread->phase, STATE_OFF(thread->off_reason), now - since);
		account_add(thread, thread->phase, STATE_RUNNING, -now);
	}
	close_account(thread);
	return 0;
}

/* Ends the accounts of all processes and forgets their threads. Run by user space after all probes are detached: later
 * time is not attributed, and processes seen again are new. */
SEC("iter/task")
int forget_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread *thread;
	__u32 *proc_id;
	__u32 tgid;

	if (!task)
		return 0;
	thread = thread_of(task);
	if (thread) {
		if (thread->proc_id) {
			forget_thread(thread, task->pid);
			keep_faults(task, thread->proc_id);
		}
		delete_thread(task);
	}
	tgid = task->tgid;
	if (task->pid != tgid)
		return 0;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	if (proc_id)
		end_process(tgid, *proc_id, false);
	return 0;
}

/* Ends the account of a process whose end no program saw. Run by user space. */
SEC("raw_tp")
int BPF_PROG(end_unseen, __u64 tgid, __u64 proc_id)
{
	end_process(tgid, proc_id, false);
	return 0;
}

static __noinline __u32 parent_of(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc ? proc->parent_id : 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid, parent_tgid = parent->tgid;
	struct thread *thread;
	__u32 *parent_id;
	__u32 proc_id, owner;
	__u64 now;

	COUNT_RUN(LIFECYCLE);
	if (!maybe_tracked(parent_tgid))
		return 0;
	parent_id = bpf_map_lookup_elem(&tracked, &parent_tgid);
	if (!parent_id)
		return 0;
	proc_id = *parent_id;
	if (tgid != parent_tgid) {
		owner = owner_of_children(proc_id);
		proc_id = track_process(child, tgid, owner, EVENT_FORKED);
	}
	if (!proc_id)
		return 0;
	thread = track_thread(child, tgid, proc_id, silent_role(proc_id));
	if (!thread)
		return 0;
	/* It waits for its first CPU from now on, as if woken. */
	now = bpf_ktime_get_ns();
	if (thread->account_since_ns)
		account_add(thread, PHASE_HOST, STATE_RUNNING, now);
	thread->on_since_ns = now;
	thread->woken_ns = now;
	thread->off_reason = REASON_OTHER;
	thread->off_since_ns = now;
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *task)
{
	__u32 tgid = task->tgid, proc_id = 0, old_id, parent_id;
	struct thread *thread;
	__u32 *known_id;

	COUNT_RUN(LIFECYCLE);
	if (!maybe_tracked(tgid))
		return 0;
	thread = thread_of(task);
	if (thread && thread->proc_id) {
		end_thread(task, thread);
		old_id = thread->proc_id;
	} else {
		/* It was never switched in, or the map of threads was full. */
		known_id = bpf_map_lookup_elem(&tracked, &tgid);
		if (!known_id)
			return 0;
		old_id = *known_id;
		keep_faults(task, old_id);
	}
	parent_id = parent_of(old_id);
	/* Before the accounts are closed: nothing may be added afterwards. */
	delete_thread(task);
	end_process(tgid, old_id, true);
	/* A worker stays a worker after exec, as spawned workers start that way. */
	if (parent_id)
		proc_id = track_process(task, tgid, parent_id, EVENT_SEEN);
	if (proc_id)
		track_thread(task, tgid, proc_id, ROLE_WORKER);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	__u32 tgid = task->tgid;
	bool has_faults = true;
	struct thread *thread;
	__u32 *proc_id;

	COUNT_RUN(LIFECYCLE);
	/* Before the filter: when threads exit concurrently, the last may have closed the process already. */
	thread = thread_of(task);
	if (thread && thread->proc_id) {
		end_thread(task, thread);
		thread->proc_id = 0;
		delete_hashed_thread(task);
		has_faults = false;
	}
	if (!maybe_tracked(tgid))
		return 0;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	if (!proc_id)
		return 0;
	/* It was never switched in. */
	if (has_faults)
		keep_faults(task, *proc_id);
	if (BPF_CORE_READ(task, signal, live.counter) <= 0)
		end_process(tgid, *proc_id, false);
	return 0;
}
