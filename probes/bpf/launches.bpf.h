/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Counts outermost launches of every layer, and times those that the budget allows. */
#pragma once

/* Reports a batch of launches, and the thread's load as that of its process if it is the busiest in this window. */
VERIFIED_ONCE int report_load(struct thread *thread, __u32 window)
{
	const struct load *own;
	struct proc *proc;
	__u32 proc_id;

	if (!thread)
		return 0;
	proc_id = thread->proc_id;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (!proc)
		return 0;
	own = &thread->load;
	__sync_fetch_and_add(&proc->launches, HIT_BATCH);
	if (proc->load_window == window &&
	    proc->load.runtime + proc->load.driver + proc->load.untimed > own->runtime + own->driver + own->untimed)
		return 0;
	proc->load_window = window;
	__builtin_memcpy(&proc->load, own, sizeof(proc->load));
	return 0;
}

/* The thread's load in the current window. */
static __always_inline struct load *load_of(struct thread *thread)
{
	__u32 window = watch.window;

	if (thread->hit_window != window) {
		thread->hit_window = window;
		__builtin_memset(&thread->load, 0, sizeof(thread->load));
	}
	return &thread->load;
}

/* Counts an outermost launch in batches, to reduce contention on the process record. */
static __always_inline void count_launch(struct thread *thread)
{
	if (++thread->launches % HIT_BATCH == 0)
		report_load(thread, watch.window);
}

/* Copies the launch mode of the process. */
VERIFIED_ONCE int copy_mode(struct thread *thread)
{
	__u32 proc_id, modes = watch.modes;
	struct launch_mode *mode;

	if (!thread)
		return 0;
	proc_id = thread->proc_id;
	mode = bpf_map_lookup_elem(&launch_modes, &proc_id);
	if (mode)
		thread->mode = *mode;
	else
		__builtin_memset(&thread->mode, 0, sizeof(thread->mode));
	if (watch.calibrates == CALIBRATE_COUNTED)
		thread->mode.sample_every = ~0U;
	thread->modes = modes;
	return 0;
}

/* Whether a launch by this op is counted by its own probes. */
static __always_inline bool is_observed(struct thread *thread, __u32 op)
{
	if (thread->modes != watch.modes)
		copy_mode(thread);
	if (thread->mode.turn & 1)
		return false;
	return !thread->mode.driver_only || op_info[op & (MAX_OPS - 1)].api != API_RUNTIME;
}

/* Whether the new call is part of a launch: the driver's part of a runtime launch. */
static __always_inline bool is_in_launch(struct thread *thread)
{
	return thread->depth && op_info[frame_at(thread, thread->depth - 1)->op & (MAX_OPS - 1)].function_arg;
}

/* A launch within another call is part of it. A kernel that no launch of the outer call names, as NCCL's, is counted by
 * name. */
static __noinline void count_nested_launch(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op)
{
	count_self(SELF_LEFT_AT_ENTRY);
	if (is_in_launch(thread)) {
		load_of(thread)->nested++;
		return;
	}
	load_of(thread)->others++;
	if (thread->depth < MAX_DEPTH)
		count_by_name(thread->proc_id, argument(ctx, op_info[op & (MAX_OPS - 1)].function_arg));
}

/* Ends the gap since the last timed launch; the return of this launch is not seen. */
static __noinline void end_gap(struct thread *thread)
{
	__u64 launched = thread->launched_ns, now;

	thread->launched_ns = 0;
	now = bpf_ktime_get_ns();
	if (now >= launched && thread->launched_turn == thread->mode.turn)
		hist_add(thread->proc_id, HIST_LAUNCH_GAP, 0, 0, now - launched);
}

/* Counts an outermost launch that need not be timed; returns false for those that must: one in so many, and those that
 * may load their kernel. The unused first frame remembers where the last such launch was made. */
VERIFIED_ONCE int count_untimed(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op, __u32 link)
{
	__u8 argument_of_function = op_info[op & (MAX_OPS - 1)].function_arg;
	__u64 stack = PT_REGS_SP(ctx);
	struct kernel *kernel = 0;
	struct frame *unused;

	if (!thread)
		return false;
	unused = frame_at(thread, 0);
	/* A duplicate report, through another mount of the file. */
	if (thread->untimed_in_a_row && unused->stack == stack && unused->op == op && unused->link != link &&
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
	unused->stack = stack;
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

/* Counts the hit of a nested launch. Returns false when nothing else is observed of it. */
VERIFIED_ONCE int begin_nested_launch(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op)
{
	if (!thread)
		return false;
	if (!settings.nested_launches) {
		count_nested_launch(ctx, thread, op);
		return false;
	}
	load_of(thread)->others++;
	return true;
}

/* Counts the hit of a launch. Returns false when nothing else is observed of it. */
static __always_inline bool begin_launch(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op, __u32 link)
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
