/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Counts outermost launches of every layer, and times those that the budget allows. */
#pragma once

/* Cookies of probes on instructions that the kernel single-steps. */
#define SINGLE_STEPPED (1ULL << 33)

static __always_inline struct proc *proc_of(const struct thread *thread)
{
	__u32 proc_id = thread->proc_id;

	return bpf_map_lookup_elem(&procs, &proc_id);
}

/* Grows while the running thread has a CPU. The kernel's own count does so at ticks, which a busy CPU may do without. */
static __always_inline __u64 running_time(const struct thread *thread)
{
	return bpf_ktime_get_ns() - thread->offcpu_total_ns;
}

static __always_inline __u64 spent_by_running(__u32 spent_ns, __u32 ran_ns)
{
	return (__u64)spent_ns * (ran_ns / SPENT_RAN_UNIT);
}

/* Reports the thread's load: as that of its process if it is the busiest in this window, and in the sums of all threads. Those lack a
 * batch of hits where another thread reports one between the two steps that open a window. */
VERIFIED_ONCE int report_load(struct thread *thread)
{
	struct proc *proc;
	__u32 window, ran, id, before;

	if (!thread)
		return 0;
	proc = proc_of(thread);
	count_self_by(SELF_LEFT_AT_ENTRY, thread->left);
	thread->left = 0;
	if (!proc)
		return 0;
	window = proc->load_window;
	/* The thread was interrupted until others had hits in a later window. */
	if ((__s32)(thread->hit_window - window) < 0)
		return 0;
	if (window != thread->hit_window &&
	    __sync_val_compare_and_swap(&proc->load_window, window, thread->hit_window) == window) {
		proc->all_spent_ns = 0;
		proc->all_spent_ran = 0;
		proc->load.spent_ns = 0;
	}
	before = proc->load.spent_ns;
	if (before <= thread->load.spent_ns)
		__builtin_memcpy(&proc->load, &thread->load, sizeof(proc->load));
	if (watch.overspent_ns && before < watch.overspent_ns && thread->load.spent_ns >= watch.overspent_ns) {
		id = thread->proc_id;
		bpf_ringbuf_output(&overspent, &id, sizeof(id), 0);
	}
	/* Running time in a pause does not count, although calls that wait are observed then, too. */
	ran = thread->mode.turn & 1 ? thread->reported_ran_ns : running_time(thread) - thread->ran_before_ns;
	__sync_fetch_and_add(&proc->all_spent_ns, thread->load.spent_ns - thread->reported_spent_ns);
	__sync_fetch_and_add(&proc->all_spent_ran,
			     spent_by_running(thread->load.spent_ns, ran) -
				     spent_by_running(thread->reported_spent_ns, thread->reported_ran_ns));
	thread->reported_spent_ns = thread->load.spent_ns;
	thread->reported_ran_ns = ran;
	return 0;
}

VERIFIED_ONCE int open_load(struct thread *thread)
{
	if (!thread)
		return 0;
	thread->hit_window = watch.window;
	__builtin_memset(&thread->load, 0, sizeof(thread->load));
	thread->ran_before_ns = running_time(thread);
	thread->reported_spent_ns = 0;
	thread->reported_ran_ns = 0;
	return 0;
}

/* The thread's load in the current window. */
static __always_inline struct load *load_of(struct thread *thread)
{
	if (thread->hit_window != watch.window)
		open_load(thread);
	return &thread->load;
}

static __always_inline __u32 load_class(__u32 op)
{
	return op_info[op & (MAX_OPS - 1)].load & (LOADS - 1);
}

/* Adds the time that a hit takes of the thread. */
static __always_inline void take(struct thread *thread, __u32 ns)
{
	thread->load.spent_ns += ns;
	if (++thread->hits % HIT_BATCH == 0)
		report_load(thread);
}

/* Longer was interrupted. */
#define LONGEST_LOOKUP_NS 10000

/* How long it took from the begin of this program until the thread's record was found: all hits take the same way up to here, so that
 * it says how much of the kernel's data the program left in the caches. */
VERIFIED_ONCE int note_coldness(struct thread *thread, __u64 began)
{
	__u64 ns = bpf_ktime_get_ns() - began;

	if (!thread || ns > LONGEST_LOOKUP_NS)
		return 0;
	load_of(thread)->lookup_ns += ns;
	thread->load.lookups++;
	count_self(SELF_LOOKUPS);
	count_self_by(SELF_LOOKUP_NS, ns);
	return 0;
}

/* A hit on an instruction that the kernel single-steps. */
VERIFIED_ONCE int charge_step(struct thread *thread, __u32 class)
{
	if (!thread)
		return 0;
	load_of(thread)->stepped[class & (LOADS - 1)]++;
	thread->load.spent_ns += watch.stepped_ns;
	count_self(SELF_SINGLE_STEPPED);
	return 0;
}

/* The call is left at entry. */
VERIFIED_ONCE int leave_at_entry(struct thread *thread, __u32 class)
{
	if (!thread)
		return 0;
	load_of(thread)->counted[class & (LOADS - 1)]++;
	thread->left++;
	take(thread, watch.counted_ns);
	return 0;
}

/* The call is left and not counted, where its probe could not be removed. */
VERIFIED_ONCE int leave_unobserved(struct thread *thread)
{
	if (!thread)
		return 0;
	load_of(thread);
	thread->left++;
	take(thread, watch.counted_ns);
	return 0;
}

/* The call is timed. */
VERIFIED_ONCE int charge_timed(struct thread *thread, __u32 class)
{
	if (!thread)
		return 0;
	load_of(thread)->timed[class & (LOADS - 1)]++;
	take(thread, watch.timed_ns);
	return 0;
}

/* Returns true if hits took the thread's part of this window, so that calls are only counted until the next. */
static __always_inline bool is_spent(struct thread *thread)
{
	__u32 quota = watch.quota_ns;

	return quota && thread->load.spent_ns >= quota && thread->hit_window == watch.window;
}

/* Adds a batch of outermost launches to those of the process. */
VERIFIED_ONCE int report_launches(struct thread *thread)
{
	struct proc *proc = thread ? proc_of(thread) : 0;

	if (proc)
		__sync_fetch_and_add(&proc->launches, HIT_BATCH);
	return 0;
}

/* Counts an outermost launch, in batches to reduce contention on the process record. */
static __always_inline void count_launch(struct thread *thread)
{
	if (++thread->launches % HIT_BATCH == 0)
		report_launches(thread);
}

/* Copies the launch mode of the process. */
VERIFIED_ONCE int copy_mode(struct thread *thread)
{
	__u32 proc_id, modes = watch.modes, turn, driver_only;
	struct launch_mode *mode;

	if (!thread)
		return 0;
	proc_id = thread->proc_id;
	turn = thread->mode.turn;
	driver_only = thread->mode.driver_only;
	mode = bpf_map_lookup_elem(&launch_modes, &proc_id);
	if (mode)
		thread->mode = *mode;
	else
		__builtin_memset(&thread->mode, 0, sizeof(thread->mode));
	/* Forget the counted call, or the part of a later one would be taken for its part: nothing tells of later ones in a pause,
	 * or of those of the runtime without its probes. */
	if (thread->mode.turn != turn ||
	    (thread->mode.driver_only != driver_only && thread->mode.driver_only &&
	     thread->mode.driver_only != DRIVER_ONLY_BEGINS && load_class(thread->counted_op) == LOAD_RUNTIME))
		thread->counted_stack = 0;
	if (thread->mode.turn != turn)
		thread->ran_before_ns = running_time(thread) - thread->reported_ran_ns;
	if (watch.calibrates >= CALIBRATE_COUNTED)
		thread->mode.sample_every = ~0U;
	thread->modes = modes;
	return 0;
}

static __always_inline bool is_launch_load(__u32 class)
{
	return class <= LOAD_DRIVER;
}

/* Returns true if a call of this class is counted by its own probes. */
static __always_inline bool is_observed(struct thread *thread, __u32 class)
{
	if (thread->modes != watch.modes)
		copy_mode(thread);
	if (thread->mode.turn & 1)
		return class == LOAD_WAIT;
	return !(thread->mode.driver_only && class == LOAD_RUNTIME) &&
	       !(thread->mode.shed & SHED_QUERIES && class == LOAD_QUERY);
}

/* Returns true if the new call is part of a launch: the driver's part of a runtime launch. */
static __always_inline bool is_in_launch(struct thread *thread)
{
	return thread->depth && op_info[frame_at(thread, thread->depth - 1)->op & (MAX_OPS - 1)].function_arg;
}

/* A call within another one that is left at entry. A kernel that no launch of the outer call names, as NCCL's, is counted
 * by name. */
VERIFIED_ONCE int count_nested(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op)
{
	if (!thread)
		return 0;
	leave_at_entry(thread, LOAD_NESTED);
	if (is_launch_class(op) && !is_in_launch(thread) && thread->depth < MAX_DEPTH)
		count_by_name(thread->proc_id, argument(ctx, op_info[op & (MAX_OPS - 1)].function_arg));
	return 0;
}

#if defined(__TARGET_ARCH_x86)
static __always_inline bool is_trampoline(__u64 address)
{
	struct mm_struct *mm = UNTRUSTED(task_struct, bpf_get_current_task_btf())->mm;

	return mm && mm->uprobes_state.xol_area && address == mm->uprobes_state.xol_area->vaddr;
}
#endif

/* Code of one function lies within this distance, or of a few; that of another library does not. */
#define SAME_CODE (64 << 10)

/* The address that the call returns to. */
static __always_inline __u64 return_address(struct bpf_user_pt_regs_t *ctx)
{
#if defined(__TARGET_ARCH_x86)
	return user_word(PT_REGS_SP(ctx));
#else
	return PT_REGS_RET(ctx);
#endif
}

/* Returns true if a call without frame is part of the last call that was counted: one of the driver within one of the
 * runtime, or within one of the same op in a library before the driver's; a launch within a launch, or another call
 * within another call. It is made by other code than the counted call. The counted call is still open if its return
 * address is where it was, or the kernel's trampoline, where another link has a return probe. On arm64 the address is
 * in a register at first: the driver's next call below is taken for the part. */
VERIFIED_ONCE int is_in_counted(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op)
{
	__u64 stack = PT_REGS_SP(ctx), open;
	__u32 outer;

	if (!thread)
		return false;
	open = thread->counted_stack;
	outer = thread->counted_op;
	if (open - stack >= NESTED_STACK || op_info[op & (MAX_OPS - 1)].api != API_DRIVER ||
	    (op_info[outer & (MAX_OPS - 1)].api != API_RUNTIME && outer != op) ||
	    is_launch_load(load_class(op)) != is_launch_load(load_class(outer)))
		return false;
	if (return_address(ctx) - thread->counted_return + SAME_CODE < 2 * SAME_CODE)
		return false;
#if defined(__TARGET_ARCH_x86)
	open = user_word(open);
	return open == thread->counted_return || is_trampoline(open);
#else
	thread->counted_stack = 0;
	return true;
#endif
}

/* Remembers the call that is counted. Returns false for a second report of it, through another mount of the file. */
VERIFIED_ONCE int begin_counted(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie)
{
	__u64 stack = stack_at_entry(ctx, cookie);

	if (!thread)
		return false;
	if (thread->counted_stack == stack && thread->counted_op == op_of(cookie) &&
	    thread->counted_link != link_of(cookie) && !closed_links[thread->counted_link & (MAX_LINKS - 1)]) {
		count_self(SELF_DUPLICATE_HIT);
		return false;
	}
	thread->counted_op = op_of(cookie);
	thread->counted_link = link_of(cookie);
	thread->counted_stack = stack;
	thread->counted_return = return_address(ctx);
	return true;
}

/* The kernel function of a launch. */
static __always_inline __u64 function_of(struct bpf_user_pt_regs_t *ctx, const volatile struct op_info *info)
{
	__u64 first = PT_REGS_PARM1(ctx), second = PT_REGS_PARM2(ctx);
	__u32 location = info->function_arg;

	barrier_var(first);
	barrier_var(second);
	if (location == 1)
		return first;
	if (location == 2)
		return second;
	return argument(ctx, location);
}

/* Ends the gap since the last timed launch; the return of this launch is not seen. */
VERIFIED_ONCE int end_gap(struct thread *thread)
{
	__u64 launched, now;

	if (!thread)
		return 0;
	launched = thread->launched_ns;
	thread->launched_ns = 0;
	now = bpf_ktime_get_ns();
	if (now >= launched && thread->launched_turn == thread->mode.turn)
		hist_add(thread->proc_id, HIST_LAUNCH_GAP, 0, 0, now - launched);
	return 0;
}

/* Picks one call in so many, at random: a stride that divides the period of a program would always meet the same call of it. */
static __always_inline bool is_picked(__u32 every)
{
	return bpf_get_prandom_u32() % every == 0;
}

/* Counts an outermost launch that need not be timed; returns false for those that must: one in so many, and those that
 * may load their kernel. */
VERIFIED_ONCE int count_untimed(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie)
{
	const volatile struct op_info *info = &op_info[op_of(cookie) & (MAX_OPS - 1)];
	struct kernel *kernel = 0;
	__u32 every;

	if (!thread)
		return false;
	every = thread->mode.sample_every;
	if (info->function_arg) {
		struct kernel_key key = { .function = function_of(ctx, info), .proc_id = thread->proc_id };

		kernel = bpf_map_lookup_elem(&kernels, &key);
	}
	if ((every && is_picked(every)) || (kernel ? !kernel->loaded : may_remember_kernel(thread->proc_id)))
		return false;
	leave_at_entry(thread, info->load);
	count_launch(thread);
	if (kernel) {
		__sync_fetch_and_add(&kernel->launches, 1);
		__sync_fetch_and_add(&kernel->untimed, 1);
	} else {
		count_other_launch(thread->proc_id);
		bytes_add(thread->proc_id, BYTES_UNTIMED_CALLS, op_of(cookie), 1);
	}
	if (thread->launched_ns)
		end_gap(thread);
	return true;
}

/* Counts an asynchronous call with its bytes, as if it succeeds; returns false for one in so many, which is timed. */
VERIFIED_ONCE int count_async(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie)
{
	const volatile struct op_info *info = &op_info[op_of(cookie) & (MAX_OPS - 1)];
	struct frame *unused;

	if (!thread)
		return false;
	if (is_picked(ASYNC_ONE_IN))
		return false;
	leave_at_entry(thread, LOAD_ASYNC);
	bytes_add(thread->proc_id, BYTES_UNTIMED_CALLS, op_of(cookie), 1);
	if (!info->role)
		return true;
	unused = frame_at(thread, 0);
	unused->op = op_of(cookie);
	read_arguments(ctx, unused, thread->proc_id);
	if (info->role == ARGS_FREE)
		bytes_add(thread->proc_id, BYTES_FREED, 0, unused->bytes);
	else if (info->role <= ARGS_COPY_FIELDS_3D)
		bytes_add(thread->proc_id, BYTES_COPIED, unused->kind, unused->bytes);
	return true;
}

/* Returns true if a call within another one is left at entry: launches unless nested ones are timed, others once the
 * budget is spent, except names that NCCL asks for. */
static __noinline bool leaves_nested(struct thread *thread, __u32 op)
{
	if (is_launch_class(op))
		return !settings.nested_launches;
	return (thread->mode.shed || is_spent(thread)) && op_info[op & (MAX_OPS - 1)].role < ARGS_KERNEL_NAME;
}

/* Counts an outermost call as far as the budget demands. Returns false when it is to be timed. */
static __always_inline bool is_only_counted(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie,
					    __u32 class)
{
	if (class <= LOAD_ASYNC && class != LOAD_QUERY && thread->counted_stack > stack_at_entry(ctx, cookie) &&
	    thread->counted_link != link_of(cookie) && is_in_counted(ctx, thread, op_of(cookie))) {
		leave_at_entry(thread, LOAD_NESTED);
		return true;
	}
	if (is_launch_load(class) ? thread->mode.sample_every > 1 || is_spent(thread)
				  : class == LOAD_ASYNC && (thread->mode.shed & SHED_ASYNCS || is_spent(thread))) {
		/* Before it is known whether it is timed, or a second report could be. */
		if (!begin_counted(ctx, thread, cookie))
			return true;
		return class == LOAD_ASYNC ? count_async(ctx, thread, cookie) : count_untimed(ctx, thread, cookie);
	}
	if (class != LOAD_QUERY || !is_spent(thread))
		return false;
	leave_at_entry(thread, class);
	return true;
}

/* Begins a call. Returns false when nothing is observed of it but that it was made. */
static __always_inline bool begin_call(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u64 cookie, __u32 class)
{
	if (thread->depth) {
		if (leaves_nested(thread, op_of(cookie))) {
			count_nested(ctx, thread, op_of(cookie));
			return false;
		}
	} else {
		if (is_only_counted(ctx, thread, cookie, class))
			return false;
		thread->counted_stack = 0;
		if (is_launch_load(class))
			count_launch(thread);
	}
	charge_timed(thread, class);
	return true;
}
