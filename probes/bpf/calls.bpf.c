// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Entry to and return from traced calls.
 *
 * The attach cookie carries the op and the link.
 *
 * These programs can be preempted anywhere, on fully preemptible kernels between any two instructions, and sched_switch
 * then runs on the very record in hand. That is safe because the fields are split by writer: `struct thread` of
 * `record.rs` lists those of these programs, and `.ci/check-writers` checks that. Off-CPU totals and `intervals` are
 * read here, and written only for an interval whose end was not reported (`recover_missed_switch_in`). Totals and clock
 * are read as one by retrying while `intervals` moves. No per-CPU scratch is used, and no function has 64 bytes of BPF
 * stack or more: kernels >= 6.13 put such frames on a per-CPU stack, which preemption corrupts. The kernel rounds up to
 * 16 and looks at each function alone, hence the functions that are not inlined. */

/* Makes the calling thread, with or without a record, a dispatcher; false if it is not observed. */
VERIFIED_ONCE int make_dispatcher(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	struct proc *proc;
	__u32 tgid, proc_id;
	__u32 *known;

	tgid = bpf_get_current_pid_tgid() >> 32;
	if (tgid == settings.own_tgid && !watch.calibrates)
		return false;
	known = bpf_map_lookup_elem(&tracked, &tgid);
	proc_id = known ? *known : track_process(BPF_CORE_READ(task, group_leader), tgid, 0, EVENT_SEEN);
	if (!proc_id)
		return false;
	/* A record of another process is from before an exec. */
	if (!thread || thread->proc_id != proc_id)
		thread = track_thread(task, tgid, proc_id, ROLE_DISPATCHER);
	if (!thread) {
		count_self(SELF_NO_RECORD);
		return false;
	}
	/* A worker's previous time is in its own account. */
	if (thread->role == ROLE_WORKER)
		thread->account_since_ns = 0;
	thread->role = ROLE_DISPATCHER;
	open_account(thread);
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc && !proc->dispatches) {
		proc->dispatches = 1;
		__sync_fetch_and_add(&new_dispatchers, 1);
	}
	return true;
}

/* The record of the calling thread, which becomes a dispatcher. */
static __always_inline struct thread *dispatcher(struct task_struct *task)
{
	struct thread *thread = thread_of(task);

	if (thread && thread->proc_id && thread->role == ROLE_DISPATCHER)
		return thread;
	return make_dispatcher() ? thread_of(task) : 0;
}

/* An outermost call begins: the thread leaves host code, and a launch ends the current launch gap, unless launches may
 * have been missed in it. */
static __always_inline void enter_phase(struct thread *thread, const volatile struct op_info *info, __u64 now,
					__u64 offcpu)
{
	__u64 launched = thread->launched_ns;

	change_phase(thread, info->phase, now, offcpu);
	if (info->is_launch && launched && now >= launched && thread->launched_turn == thread->mode.turn)
		hist_add_call(thread, HIST_LAUNCH_GAP, 0, 0, now - launched);
}

/* An outermost call has returned. */
static __always_inline void leave_phase(struct thread *thread, const volatile struct op_info *info, __u64 now,
					__u64 offcpu)
{
	change_phase(thread, PHASE_HOST, now, offcpu);
	if (info->is_launch) {
		thread->launched_ns = now;
		thread->launched_turn = thread->mode.turn;
	}
}

/* Returns true if a call's arguments are read: those of outermost calls, and names of kernels that NCCL asks for, since
 * it launches them itself. Names that the runtime asks the driver for would only fill the map. */
static __noinline bool has_arguments(struct thread *thread, struct frame *frame, const volatile struct op_info *info)
{
	const struct frame *below;

	if (!thread->depth)
		return true;
	frame->pointer = 0;
	below = frame_at(thread, thread->depth - 1);
	return info->role >= ARGS_KERNEL_NAME && op_info[below->op & (MAX_OPS - 1)].phase == PHASE_NCCL;
}

/* Fills in the frame of a call, the clock last. Returns the matching off-CPU time. */
static __always_inline __u64 open_frame(struct bpf_user_pt_regs_t *ctx, struct thread *thread, struct frame *frame)
{
	const volatile struct op_info *info = &op_info[frame->op & (MAX_OPS - 1)];
	__u64 offcpu = 0;

	frame->function = info->function_arg && !is_in_launch(thread) ? function_of(ctx, info) : 0;
	frame->cold = frame->function && is_cold(thread, frame);
	if (!frame->cold && thread->depth)
		frame->cold = frame_at(thread, thread->depth - 1)->cold;
	if (info->role && has_arguments(thread, frame, info))
		read_arguments(ctx, frame, thread->proc_id);
#pragma clang loop unroll(disable)
	for (int try = 0; try < MAX_READ_TRIES; try++) {
		__u32 intervals = *(volatile __u32 *)&thread->intervals;

		/* The frame's previous call may have left a stale copy. */
		if (frame->intervals != intervals)
			__builtin_memcpy(frame->offcpu_at_entry_ns, thread->offcpu_ns,
					 sizeof(frame->offcpu_at_entry_ns));
		frame->intervals = intervals;
		offcpu = *(volatile __u64 *)&thread->offcpu_total_ns;
		frame->start_ns = bpf_ktime_get_ns();
		if (*(volatile __u32 *)&thread->intervals == frame->intervals)
			break;
	}
	return offcpu;
}

/* Ends open calls that were unwound. Returns false when the new call must have no return probe, or its hit is a
 * duplicate. */
VERIFIED_ONCE int begin_nested(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie)
{
	__u64 stack = stack_at_entry(ctx, cookie);
	__u32 op = op_of(cookie), link = link_of(cookie);

	if (!thread)
		return false;
	drop_truncated(thread);
	if (cookie & ONE_LINK && is_on_other_stack(thread, stack)) {
		count_on_other_stack(ctx, thread, op, link);
		return false;
	}
	if (drop_unwound(thread, stack, op, link))
		return true;
	count_self(SELF_DUPLICATE_HIT);
	return false;
}

/* Returns false when the return need not be reported. `began` is the time of the hit, or 0. */
static __noinline bool enter(struct bpf_user_pt_regs_t *ctx, struct task_struct *task, __u64 cookie, __u64 began)
{
	__u32 op = op_of(cookie), link = link_of(cookie), class;
	struct thread *thread;
	struct frame *frame;
	__u64 offcpu;

	if (watch.paused)
		return false;
	/* A probe takes its time until the kernel has removed it. */
	if (closed_links[link & (MAX_LINKS - 1)]) {
		leave_unobserved(thread_of(task));
		return false;
	}
	thread = dispatcher(task);
	if (!thread)
		return false;
	class = load_class(op);
	if (began)
		note_coldness(thread, began);
	if (cookie & SINGLE_STEPPED)
		charge_step(thread, class);
	if (!is_observed(thread, class)) {
		/* In a pause it is no call of the time that is observed. Probes that are about to go are no load of the step. */
		if (thread->mode.turn & 1 || thread->mode.driver_only == DRIVER_ONLY_BEGINS)
			leave_unobserved(thread);
		else
			leave_at_entry(thread, LOAD_NESTED);
		/* A new launch: what it calls in the driver counts by itself. */
		if (class == LOAD_RUNTIME)
			thread->counted_stack = 0;
		return false;
	}
	if (thread->off_since_ns)
		recover_missed_switch_in(thread, bpf_ktime_get_ns());
	if ((thread->depth || newest_pending(task)) && !begin_nested(ctx, thread, cookie))
		return false;
	if (!begin_call(ctx, thread, cookie, class))
		return false;
	if (thread->depth >= MAX_DEPTH) {
		count_self(SELF_TOO_DEEP);
		return false;
	}
	frame = frame_at(thread, thread->depth);
	frame->stack = stack_at_entry(ctx, cookie);
	frame->op = op;
	frame->link = link;
	frame->tail_called = 0;
	frame->nested = thread->depth != 0;
	offcpu = open_frame(ctx, thread, frame);
	if (!thread->depth)
		enter_phase(thread, &op_info[op & (MAX_OPS - 1)], frame->start_ns, offcpu);
	barrier();
	thread->depth++;
	return true;
}

/* With separate entry and return links, calls that were left at entry also report returns. */
VERIFIED_ONCE int count_unmatched(__u64 cookie)
{
	if (cookie == ANY_CALL || load_class(op_of(cookie)) == LOAD_WAIT)
		count_self(SELF_UNMATCHED);
	return 0;
}

static __noinline void leave(struct bpf_user_pt_regs_t *ctx, struct task_struct *task, __u64 cookie)
{
	struct thread *thread = thread_of(task);
	const volatile struct op_info *info;
	struct frame *frame, *below;
	__u32 code;
	__u64 ns;

	if (!thread || !thread->proc_id) {
		count_unmatched(cookie);
		return;
	}
	if (thread->off_since_ns)
		recover_missed_switch_in(thread, bpf_ktime_get_ns());
	frame = matching_frame(thread, PT_REGS_SP(ctx) - settings.return_pop, cookie);
	if (!frame) {
		count_unmatched(cookie);
		return;
	}
	/* Or the compiler derives the address of each field by itself, and keeps them on the stack. */
	barrier_var(frame);
	info = &op_info[frame->op & (MAX_OPS - 1)];
	ns = end_call(thread, frame);
	if (thread->depth == 1)
		leave_phase(thread, info, frame->end_ns, ns);
	ns = record_call(thread, frame);
	code = PT_REGS_RC(ctx);
	if (code || frame->cold || info->role)
		record_result(thread, frame, code, ns);
	if (is_recording())
		record_call_event(ctx, thread, frame);
	barrier();
	thread->depth--;
	if (!thread->depth)
		return;
	/* A call that made this one by a tail call returns now as well. */
	below = frame_at(thread, thread->depth - 1);
	if (below->stack == frame->stack)
		below->tail_called = 1;
}

/* Entry and return by one program and link. Returning 1 at entry skips the return probe. */
SEC("uprobe.session")
int call_session(struct bpf_user_pt_regs_t *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct bpf_uprobe_multi_run_ctx *run = session_run(task);
	__u64 began;

	if (is_return(ctx, run)) {
		leave(ctx, task, ANY_CALL);
		return 0;
	}
	began = count_call();
	return !enter(ctx, task, cookie_of(ctx, run) | ONE_LINK, began);
}

/* For kernels >= 6.6: two links per library. */
SEC("uprobe.multi")
int call_enter_multi(struct bpf_user_pt_regs_t *ctx)
{
	__u64 began = count_call();

	enter(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx), began);
	return 0;
}

SEC("uretprobe.multi")
int call_leave_multi(struct bpf_user_pt_regs_t *ctx)
{
	leave(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}

/* For kernels < 6.6: two links per symbol. */
SEC("uprobe")
int call_enter_perf(struct bpf_user_pt_regs_t *ctx)
{
	__u64 began = count_call();

	enter(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx), began);
	return 0;
}

SEC("uretprobe")
int call_leave_perf(struct bpf_user_pt_regs_t *ctx)
{
	leave(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}
