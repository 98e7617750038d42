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

/* The interpreter's record of the running thread, or 0. */
static __noinline __u64 python_thread(const struct python_layout *layout)
{
	__u64 self = thread_pointer(), thread;

	if (!self)
		return 0;
	thread = user_word(layout->threads_at);
	for (int i = 0; i < PYTHON_THREADS && thread; i++) {
		if (user_word(thread + layout->thread_id) == self)
			return thread;
		thread = user_word(thread + layout->thread_next);
	}
	return 0;
}

static __noinline void walk_python(const struct python_layout *layout, struct python_stack *stack)
{
	__u64 frame = python_thread(layout);
	__u32 count = 0;

	if (!frame)
		return;
	frame = user_word(frame + layout->thread_frame);
	if (layout->is_indirect)
		frame = user_word(frame + layout->indirect_frame);
	for (int i = 0; i < PYTHON_FRAMES && frame; i++) {
		stack->code[i] = user_word(frame + layout->frame_code);
		stack->instruction[i] = user_word(frame + layout->frame_instruction);
		frame = user_word(frame + layout->frame_back);
		count++;
	}
	stack->frames = count;
	stack->has_more = frame != 0;
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
