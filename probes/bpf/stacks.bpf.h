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

static __always_inline struct return_instance *newest_pending(struct task_struct *task)
{
	struct uprobe_task *probed = UNTRUSTED(task_struct, task)->utask;

	return probed ? probed->return_instances : 0;
}

/* Returns true if the call that began at `open` may still return, when another begins above it. On x86-64 it may while
 * its return address is the kernel's trampoline, which later calls overwrite after an unwind. On arm64, where the
 * address is in a register first, the distance decides. */
static __noinline bool may_return(__u64 open, __u64 stack)
{
#if defined(__TARGET_ARCH_x86)
	struct mm_struct *mm = UNTRUSTED(task_struct, bpf_get_current_task_btf())->mm;
	__u64 address;

	if (!mm || !mm->uprobes_state.xol_area || bpf_probe_read_user(&address, sizeof(address), (void *)open))
		return true;
	return address == mm->uprobes_state.xol_area->vaddr;
#else
	return stack - open > NESTED_STACK;
#endif
}

/* Returns true if a call that begins at `stack` is on another stack than an open one. */
VERIFIED_ONCE int is_on_other_stack(struct thread *thread, __u64 stack)
{
	struct return_instance *pending = newest_pending(bpf_get_current_task_btf());
	__u32 depth;

	if (!thread)
		return false;
	depth = depth_of(thread);
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
VERIFIED_ONCE int count_on_other_stack(struct bpf_user_pt_regs_t *ctx, struct thread *thread, __u32 op, __u32 link)
{
	__u64 stack = PT_REGS_SP(ctx);
	struct frame *last;

	if (!thread)
		return 0;
	last = frame_at(thread, thread->depth);
	if (thread->depth < MAX_DEPTH && last->op == op && last->stack == stack && last->link != link) {
		count_self(SELF_DUPLICATE_HIT);
		return 0;
	}
	count_self(SELF_OTHER_STACK);
	if (!is_launch_class(op) || thread->depth >= MAX_DEPTH) {
		leave_at_entry(thread, load_class(op));
		return 0;
	}
	if (is_launch_class(last->op) && last->stack > stack && last->stack - stack < NESTED_STACK && last->pointer &&
	    last->pointer == user_word(last->stack)) {
		leave_at_entry(thread, LOAD_NESTED);
		return 0;
	}
	last->op = op;
	last->link = link;
	last->stack = stack;
	last->pointer = user_word(stack);
	count_by_name(thread->proc_id, argument(ctx, op_info[op & (MAX_OPS - 1)].function_arg));
	thread->launched_ns = 0;
	leave_at_entry(thread, load_class(op));
	count_launch(thread);
	bytes_add(thread->proc_id, BYTES_UNTIMED_CALLS, op, 1);
	return 0;
}
