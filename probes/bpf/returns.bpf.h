/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Accounting of returned calls: histograms, stalls, errors, names, bytes. */
#pragma once

static __always_inline __u16 call_flags(const struct frame *frame)
{
	return (frame->cold ? CALL_COLD : 0) | (frame->nested ? CALL_NESTED : 0);
}

VERIFIED_ONCE int count_stall(const struct thread *thread, const struct frame *frame)
{
	struct call_key key;
	struct stall *stall;

	if (!thread || !frame)
		return 0;
	key = (struct call_key){ .proc_id = thread->proc_id, .op = frame->op, .flags = call_flags(frame) };
	stall = bpf_map_lookup_elem(&stalls, &key);
	if (!stall) {
		ADD_ENTRY(&stalls, ADDED_STALLS, &key, &zero_stall);
		stall = bpf_map_lookup_elem(&stalls, &key);
		if (!stall) {
			count_self(SELF_FULL_STALLS);
			return 0;
		}
	}
	__sync_fetch_and_add(&stall->calls, 1);
	for (int reason = 0; reason < REASONS; reason++) {
		__u64 ns = thread->offcpu_at_return_ns[reason] - frame->offcpu_at_entry_ns[reason];

		if (ns)
			__sync_fetch_and_add(&stall->offcpu_ns[reason], ns);
	}
	return 0;
}

VERIFIED_ONCE int count_error(__u32 proc_id, __u16 op, __u32 code)
{
	struct error_key key = { .proc_id = proc_id, .op = op, .code = code };
	__u64 *count = bpf_map_lookup_elem(&errors, &key);

	if (!count) {
		ADD_ENTRY(&errors, ADDED_ERRORS, &key, &zero_u64);
		count = bpf_map_lookup_elem(&errors, &key);
		if (!count) {
			count_self(SELF_FULL_ERRORS);
			return 0;
		}
	}
	__sync_fetch_and_add(count, 1);
	return 0;
}

/* Returns the duration of the call. */
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

/* Accounts for rare results: an error, a newly loaded kernel, a name, arguments. */
VERIFIED_ONCE int record_result(struct thread *thread, struct frame *frame, __u32 code, __u64 ns)
{
	const volatile struct op_info *info;

	if (!thread || !frame)
		return 0;
	info = &op_info[frame->op & (MAX_OPS - 1)];
	/* A pending result, as of non-blocking NCCL communicators, is no error. */
	if (code == info->pending_code)
		code = 0;
	if (code)
		count_error(thread->proc_id, frame->op, code);
	if (info->function_arg && frame->function && frame->cold)
		mark_loaded(thread->proc_id, frame->function);
	if (!code && info->role >= ARGS_KERNEL_NAME)
		record_kernel_name(thread->proc_id, info, frame);
	if (info->role && thread->depth == 1)
		record_arguments(thread->proc_id, info, frame, ns, code);
	return 0;
}

/* Stores end and off-CPU state in the frame and accounts for the call. Returns the off-CPU time until then. */
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
