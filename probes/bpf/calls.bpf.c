// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Entry to and return from traced calls.
 *
 * The attach cookie carries the op and the link. A thread's open calls lie on a small stack in its record, told apart by
 * the stack pointer: when a call enters at or above the stack pointer of an open one, that one was unwound (longjmp,
 * exception) and is abandoned without a duration.
 *
 * These programs can be preempted anywhere, on fully preemptible kernels between any two instructions, and sched_switch
 * then runs on the very record in hand. That is safe because the fields are split by writer: off-CPU totals and
 * `intervals` are read here and never written, `depth` and `frames` are written here and never by the scheduler
 * programs. Totals and clock are read as one by retrying while `intervals` moves. No per-CPU scratch is used, and no
 * function has 64 bytes of BPF stack or more: kernels >= 6.13 put such frames on a per-CPU stack, which preemption
 * corrupts. The kernel rounds up to 16 and looks at each function alone, hence the functions that are not inlined. */

#define MAX_READ_TRIES 4

/* In place of a cookie: the place on the stack is enough. */
#define ANY_CALL (~0ULL)

static __always_inline __u16 op_of(__u64 cookie)
{
	return cookie & 0xffff;
}

static __always_inline __u16 link_of(__u64 cookie)
{
	return cookie >> 16;
}

static __always_inline struct frame *frame_at(struct thread *thread, __u32 index)
{
	return &thread->frames[index & (MAX_DEPTH - 1)];
}

static __always_inline __u32 depth_of(const struct thread *thread)
{
	__u32 depth = thread->depth;

	return depth <= MAX_DEPTH ? depth : MAX_DEPTH;
}

/* Whether what the outermost call was to free is gone, nobody knows: until its address is given out again it is not. Inline,
 * as no more than eight calls may be within one another. */
static __always_inline void abandon_release(struct thread *thread)
{
	struct frame *frame = frame_at(thread, 0);

	if (op_info[frame->op & (MAX_OPS - 1)].role == ARGS_FREE)
		book_release(thread->proc_id, frame, 1);
}

/* Counts the calls that a thread leaves without returning from. */
static __noinline void abandon(struct thread *thread, __u32 depth)
{
	__u32 proc_id = thread->proc_id;
	__u32 calls = thread->depth - depth;
	struct proc *proc;

	if (!depth)
		abandon_release(thread);
	thread->depth = depth;
	count_self_by(SELF_ABANDONED, calls);
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->abandoned_calls, calls);
}

/* Makes the calling thread, which has this record or none, a dispatcher. */
static __noinline struct thread *make_dispatcher(struct thread *thread)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct proc *proc;
	__u32 tgid, proc_id;
	__u32 *known;

	tgid = bpf_get_current_pid_tgid() >> 32;
	if (tgid == settings.own_tgid && !watch.calibrates)
		return 0;
	known = bpf_map_lookup_elem(&tracked, &tgid);
	proc_id = known ? *known : track_process(BPF_CORE_READ(task, group_leader), tgid, 0, EVENT_SEEN);
	if (!proc_id)
		return 0;
	/* A record of another process is one from before the thread ran another program. */
	if (!thread || thread->proc_id != proc_id)
		thread = track_thread(task, tgid, proc_id, ROLE_DISPATCHER);
	if (!thread)
		return 0;
	/* What a worker did before was in an account of its own. */
	if (thread->role == ROLE_WORKER)
		thread->account_since_ns = 0;
	thread->role = ROLE_DISPATCHER;
	open_account(thread);
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc && !proc->dispatches) {
		proc->dispatches = 1;
		__sync_fetch_and_add(&new_dispatchers, 1);
	}
	return thread;
}

/* The record of the calling thread, which becomes a dispatcher. */
static __always_inline struct thread *dispatcher(struct task_struct *task)
{
	struct thread *thread = thread_of(task);

	if (thread && thread->proc_id && thread->role == ROLE_DISPATCHER)
		return thread;
	return make_dispatcher(thread);
}

/* Drops calls whose return nobody sees, and those within them; launches are counted all the same. */
static __noinline void drop_cut(struct thread *thread)
{
	__u32 depth = depth_of(thread);

	for (__u32 i = 0; i < MAX_DEPTH && i < depth; i++) {
		if (!is_cut(frame_at(thread, i)))
			continue;
		count_self_by(SELF_CUT, depth - i);
		thread->depth = i;
		if (!i && is_launch_class(frame_at(thread, 0)->op))
			bytes_add(thread->proc_id, BYTES_UNTIMED_LAUNCHES, frame_at(thread, 0)->op, 1);
		return;
	}
}

/* Reports a batch of launches, and the load of the thread as that of its process when no other launched more in this window. */
static __noinline void report_load(struct thread *thread, __u32 window)
{
	__u32 proc_id = thread->proc_id;
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);
	const struct load *own = &thread->load;

	if (!proc)
		return;
	__sync_fetch_and_add(&proc->launches, HIT_BATCH);
	if (proc->load_window == window &&
	    proc->load.runtime + proc->load.driver + proc->load.untimed > own->runtime + own->driver + own->untimed)
		return;
	proc->load_window = window;
	__builtin_memcpy(&proc->load, own, sizeof(proc->load));
}

/* The load of the thread in the present window. */
static __always_inline struct load *load_of(struct thread *thread)
{
	__u32 window = watch.window;

	if (thread->hit_window != window) {
		thread->hit_window = window;
		__builtin_memset(&thread->load, 0, sizeof(thread->load));
	}
	return &thread->load;
}

/* Counts an outermost launch. Threads that are as busy do not fight for the record of their process. */
static __always_inline void count_launch(struct thread *thread)
{
	if (++thread->launches % HIT_BATCH == 0)
		report_load(thread, watch.window);
}

/* Copies how launches of the process are to be observed. */
static __noinline void copy_mode(struct thread *thread)
{
	__u32 proc_id = thread->proc_id, modes = watch.modes;
	struct launch_mode *mode = bpf_map_lookup_elem(&launch_modes, &proc_id);

	if (mode)
		thread->mode = *mode;
	else
		__builtin_memset(&thread->mode, 0, sizeof(thread->mode));
	if (watch.calibrates == CALIBRATE_COUNTED)
		thread->mode.sample_every = ~0U;
	thread->modes = modes;
}

/* Whether a launch by this op is to be counted by its own probes. */
static __always_inline bool is_observed(struct thread *thread, __u32 op)
{
	if (thread->modes != watch.modes)
		copy_mode(thread);
	if (thread->mode.turn & 1)
		return false;
	return !thread->mode.driver_only || op_info[op & (MAX_OPS - 1)].api != API_RUNTIME;
}

/* Abandons calls that were unwound: those that began deeper on the stack than this one. Returns false when this is the second
 * report of a call, through another mount of the same file. A call of another op at the same place on the stack is a tail
 * call from the open one, which then returns together with it; if it has not, it was unwound. */
static __always_inline bool drop_unwound(struct thread *thread, __u64 stack, __u32 op, __u32 link)
{
	__u32 depth = depth_of(thread);

	for (int i = 0; i < MAX_DEPTH && depth; i++) {
		struct frame *top = frame_at(thread, depth - 1);

		if (top->stack > stack)
			break;
		if (top->stack == stack && top->op == op && top->link != link && !is_cut(top))
			return false;
		if (top->stack == stack && top->op != op && !top->overtaken)
			break;
		depth--;
	}
	if (depth != thread->depth)
		abandon(thread, depth);
	return true;
}

/* The outermost call begins: the thread leaves its own code, and when it launches, the gap since the last launch ends. There
 * is none when launches may have gone unseen in between. */
static __always_inline void enter_phase(struct thread *thread, const volatile struct op_info *info, __u64 now,
					__u64 offcpu)
{
	__u64 launched = thread->launched_ns;

	change_phase(thread, info->phase, now, offcpu);
	if (info->is_launch && launched && now >= launched && thread->launched_turn == thread->mode.turn)
		hist_add_call(thread, HIST_LAUNCH_GAP, 0, 0, now - launched);
}

/* The outermost call has returned. */
static __always_inline void leave_phase(struct thread *thread, const volatile struct op_info *info, __u64 now,
					__u64 offcpu)
{
	change_phase(thread, PHASE_HOST, now, offcpu);
	if (info->is_launch) {
		thread->launched_ns = now;
		thread->launched_turn = thread->mode.turn;
	}
}

/* Whether the call that begins is part of a launch: the driver's part in one of the runtime. */
static __always_inline bool is_in_launch(struct thread *thread)
{
	return thread->depth && op_info[frame_at(thread, thread->depth - 1)->op & (MAX_OPS - 1)].function_arg;
}

/* Whether the arguments of a call that begins are read: those of outermost calls, and the names of kernels that NCCL asks
 * for, as it launches them itself. What the runtime asks the driver for would fill the map for nothing. */
static __noinline bool has_arguments(struct thread *thread, struct frame *frame, const volatile struct op_info *info)
{
	const struct frame *below;

	if (!thread->depth)
		return true;
	frame->pointer = 0;
	below = frame_at(thread, thread->depth - 1);
	return info->role >= ARGS_KERNEL_NAME && op_info[below->op & (MAX_OPS - 1)].phase == PHASE_NCCL;
}

/* Which function a launch is of. */
static __always_inline __u64 function_of(struct pt_regs *ctx, const volatile struct op_info *info)
{
	__u64 first = PT_REGS_PARM1(ctx), second = PT_REGS_PARM2(ctx);
	__u32 place = info->function_arg;

	barrier_var(first);
	barrier_var(second);
	if (place == 1)
		return first;
	if (place == 2)
		return second;
	return argument(ctx, place);
}

/* Fills in the frame of a call that begins, the clock last. Returns the off-CPU time that goes with it. */
static __always_inline __u64 open_frame(struct pt_regs *ctx, struct thread *thread, struct frame *frame)
{
	const volatile struct op_info *info = &op_info[frame->op & (MAX_OPS - 1)];
	__u64 offcpu = 0;

	frame->function = info->function_arg && !is_in_launch(thread) ? function_of(ctx, info) : 0;
	frame->cold = frame->function && is_cold(thread, frame);
	if (!frame->cold && thread->depth)
		frame->cold = frame_at(thread, thread->depth - 1)->cold;
	if (info->role && has_arguments(thread, frame, info))
		read_arguments(ctx, info, frame, thread->proc_id);
#pragma clang loop unroll(disable)
	for (int try = 0; try < MAX_READ_TRIES; try++) {
		__u32 intervals = *(volatile __u32 *)&thread->intervals;

		/* The call that had the frame before may have left a copy that still holds. */
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

/* A launch within another call is part of that. A kernel that no launch of the outer call names, as NCCL's, is counted by name. */
static __noinline void count_nested_launch(struct pt_regs *ctx, struct thread *thread, __u32 op)
{
	struct frame *unused = frame_at(thread, thread->depth);

	count_self(SELF_LEFT_AT_ENTRY);
	if (is_in_launch(thread)) {
		load_of(thread)->nested++;
		return;
	}
	load_of(thread)->others++;
	if (thread->depth >= MAX_DEPTH)
		return;
	unused->function = argument(ctx, op_info[op & (MAX_OPS - 1)].function_arg);
	if (unused->function && is_cold(thread, unused))
		mark_loaded(thread->proc_id, unused->function);
}

/* The gap since the last launch that was timed ends here; when this one returns, nobody sees. */
static __noinline void end_gap(struct thread *thread)
{
	__u64 launched = thread->launched_ns, now;

	thread->launched_ns = 0;
	now = bpf_ktime_get_ns();
	if (now >= launched && thread->launched_turn == thread->mode.turn)
		hist_add(thread->proc_id, HIST_LAUNCH_GAP, 0, 0, now - launched);
}

/* Counts an outermost launch that need not be timed, and returns false for those that must: one in so many, and those that may load
 * their kernel. The first frame is unused meanwhile, and keeps where the last such launch was made. */
static __noinline bool count_untimed(struct pt_regs *ctx, struct thread *thread, __u32 op, __u32 link)
{
	struct frame *unused = frame_at(thread, 0);
	__u8 argument_of_function = op_info[op & (MAX_OPS - 1)].function_arg;
	struct kernel *kernel = 0;

	/* A second report of the same launch, through another mount of the same file. */
	if (thread->untimed_in_a_row && unused->stack == PT_REGS_SP(ctx) && unused->op == op && unused->link != link &&
	    !closed_links[unused->link & (MAX_LINKS - 1)]) {
		count_self(SELF_DUPLICATE_HIT);
		return true;
	}
	if (argument_of_function) {
		struct kernel_key key = { .function = argument(ctx, argument_of_function), .proc_id = thread->proc_id };

		kernel = bpf_map_lookup_elem(&kernels, &key);
	}
	if (thread->untimed_in_a_row + 1 >= thread->mode.sample_every ||
	    (kernel ? !kernel->loaded : may_remember_kernel(thread->proc_id))) {
		thread->untimed_in_a_row = 0;
		return false;
	}
	thread->untimed_in_a_row++;
	if (kernel)
		__sync_fetch_and_add(&kernel->launches, 1);
	else
		count_other_launch(thread->proc_id);
	unused->stack = PT_REGS_SP(ctx);
	unused->op = op;
	unused->link = link;
	load_of(thread)->untimed++;
	count_launch(thread);
	count_self(SELF_LEFT_AT_ENTRY);
	bytes_add(thread->proc_id, BYTES_UNTIMED_LAUNCHES, op, 1);
	if (thread->launched_ns)
		end_gap(thread);
	return true;
}

/* Counts the hit of a launch within another call. Returns false when nothing of it is left to be observed. */
static __noinline bool begin_nested_launch(struct pt_regs *ctx, struct thread *thread, __u32 op)
{
	if (!settings.nested_launches) {
		count_nested_launch(ctx, thread, op);
		return false;
	}
	load_of(thread)->others++;
	return true;
}

/* Counts the hit of a launch. Returns false when nothing of it is left to be observed. */
static __always_inline bool begin_launch(struct pt_regs *ctx, struct thread *thread, __u32 op, __u32 link)
{
	struct load *load;

	if (thread->depth)
		return begin_nested_launch(ctx, thread, op);
	if (thread->mode.sample_every > 1 && count_untimed(ctx, thread, op, link))
		return false;
	load = load_of(thread);
	if (op_info[op & (MAX_OPS - 1)].api == API_RUNTIME)
		load->runtime++;
	else
		load->driver++;
	count_launch(thread);
	return true;
}

/* Ends open calls that were unwound. Returns false when the call that begins is one that must have no return probe, or whose hit
 * is the second one. */
static __noinline bool begin_nested(struct pt_regs *ctx, struct thread *thread, __u32 op, __u32 link)
{
	drop_cut(thread);
	if (is_on_other_stack(thread, PT_REGS_SP(ctx))) {
		count_on_other_stack(ctx, thread, op, link);
		return false;
	}
	if (drop_unwound(thread, PT_REGS_SP(ctx), op, link))
		return true;
	count_self(SELF_DUPLICATE_HIT);
	return false;
}

/* Returns false when the return need not be reported. */
static __noinline bool enter(struct pt_regs *ctx, struct task_struct *task, __u64 cookie)
{
	__u32 op = op_of(cookie), link = link_of(cookie);
	struct thread *thread;
	struct frame *frame;
	__u64 offcpu;

	if (watch.paused || closed_links[link & (MAX_LINKS - 1)])
		return false;
	thread = dispatcher(task);
	if (!thread)
		return false;
	if (is_launch_class(op) && !is_observed(thread, op)) {
		count_self(SELF_LEFT_AT_ENTRY);
		return false;
	}
	if (thread->off_since_ns)
		mend_arrival(thread, task, bpf_ktime_get_ns());
	if ((thread->depth || newest_pending(task)) && !begin_nested(ctx, thread, op, link))
		return false;
	if (!is_launch_class(op))
		load_of(thread)->others++;
	else if (!begin_launch(ctx, thread, op, link))
		return false;
	if (thread->depth >= MAX_DEPTH) {
		count_self(SELF_TOO_DEEP);
		return false;
	}
	frame = frame_at(thread, thread->depth);
	frame->stack = PT_REGS_SP(ctx);
	frame->op = op;
	frame->link = link;
	frame->overtaken = 0;
	frame->nested = thread->depth != 0;
	offcpu = open_frame(ctx, thread, frame);
	if (!thread->depth)
		enter_phase(thread, &op_info[op & (MAX_OPS - 1)], frame->start_ns, offcpu);
	barrier();
	thread->depth++;
	return true;
}

/* Where entry and return are one link, returns come only for calls whose entry asked for them, and the place on the stack tells
 * which. */
static __always_inline bool is_frame_of(const struct frame *frame, __u64 stack, __u64 cookie)
{
	return frame->stack == stack &&
	       (cookie == ANY_CALL || (frame->link == link_of(cookie) && frame->op == op_of(cookie)));
}

/* A frame below the innermost, with the calls above it abandoned; null for calls without an entry. */
static __noinline struct frame *outer_frame(struct thread *thread, __u64 stack, __u64 cookie)
{
	__u32 depth = depth_of(thread);

	for (int i = 0; i < MAX_DEPTH && depth; i++) {
		struct frame *frame = frame_at(thread, depth - 1);

		if (frame->stack > stack)
			break;
		if (is_frame_of(frame, stack, cookie)) {
			abandon(thread, depth);
			return frame;
		}
		depth--;
	}
	return 0;
}

/* The frame that this return belongs to. */
static __always_inline struct frame *matching_frame(struct thread *thread, __u64 stack, __u64 cookie)
{
	struct frame *innermost = frame_at(thread, thread->depth - 1);

	if (thread->depth && is_frame_of(innermost, stack, cookie))
		return innermost;
	return outer_frame(thread, stack, cookie);
}

static __always_inline __u16 call_flags(const struct frame *frame)
{
	return (frame->cold ? CALL_COLD : 0) | (frame->nested ? CALL_NESTED : 0);
}

static __noinline void count_stall(const struct thread *thread, const struct frame *frame)
{
	struct call_key key = { .proc_id = thread->proc_id, .op = frame->op, .flags = call_flags(frame) };
	struct stall *stall = bpf_map_lookup_elem(&stalls, &key);

	if (!stall) {
		bpf_map_update_elem(&stalls, &key, &zero_stall, BPF_NOEXIST);
		stall = bpf_map_lookup_elem(&stalls, &key);
		if (!stall) {
			count_self(SELF_FULL_STALLS);
			return;
		}
	}
	__sync_fetch_and_add(&stall->calls, 1);
	for (int reason = 0; reason < REASONS; reason++) {
		__u64 ns = thread->offcpu_at_return_ns[reason] - frame->offcpu_at_entry_ns[reason];

		if (ns)
			__sync_fetch_and_add(&stall->offcpu_ns[reason], ns);
	}
}

static __noinline void count_error(const struct thread *thread, __u16 op, __u32 code)
{
	struct error_key key = { .proc_id = thread->proc_id, .op = op, .code = code };
	__u64 *count = bpf_map_lookup_elem(&errors, &key);

	if (!count) {
		bpf_map_update_elem(&errors, &key, &zero_u64, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&errors, &key);
		if (!count) {
			count_self(SELF_FULL_ERRORS);
			return;
		}
	}
	__sync_fetch_and_add(count, 1);
}

/* Returns how long the call took. */
static __always_inline __u64 record_call(struct thread *thread, struct frame *frame)
{
	__u16 flags = call_flags(frame) | (frame->stalled ? CALL_STALLED : 0);
	__u64 ns = frame->end_ns - frame->start_ns;
	__u32 slot;

	if (frame->end_ns < frame->start_ns) {
		count_self(SELF_CLOCK_UNDERFLOW);
		ns = 0;
	}
	slot = hist_add_call(thread, HIST_CALL, frame->op, flags, ns);
	if (frame->kind && !frame->cold && frame->function && op_info[frame->op & (MAX_OPS - 1)].function_arg)
		kernel_hist_add(thread, frame->kind, slot, ns);
	return ns;
}

/* Books what few calls have: a result that is an error, a kernel that is now loaded, a name, arguments. */
static __noinline void book_result(struct thread *thread, struct frame *frame, __u32 code, __u64 ns)
{
	const volatile struct op_info *info = &op_info[frame->op & (MAX_OPS - 1)];

	/* What goes on after the call, as NCCL says of communicators that do not block, is no failure. */
	if (code == info->pending_code)
		code = 0;
	if (code)
		count_error(thread, frame->op, code);
	if (info->function_arg && frame->function && frame->cold)
		mark_loaded(thread->proc_id, frame->function);
	if (!code && info->role >= ARGS_KERNEL_NAME)
		book_kernel_name(thread->proc_id, info, frame);
	if (info->role && thread->depth == 1)
		book_arguments(thread->proc_id, info, frame, ns, code);
}

/* Notes in its frame when the call ended and whether it was off the CPU, and books that. Returns the off-CPU time until then. */
static __always_inline __u64 end_call(struct thread *thread, struct frame *frame)
{
	__u32 intervals;
	__u64 offcpu = 0;

#pragma clang loop unroll(disable)
	for (int try = 0; try < MAX_READ_TRIES; try++) {
		intervals = *(volatile __u32 *)&thread->intervals;
		offcpu = *(volatile __u64 *)&thread->offcpu_total_ns;
		frame->stalled = intervals != frame->intervals;
		if (frame->stalled)
			__builtin_memcpy(thread->offcpu_at_return_ns, thread->offcpu_ns, sizeof(thread->offcpu_ns));
		frame->end_ns = bpf_ktime_get_ns();
		if (*(volatile __u32 *)&thread->intervals == intervals)
			break;
	}
	if (frame->stalled)
		count_stall(thread, frame);
	return offcpu;
}

/* Where entry and return are two links, launches return that were left at entry. */
static __noinline void count_unmatched(__u64 cookie)
{
	if (cookie == ANY_CALL || !is_launch_class(op_of(cookie)))
		count_self(SELF_UNMATCHED);
}

static __noinline void leave(struct pt_regs *ctx, struct task_struct *task, __u64 cookie)
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
		mend_arrival(thread, task, bpf_ktime_get_ns());
	frame = matching_frame(thread, PT_REGS_SP(ctx) - settings.return_pop, cookie);
	if (!frame) {
		count_unmatched(cookie);
		return;
	}
	info = &op_info[frame->op & (MAX_OPS - 1)];
	ns = end_call(thread, frame);
	if (thread->depth == 1)
		leave_phase(thread, info, frame->end_ns, ns);
	ns = record_call(thread, frame);
	code = PT_REGS_RC(ctx);
	if (code || frame->cold || info->role)
		book_result(thread, frame, code, ns);
	if (is_recording())
		tell_call(ctx, thread, frame);
	barrier();
	thread->depth--;
	if (!thread->depth)
		return;
	/* A call that made this one by a tail call returns now as well, and never later. */
	below = frame_at(thread, thread->depth - 1);
	if (below->stack == frame->stack)
		below->overtaken = 1;
}

/* Entry and return by one program and one link. Returning 1 from entry spares the return probe. */
SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct bpf_uprobe_multi_run_ctx *run = session_run(task);

	if (is_return(ctx, run)) {
		leave(ctx, task, ANY_CALL);
		return 0;
	}
	count_call();
	return !enter(ctx, task, cookie_of(ctx, run));
}

/* For kernels >= 6.6: two links a library. */
SEC("uprobe.multi")
int call_enter_multi(struct pt_regs *ctx)
{
	count_call();
	enter(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe.multi")
int call_leave_multi(struct pt_regs *ctx)
{
	leave(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}

/* For kernels < 6.6: two links a symbol. */
SEC("uprobe")
int call_enter_perf(struct pt_regs *ctx)
{
	count_call();
	enter(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe")
int call_leave_perf(struct pt_regs *ctx)
{
	leave(ctx, bpf_get_current_task_btf(), bpf_get_attach_cookie(ctx));
	return 0;
}
