// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Memory that tracked processes allocate from the kernel, their direct reclaim, and OOM kills. */

/* ___GFP_MOVABLE and ___GFP_DIRECT_RECLAIM: user pages, and allocations that may sleep. Interrupts on the thread use
 * neither. */
#define GFP_OF_A_TASK (0x08 | 0x400)

SEC("tp_btf/mm_page_alloc")
int BPF_PROG(page_alloc, struct page *page, unsigned int order, unsigned int flags)
{
	__u64 found = 0;
	struct proc *proc;
	__u32 proc_id;

	COUNT_RUN(PAGE_ALLOC);
	proc_id = current_proc_id();
	if (!proc_id || !(flags & GFP_OF_A_TASK))
		return 0;
	/* Null if there was none. Read as a number: some kernels' verifiers assume that a typed pointer is non-null. */
	bpf_probe_read_kernel(&found, sizeof(found), ctx);
	if (!found)
		return 0;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->measures.page_alloc_bytes, (__u64)settings.page_bytes << (order & 31));
	return 0;
}

static __always_inline struct thread *current_thread(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (!maybe_tracked(tgid))
		return 0;
	return tracked_thread(bpf_get_current_task_btf(), tgid);
}

static __noinline int begin_reclaim(void)
{
	struct thread *thread;

	COUNT_RUN(MEMORY);
	thread = current_thread();
	if (!thread)
		return 0;
	thread->reclaim_since_ns = 0;
	thread->reclaim_offcpu_ns = *(volatile __u64 *)&thread->offcpu_total_ns;
	thread->reclaim_since_ns = bpf_ktime_get_ns();
	return 0;
}

/* A thread that frees memory for its own page runs in the kernel, but not for its program: it waits for the page. Time of
 * workers stays as it is: what they compute and read decides what is advised. Nothing is charged where a switch-in was not
 * seen: how long it ran is not known. */
static __always_inline void charge_reclaim(struct thread *thread, __u64 since, __u64 now)
{
	__u64 offcpu = *(volatile __u64 *)&thread->offcpu_total_ns - thread->reclaim_offcpu_ns;
	__u32 phase = thread->phase;
	__u64 ran = now - since;

	if (thread->role != ROLE_DISPATCHER || thread->off_since_ns || offcpu >= ran)
		return;
	if (!thread->account_since_ns || thread->account_since_ns > since)
		return;
	ran -= offcpu;
	account_add(thread, phase, STATE_RUNNING, -ran);
	account_add(thread, phase, STATE_OFF(REASON_PAGE_FAULT), ran);
}

static __noinline int end_reclaim(void)
{
	__u64 now, since;
	struct thread *thread;
	struct proc *proc;
	__u32 proc_id;

	COUNT_RUN(MEMORY);
	thread = current_thread();
	if (!thread)
		return 0;
	since = thread->reclaim_since_ns;
	thread->reclaim_since_ns = 0;
	if (!since)
		return 0;
	now = bpf_ktime_get_ns();
	if (now < since) {
		count_self(SELF_CLOCK_UNDERFLOW);
		return 0;
	}
	charge_reclaim(thread, since, now);
	proc_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->measures.direct_reclaim, now - since);
	if (is_recording())
		record_plain(EVENT_RECLAIM, proc_id, bpf_get_current_pid_tgid(), since, now - since);
	return 0;
}

/* Global memory pressure. */
SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(reclaim_begin)
{
	return begin_reclaim();
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(reclaim_end)
{
	return end_reclaim();
}

/* Memory pressure in the cgroup: over memory.high or at memory.max. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(memcg_begin)
{
	return begin_reclaim();
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(memcg_end)
{
	return end_reclaim();
}

/* Several threads of the victim may be marked, but the process is killed once. */
SEC("tp_btf/mark_victim")
int oom_victim(__u64 *ctx)
{
	__u32 tgid;
	__u32 *proc_id;
	struct proc *proc;

	COUNT_RUN(MEMORY);
	if (settings.victim_is_task)
		tgid = BPF_CORE_READ((struct task_struct *)ctx[0], tgid);
	else
		tgid = ctx[0];
	if (!maybe_tracked(tgid))
		return 0;
	proc_id = bpf_map_lookup_elem(&tracked, &tgid);
	if (!proc_id)
		return 0;
	proc = bpf_map_lookup_elem(&procs, proc_id);
	if (!proc || proc->measures.oom_kills)
		return 0;
	proc->measures.oom_kills = 1;
	if (is_recording())
		record_plain(EVENT_OOM_KILL, *proc_id, 0, bpf_ktime_get_ns(), 0);
	return 0;
}
