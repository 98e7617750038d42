/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Python frames of a thread that returns from a slow call, in processes whose layout user space has set.
 *
 * CPython has a list of its threads; the running one is identified by its thread pointer, the value of pthread_self().
 * From there frames are linked. The memory is untrusted and may change meanwhile, so walks are bounded, and user space
 * validates the result. */
#pragma once

/* Most threads of a process that are searched. */
#define PYTHON_THREADS 256

/* Process id -> Python layout. Written by user space, and deleted when the process has ended. */
MAP(pythons, HASH, BPF_F_NO_PREALLOC, 4096, __u32, struct python_layout);

/* Stacks by call. Deleted by user space after reading. One entry unless the loader sets a size. */
MAP(python_stacks, HASH, BPF_F_NO_PREALLOC, 1, struct python_call, struct python_stack);

static const struct python_stack zero_python_stack;

/* The value of pthread_self(); 0 if unknown. */
static __always_inline __u64 thread_pointer(void)
{
#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(bpf_get_current_task_btf(), thread.fsbase);
#else
	return 0;
#endif
}

/* Returns true if CPython has this thread record for the running thread. */
static __always_inline bool is_python_thread(const struct python_layout *layout, __u64 thread)
{
	return thread && user_word(thread + layout->thread_id) == thread_pointer();
}

struct python_search {
	const struct python_layout *layout;
	__u64 thread;
	__u64 self;
};

/* Ends at the running thread. */
static long next_thread(__u64 index, void *context)
{
	struct python_search *search = context;

	if (!search->thread || user_word(search->thread + search->layout->thread_id) == search->self)
		return 1;
	search->thread = user_word(search->thread + search->layout->thread_next);
	return 0;
}

/* The interpreter's record of the running thread, or 0. By `bpf_loop`, since the verifier would
 * follow each turn of a loop of C. */
static __noinline __u64 python_thread(const struct python_layout *layout)
{
	struct python_search search = { .layout = layout, .self = thread_pointer() };

	if (!search.self)
		return 0;
	search.thread = user_word(layout->threads_at);
	/* The call that ends the search is one of those counted. */
	return bpf_loop(PYTHON_THREADS + 1, next_thread, &search, 0) <= PYTHON_THREADS ? search.thread : 0;
}

/* The innermost frame of a thread. */
static __always_inline __u64 innermost_frame(const struct python_layout *layout, __u64 thread)
{
	__u64 frame = user_word(thread + layout->thread_frame);

	return layout->is_indirect ? user_word(frame + layout->indirect_frame) : frame;
}

struct python_walk {
	const struct python_layout *layout;
	__u64 frame;
};

/* Copies the frame and goes on to its caller. */
static __always_inline void next_frame(struct python_walk *walk, __u64 *code, __u64 *instruction)
{
	*code = user_word(walk->frame + walk->layout->frame_code);
	*instruction = user_word(walk->frame + walk->layout->frame_instruction);
	walk->frame = user_word(walk->frame + walk->layout->frame_back);
}

struct stack_walk {
	struct python_walk python;
	struct python_stack *stack;
};

static long keep_frame(__u64 index, void *context)
{
	struct stack_walk *walk = context;

	barrier_var(index);
	if (!walk->python.frame || index >= PYTHON_FRAMES)
		return 1;
	next_frame(&walk->python, &walk->stack->code[index], &walk->stack->instruction[index]);
	walk->stack->frames = index + 1;
	return 0;
}

static __noinline void walk_python(const struct python_layout *layout, struct python_stack *stack)
{
	struct stack_walk walk = { .python = { .layout = layout }, .stack = stack };
	__u64 thread = python_thread(layout);

	if (!thread)
		return;
	walk.python.frame = innermost_frame(layout, thread);
	bpf_loop(PYTHON_FRAMES, keep_frame, &walk, 0);
	stack->has_more = walk.python.frame != 0;
}

/* Stores the Python frames of the running thread, which returns from this call. */
static __noinline void keep_python(const struct thread *thread, const struct frame *frame)
{
	struct python_call call = { .start_ns = frame->start_ns };
	__u32 proc_id = thread->proc_id;
	const struct python_layout *layout = bpf_map_lookup_elem(&pythons, &proc_id);
	struct python_stack *stack;

	if (!layout)
		return;
	call.tid = bpf_get_current_pid_tgid();
	if (!bpf_map_update_elem(&python_stacks, &call, &zero_python_stack, BPF_ANY)) {
		stack = bpf_map_lookup_elem(&python_stacks, &call);
		if (stack) {
			walk_python(layout, stack);
			return;
		}
	}
	__sync_fetch_and_add(&ring_state.events_without_python_stack, 1);
}
