/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Calls on another stack than the thread's open calls, as of a coroutine or a signal handler with its own stack.
 *
 * The kernel has one list of a thread's pending return probes, newest first, and assumes one stack: when a call with a
 * return probe begins, it drops those of calls that began below it, as unwound. If such a call is open on another stack, it
 * later returns to the kernel's trampoline, and the kernel kills the process. The same happens when calls on two stacks do
 * not return in reverse order. So a call gets no return probe while one is open on another stack. */
#pragma once

/* Most open calls that are checked. */
#define MAX_PENDING 8
/* A nested call is no further below its caller: a larger distance means another stack. */
#define NESTED_STACK (256 << 10)

static __always_inline struct return_instance *newest_pending(struct task_struct *task)
{
	return task->utask ? task->utask->return_instances : 0;
}

/* Whether the call that began at `open` may still return, when another begins above it. On x86-64 it may while its
 * return address is the kernel's trampoline, which later calls overwrite after an unwind. On arm64, where the address is
 * in a register first, the distance decides. */
static __noinline bool may_return(__u64 open, __u64 stack)
{
#if defined(__TARGET_ARCH_x86)
	struct mm_struct *mm = bpf_get_current_task_btf()->mm;
	__u64 address;

	if (!mm || !mm->uprobes_state.xol_area || bpf_probe_read_user(&address, sizeof(address), (void *)open))
		return true;
	return address == mm->uprobes_state.xol_area->vaddr;
#else
	return stack - open > NESTED_STACK;
#endif
}

/* Whether a call that begins at `stack` is on another stack than an open one. */
static __noinline bool is_on_other_stack(struct thread *thread, __u64 stack)
{
	struct return_instance *pending = newest_pending(bpf_get_current_task_btf());
	__u32 depth = depth_of(thread);

	for (int i = 0; i < MAX_PENDING && pending && pending->stack < stack; i++) {
		if (may_return(pending->stack, stack))
			return true;
		pending = pending->next;
	}
	if (pending && pending->stack < stack)
		return true;
	return depth && frame_at(thread, depth - 1)->stack > stack + NESTED_STACK;
}

/* Counts a call that gets no return probe for that reason. The unused frame after the open ones remembers where the last
 * such launch was made, with its return address: while that is unchanged, the driver's part in the launch is no launch
 * of its own. */
static __noinline void count_on_other_stack(struct pt_regs *ctx, struct thread *thread, __u32 op, __u32 link)
{
	struct frame *last = frame_at(thread, thread->depth);
	__u64 stack = PT_REGS_SP(ctx);

	if (thread->depth < MAX_DEPTH && last->op == op && last->stack == stack && last->link != link) {
		count_self(SELF_DUPLICATE_HIT);
		return;
	}
	count_self(SELF_OTHER_STACK);
	if (!is_launch_class(op) || thread->depth >= MAX_DEPTH) {
		load_of(thread)->others++;
		return;
	}
	if (is_launch_class(last->op) && last->stack > stack && last->stack - stack < NESTED_STACK && last->pointer &&
	    last->pointer == user_word(last->stack)) {
		load_of(thread)->nested++;
		return;
	}
	last->op = op;
	last->link = link;
	last->stack = stack;
	last->pointer = user_word(stack);
	last->function = argument(ctx, op_info[op & (MAX_OPS - 1)].function_arg);
	if (last->function && is_cold(thread, last))
		mark_loaded(thread->proc_id, last->function);
	thread->launched_ns = 0;
	load_of(thread)->untimed++;
	count_launch(thread);
	bytes_add(thread->proc_id, BYTES_UNTIMED_LAUNCHES, op, 1);
}
