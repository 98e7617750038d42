/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Tracked processes and threads. A process is tracked from its first traced call, or from its fork by a tracked process,
 * until it exits or execs; its threads get records when they are next seen. */
#pragma once

static __always_inline __u32 *filter_slot(__u32 tgid)
{
	return &tgid_filter[tgid & (FILTER_SLOTS - 1)];
}

static __always_inline bool maybe_tracked(__u32 tgid)
{
	return *(volatile __u32 *)filter_slot(tgid) != 0;
}

/* The id of a process that makes traced calls, or 0. */
static __noinline __u32 dispatcher_with(__u32 tgid)
{
	struct proc *proc;
	__u32 *known;
	__u32 id;

	if (!maybe_tracked(tgid))
		return 0;
	known = bpf_map_lookup_elem(&tracked, &tgid);
	if (!known)
		return 0;
	id = *known;
	proc = bpf_map_lookup_elem(&procs, &id);
	return proc && proc->dispatches ? id : 0;
}

/* Whom a child of this process works for: it, or if it makes no calls the dispatcher that it works for itself, such as
 * that of a fork server. */
static __noinline __u32 owner_of_children(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->parent_id && !proc->dispatches ? proc->parent_id : proc_id;
}

/* Registers a process and returns its id, or 0 when the maps are full. `kind` is that of the event. */
static __noinline __u32 track_process(struct task_struct *leader, __u32 tgid, __u32 parent_id, __u32 kind)
{
	__u32 id = __sync_fetch_and_add(&last_proc_id, 1) + 1;
	struct proc *proc;
	__u32 *winner;

	if (ADD_ENTRY(&procs, ADDED_PROCS, &id, &zero_proc)) {
		count_self(SELF_FULL_PROCS);
		return 0;
	}
	proc = bpf_map_lookup_elem(&procs, &id);
	if (!proc)
		return 0;
	proc->tgid = tgid;
	proc->parent_id = parent_id;
	proc->start_boot_ns = BPF_CORE_READ(leader, start_boottime);
	proc->faults_ended[FAULT_MINOR] = BPF_CORE_READ(leader, signal, min_flt);
	proc->faults_ended[FAULT_MAJOR] = BPF_CORE_READ(leader, signal, maj_flt);
	BPF_CORE_READ_INTO(&proc->comm, leader, comm);
	if (bpf_map_update_elem(&tracked, &tgid, &id, BPF_NOEXIST) == 0) {
		proc->first_seen_ns = bpf_ktime_get_ns();
		__sync_fetch_and_add(filter_slot(tgid), 1);
		if (is_recording())
			record_life(kind, id);
		return id;
	}
	/* Another thread of the process was faster, or the map is full. */
	bpf_map_delete_elem(&procs, &id);
	winner = bpf_map_lookup_elem(&tracked, &tgid);
	if (!winner) {
		count_self(SELF_FULL_PROCS);
		return 0;
	}
	return *winner;
}

/* The process of the running task, or 0 when it is not tracked. */
static __always_inline __u32 current_proc_id(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	__u32 *proc_id;

	if (!maybe_tracked(tgid))
		return 0;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	return proc_id ? *proc_id : 0;
}

/* The record in a task's storage: nearly every record. */
static __always_inline struct thread *stored_thread(struct task_struct *task)
{
	return settings.hashes_threads ? 0 : bpf_task_storage_get(&threads, task, 0, 0);
}

/* The record of a task without storage. One of another process is of a dead task at the same address, whose exit no
 * program saw. */
static __noinline struct thread *hashed_thread(struct task_struct *task)
{
	__u64 key = (__u64)task;
	struct thread *thread;

	if (!*(volatile __u32 *)&has_hashed_threads)
		return 0;
	thread = bpf_map_lookup_elem(&hashed_threads, &key);
	if (thread && thread->tgid && thread->tgid != task->tgid) {
		bpf_map_delete_elem(&hashed_threads, &key);
		return 0;
	}
	return thread;
}

static __always_inline struct thread *thread_of(struct task_struct *task)
{
	struct thread *thread = stored_thread(task);

	return thread ? thread : hashed_thread(task);
}

#define PF_EXITING 0x4
#define PF_KTHREAD 0x00200000

/* Creates the record of a task to which the kernel refused storage. */
static __noinline struct thread *make_hashed_thread(struct task_struct *task)
{
	__u64 key = (__u64)task;
	struct thread *thread;

	/* Nobody would delete it. */
	if (task->flags & PF_EXITING)
		return 0;
	*(volatile __u32 *)&has_hashed_threads = 1;
	bpf_map_update_elem(&hashed_threads, &key, &zero_thread, BPF_NOEXIST);
	/* sched_switch may have interrupted this and got storage: it sees the map before it creates any, so not any more. */
	thread = stored_thread(task);
	if (thread) {
		bpf_map_delete_elem(&hashed_threads, &key);
		return thread;
	}
	return bpf_map_lookup_elem(&hashed_threads, &key);
}

/* The record of a task, created if it has none; 0 when refused. */
static __noinline struct thread *record_of(struct task_struct *task)
{
	struct thread *thread = hashed_thread(task);

	if (thread)
		return thread;
	if (!settings.hashes_threads)
		thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		thread = make_hashed_thread(task);
	if (!thread)
		count_self(SELF_FULL_THREADS);
	return thread;
}

static __always_inline void delete_hashed_thread(struct task_struct *task)
{
	__u64 key = (__u64)task;

	if (*(volatile __u32 *)&has_hashed_threads)
		bpf_map_delete_elem(&hashed_threads, &key);
}

/* Deletes the record of a task. The kernel can refuse to delete storage too: then it is in no account. */
static __noinline void delete_thread(struct task_struct *task)
{
	struct thread *thread = stored_thread(task);

	if (thread)
		thread->proc_id = 0;
	bpf_task_storage_delete(&threads, task);
	delete_hashed_thread(task);
}

/* Ops that are observed as the budget allows. */
static __always_inline bool is_launch_class(__u32 op)
{
	return op_info[op & (MAX_OPS - 1)].phase == PHASE_LAUNCH;
}

/* Returns true if the call's return probes were detached since it began. */
static __always_inline bool is_truncated(const struct frame *frame)
{
	return closed_links[frame->link & (MAX_LINKS - 1)] == LINK_CLOSED;
}

/* Begins the record of a thread, which has an account if it is that of a worker's main thread: workers feed their parent
 * from it. `proc_id` is written last: a record without it is in no account. */
VERIFIED_ONCE int begin_record(struct thread *thread, __u32 tgid, __u32 proc_id, __u32 role, bool is_main)
{
	if (!thread)
		return 0;
	thread->tgid = tgid;
	thread->role = role;
	thread->depth = 0;
	thread->off_since_ns = 0;
	thread->account_since_ns = 0;
	thread->launched_ns = 0;
	thread->slot = 0;
	thread->charged_until_ns = 0;
	thread->reclaim_since_ns = 0;
	thread->contended = 0;
	thread->modes = 0;
	thread->counted_stack = 0;
	thread->polled = 0;
	thread->polled_lock = 0;
	thread->doubts = 0;
	thread->waits_since_ns = 0;
	thread->timed_out_ns = 0;
	thread->handed_over = 0;
	thread->took_ns = 0;
	thread->retried_ns = 0;
	thread->settled_ns = 0;
	__builtin_memset(thread->retries, 0, sizeof(thread->retries));
	thread->busy_since_ns = bpf_ktime_get_ns();
	thread->busy_lock_ns = thread->offcpu_ns[REASON_LOCK];
	if (role == ROLE_WORKER && is_main)
		open_account(thread);
	barrier();
	thread->proc_id = proc_id;
	return 0;
}

/* Gives a task of a tracked process its record. */
static __noinline struct thread *track_thread(struct task_struct *task, __u32 tgid, __u32 proc_id, __u32 role)
{
	struct thread *thread = record_of(task);

	if (thread)
		begin_record(thread, tgid, proc_id, role, task->pid == task->tgid);
	return thread;
}

/* The role of a thread without traced calls. */
VERIFIED_ONCE __u32 silent_role(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->parent_id && !proc->dispatches ? ROLE_WORKER : ROLE_HELPER;
}

/* The record of a task that passed the filter, created on demand for threads older than the tracking. */
static __always_inline struct thread *tracked_thread(struct task_struct *task, __u32 tgid)
{
	struct thread *thread = thread_of(task);
	__u32 *proc_id;

	if (thread)
		return thread->proc_id ? thread : 0;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	if (!proc_id)
		return 0;
	return track_thread(task, tgid, *proc_id, silent_role(*proc_id));
}
