/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A thread's open calls: a small stack in its record, identified by stack pointers. A call at or above the stack pointer
 * of an open one shows that the open one was unwound (longjmp, exception); it is abandoned without a duration. */
#pragma once

/* Retries until off-CPU totals and clock are consistent. */
#define MAX_READ_TRIES 4

/* A nested call is no further below its caller: a larger distance means another stack. */
#define NESTED_STACK (256 << 10)

/* In place of a cookie: the stack pointer is sufficient. */
#define ANY_CALL (~0ULL)
/* Entry and return are one link, so a call can skip its return probe. */
#define ONE_LINK (1ULL << 32)
/* Above it the cookie has the bytes of stack that the function has reserved where it is probed. */
#define RESERVED_SHIFT 40

static __always_inline __u16 op_of(__u64 cookie)
{
	return cookie & 0xffff;
}

static __always_inline __u16 link_of(__u64 cookie)
{
	return cookie >> 16;
}

/* The stack pointer before the function's first instruction: on arm64 the probe may be behind others that reserve stack. */
static __always_inline __u64 stack_at_entry(struct bpf_user_pt_regs_t *ctx, __u64 cookie)
{
#if defined(__TARGET_ARCH_arm64)
	return PT_REGS_SP(ctx) + (cookie >> RESERVED_SHIFT);
#else
	return PT_REGS_SP(ctx);
#endif
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

/* An abandoned outermost free: unknown whether it succeeded, so the memory stays allocated until its address is reused.
 * Inline because of the limit of eight nested calls. */
static __always_inline void abandon_release(struct thread *thread)
{
	struct frame *frame = frame_at(thread, 0);

	if (op_info[frame->op & (MAX_OPS - 1)].role == ARGS_FREE)
		record_release(thread->proc_id, frame, 1);
}

/* Counts calls that a thread leaves without returning. */
VERIFIED_ONCE int abandon(struct thread *thread, __u32 depth)
{
	__u32 proc_id, calls;
	struct proc *proc;

	if (!thread)
		return 0;
	proc_id = thread->proc_id;
	calls = thread->depth - depth;
	if (!depth)
		abandon_release(thread);
	thread->depth = depth;
	count_self_by(SELF_ABANDONED, calls);
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->measures.abandoned_calls, calls);
	return 0;
}

/* Drops calls whose return probes are detached, and calls within them; launches still count. */
VERIFIED_ONCE int drop_truncated(struct thread *thread)
{
	__u32 depth;

	if (!thread)
		return 0;
	depth = depth_of(thread);
	for (__u32 i = 0; i < MAX_DEPTH && i < depth; i++) {
		if (!is_truncated(frame_at(thread, i)))
			continue;
		count_self_by(SELF_CUT, depth - i);
		thread->depth = i;
		if (!i && is_launch_class(frame_at(thread, 0)->op))
			bytes_add(thread->proc_id, BYTES_UNTIMED_CALLS, frame_at(thread, 0)->op, 1);
		break;
	}
	return 0;
}

/* Abandons unwound calls: those that began deeper on the stack than this one. Returns false for a duplicate report of a
 * call, through another mount of the file. A call of another op at the same stack pointer is a tail call from the open
 * one, which returns together with it, or was unwound. */
static __always_inline bool drop_unwound(struct thread *thread, __u64 stack, __u32 op, __u32 link)
{
	__u32 depth = depth_of(thread);

	for (int i = 0; i < MAX_DEPTH && depth; i++) {
		struct frame *top = frame_at(thread, depth - 1);

		if (top->stack > stack)
			break;
		if (top->stack == stack && top->op == op && top->link != link && !is_truncated(top))
			return false;
		if (top->stack == stack && top->op != op && !top->tail_called)
			break;
		depth--;
	}
	if (depth != thread->depth)
		abandon(thread, depth);
	return true;
}

/* With one link for entry and return, only calls that requested it report returns, and the stack pointer identifies
 * them. */
static __always_inline bool is_frame_of(const struct frame *frame, __u64 stack, __u64 cookie)
{
	return frame->stack == stack &&
	       (cookie == ANY_CALL || (frame->link == link_of(cookie) && frame->op == op_of(cookie)));
}

/* The depth of a frame below the innermost, with the calls above it abandoned; 0 for calls without entry. */
VERIFIED_ONCE __u32 outer_depth(struct thread *thread, __u64 stack, __u64 cookie)
{
	__u32 depth;

	if (!thread)
		return 0;
	depth = depth_of(thread);
	for (int i = 0; i < MAX_DEPTH && depth; i++) {
		struct frame *frame = frame_at(thread, depth - 1);

		if (frame->stack > stack)
			break;
		if (is_frame_of(frame, stack, cookie)) {
			abandon(thread, depth);
			return depth;
		}
		depth--;
	}
	return 0;
}

/* The frame of this return. */
static __always_inline struct frame *matching_frame(struct thread *thread, __u64 stack, __u64 cookie)
{
	struct frame *innermost = frame_at(thread, thread->depth - 1);
	__u32 depth;

	if (thread->depth && is_frame_of(innermost, stack, cookie))
		return innermost;
	depth = outer_depth(thread, stack, cookie);
	return depth ? frame_at(thread, depth - 1) : 0;
}
