/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Traced calls as events, with the stack of slow ones. Recorded at return by the calling thread. */
#pragma once

/* User stacks by the kernel's stack id. One entry unless the loader sets a size. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, STACK_FRAMES * sizeof(__u64));
} stacks SEC(".maps");

/* Kernel >= 6.10. The kernel collects stacks in a per-CPU buffer, which another thread on that CPU could overwrite. */
extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

/* Why a call is recorded. */
enum {
	CALL_UNWANTED,
	CALL_SLOW,
	CALL_CHOSEN,
	CALL_DRAWN,
};

static __noinline __u32 why_recorded(const struct thread *thread, const struct frame *frame)
{
	const volatile struct op_info *info = &op_info[frame->op & (MAX_OPS - 1)];
	__u64 ns = frame->end_ns - frame->start_ns;
	__u32 sample = recording.sample;

	/* When recording began after the frame was recorded, or the clock went backwards. */
	if (frame->end_ns < frame->start_ns || !is_recorded(thread->tgid))
		return CALL_UNWANTED;
	if (ns >= recording.call_ns)
		return CALL_SLOW;
	if (recording.allocations && thread->depth == 1 && info->role >= ARGS_ALLOC && info->role <= ARGS_FREE)
		return CALL_CHOSEN;
	if (sample && bpf_get_prandom_u32() % sample == 0)
		return CALL_DRAWN;
	return CALL_UNWANTED;
}

/* Id of the stack at the call's return address, or a negative error. */
static __noinline int user_stack(struct bpf_user_pt_regs_t *ctx)
{
	int id;

	if (bpf_ksym_exists(bpf_preempt_disable))
		bpf_preempt_disable();
	id = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK);
	if (bpf_ksym_exists(bpf_preempt_enable))
		bpf_preempt_enable();
	if (id < 0)
		__sync_fetch_and_add(&ring_state.events_without_stack, 1);
	return id;
}

static __noinline __u64 stalled_ns(const struct thread *thread, const struct frame *frame)
{
	__u64 sum = 0;

	for (int reason = 0; reason < REASONS; reason++)
		sum += thread->offcpu_at_return_ns[reason] - frame->offcpu_at_entry_ns[reason];
	return sum;
}

/* The bytes of a successful outermost call, as in its account. */
static __noinline void set_event_bytes(struct event *event, const volatile struct op_info *info,
				       const struct frame *frame)
{
	struct call_body *body = (struct call_body *)event->body;

	if (info->role < ARGS_COPY || info->role > ARGS_COLLECTIVE)
		return;
	body->value = frame->bytes;
	if (info->role == ARGS_ALLOC_PITCH || info->role == ARGS_ALLOC_EXTENT)
		body->value *= user_word(frame->function);
	event->flags |= EVENT_BYTES;
	if (info->role <= ARGS_COPY_FIELDS_3D)
		event->flags |= (frame->kind + 1) << EVENT_COPY_SHIFT;
}

/* Fills in body and flags of the event. */
static __noinline void describe_call(struct event *event, const struct thread *thread, const struct frame *frame,
				     __u32 code, int stack)
{
	const volatile struct op_info *info = &op_info[frame->op & (MAX_OPS - 1)];
	struct call_body *body = (struct call_body *)event->body;

	body->code = code == info->pending_code ? 0 : code;
	body->stack = stack < 0 ? -1 : stack;
	if (frame->stalled)
		body->off_cpu_ns = stalled_ns(thread, frame);
	event->flags |= (frame->cold ? EVENT_COLD : 0) | (thread->depth == 1 ? EVENT_OUTERMOST : 0);
	if (info->function_arg && frame->function) {
		body->value = frame->function;
		event->flags |= EVENT_KERNEL;
	} else if (thread->depth == 1 && !body->code) {
		set_event_bytes(event, info, frame);
	}
}

/* The frame has been accounted, and is still the thread's innermost. */
VERIFIED_ONCE int record_call_event(struct bpf_user_pt_regs_t *ctx, const struct thread *thread,
				    const struct frame *frame)
{
	struct event *event;
	int stack = -1;
	__u32 why;

	if (!thread || !frame)
		return 0;
	why = why_recorded(thread, frame);
	if (why == CALL_UNWANTED)
		return 0;
	if (why == CALL_SLOW && recording.stacks) {
		stack = user_stack(ctx);
		if (stack >= 0 && thread->depth == 1)
			keep_python(thread, frame);
	}
	event = begin_event(EVENT(EVENT_CALL, why == CALL_DRAWN ? EVENT_SAMPLED : 0, frame->op), thread->proc_id,
			    bpf_get_current_pid_tgid(), frame->start_ns, frame->end_ns - frame->start_ns);
	if (!event)
		return 0;
	describe_call(event, thread, frame, PT_REGS_RC(ctx), stack);
	publish(event);
	return 0;
}
