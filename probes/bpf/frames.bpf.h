/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A thread's open calls: a small stack in its record, told apart by the stack pointer. When a call enters at or above the stack
 * pointer of an open one, that one was unwound (longjmp, exception) and is abandoned without a duration. */
#pragma once

/* Times that off-CPU totals and the clock are read until both are of one moment. */
#define MAX_READ_TRIES 4

/* In place of a cookie: the place on the stack is enough. */
#define ANY_CALL (~0ULL)
/* Beside op and link: entry and return are one link, so that a call can be spared its return probe. */
#define ONE_LINK (1ULL << 32)

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
