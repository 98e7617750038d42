/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What the arguments of a call tell: bytes copied, taken, given back and sent, and ranks. Read at entry, booked at return, for
 * outermost calls that succeed: what the driver does for the runtime is not counted twice. */
#pragma once

/* Integer arguments that are passed in registers. */
#if defined(__TARGET_ARCH_x86)
#define REGISTER_ARGUMENTS 6
/* The return address lies on top of those on the stack. */
#define STACK_ARGUMENTS_AT 8
#else
#define REGISTER_ARGUMENTS 8
#define STACK_ARGUMENTS_AT 0
#endif

/* CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_UNIFIED; what lies between is on the device. */
#define MEMORY_HOST 1
#define MEMORY_UNIFIED 4

static __always_inline __u64 user_word(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline __u32 user_int(__u64 address)
{
	__u32 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* The integer argument at a position counted from 1. All registers are read at fixed offsets first: the verifier refuses a
 * context pointer that clang has added an index to. */
static __noinline __u64 argument(struct pt_regs *ctx, __u32 position)
{
	__u64 first = PT_REGS_PARM1(ctx), second = PT_REGS_PARM2(ctx), third = PT_REGS_PARM3(ctx);
	__u64 fourth = PT_REGS_PARM4(ctx), fifth = PT_REGS_PARM5(ctx), sixth = PT_REGS_PARM6(ctx);

	barrier_var(first);
	barrier_var(second);
	barrier_var(third);
	barrier_var(fourth);
	barrier_var(fifth);
	barrier_var(sixth);
	switch (position) {
	case 1:
		return first;
	case 2:
		return second;
	case 3:
		return third;
	case 4:
		return fourth;
	case 5:
		return fifth;
	case 6:
		return sixth;
	default:
		break;
	}
	if (position <= REGISTER_ARGUMENTS)
		return 0;
	return user_word(PT_REGS_SP(ctx) + STACK_ARGUMENTS_AT + 8 * (position - REGISTER_ARGUMENTS - 1));
}

static __always_inline __u32 kind_of_memory(__u32 source, __u32 destination)
{
	if (source == MEMORY_UNIFIED || destination == MEMORY_UNIFIED)
		return COPY_DEFAULT;
	if (source == MEMORY_HOST)
		return destination == MEMORY_HOST ? COPY_H2H : COPY_H2D;
	return destination == MEMORY_HOST ? COPY_D2H : COPY_D2D;
}

static __noinline __u32 copy_kind(struct pt_regs *ctx, const volatile struct op_info *info, __u64 fields)
{
	__u32 kind = info->kind;

	if (info->kind_arg)
		kind = argument(ctx, info->kind_arg);
	else if (info->kind_at)
		kind = user_int(fields + info->kind_at);
	else if (info->source_at)
		return kind_of_memory(user_int(fields + info->source_at), user_int(fields + info->destination_at));
	return kind <= COPY_P2P ? kind : COPY_DEFAULT;
}

/* Bytes of an ncclDataType_t. */
static __always_inline __u32 datatype_bytes(__u32 datatype)
{
	switch (datatype) {
	case 2: /* int32 */
	case 3: /* uint32 */
	case 7: /* float32 */
		return 4;
	case 4: /* int64 */
	case 5: /* uint64 */
	case 8: /* float64 */
		return 8;
	case 6: /* float16 */
	case 9: /* bfloat16 */
		return 2;
	default: /* int8, uint8 and the kinds of float8 */
		return 1;
	}
}

static __noinline void read_arguments(struct pt_regs *ctx, const volatile struct op_info *info, struct frame *frame)
{
	__u64 pointer = argument(ctx, 1);

	frame->pointer = pointer;
	frame->bytes = 0;
	switch (info->role) {
	case ARGS_COPY:
	case ARGS_ALLOC:
		frame->bytes = argument(ctx, info->first);
		break;
	case ARGS_COPY_2D:
		frame->bytes = argument(ctx, info->first) * argument(ctx, info->second);
		break;
	case ARGS_COPY_FIELDS_2D:
		frame->bytes = user_word(pointer + info->first) * user_word(pointer + info->first + 8);
		break;
	case ARGS_COPY_FIELDS_3D:
		frame->bytes = user_word(pointer + info->first) * user_word(pointer + info->first + 8) *
			       user_word(pointer + info->first + 16);
		break;
	case ARGS_ALLOC_PITCH:
		/* The pitch is known at return; until then its address is kept where it will be multiplied. */
		frame->bytes = argument(ctx, info->first);
		frame->function = argument(ctx, 2);
		break;
	case ARGS_COLLECTIVE:
		frame->bytes = argument(ctx, info->first) * datatype_bytes(argument(ctx, info->second));
		break;
	case ARGS_RANK:
		frame->bytes = argument(ctx, info->first) << 32 | (__u32)argument(ctx, info->second);
		break;
	default:
		break;
	}
	if (info->role >= ARGS_COPY && info->role <= ARGS_COPY_FIELDS_3D)
		frame->kind = copy_kind(ctx, info, pointer);
}

static __noinline void bytes_add(__u32 proc_id, __u16 what, __u16 which, __u64 amount)
{
	struct bytes_key key = { .proc_id = proc_id, .what = what, .which = which };
	__u64 *total = bpf_map_lookup_elem(&bytes, &key);

	if (!total) {
		bpf_map_update_elem(&bytes, &key, &zero_u64, BPF_NOEXIST);
		total = bpf_map_lookup_elem(&bytes, &key);
		if (!total) {
			count_self(SELF_FULL_BYTES);
			return;
		}
	}
	__sync_fetch_and_add(total, amount);
}

static __noinline void book_allocation(__u32 proc_id, __u64 address, __u64 amount)
{
	struct allocation_key key = { .address = address, .proc_id = proc_id };

	if (!address)
		return;
	bytes_add(proc_id, BYTES_ALLOCATED, 0, amount);
	if (bpf_map_update_elem(&allocations, &key, &amount, BPF_ANY))
		count_self(SELF_FULL_ALLOCATIONS);
}

static __noinline void book_release(__u32 proc_id, __u64 address)
{
	struct allocation_key key = { .address = address, .proc_id = proc_id };
	__u64 *amount = bpf_map_lookup_elem(&allocations, &key);
	__u64 freed;

	/* Allocated before the daemon came, or not device memory. */
	if (!amount)
		return;
	freed = *amount;
	if (bpf_map_delete_elem(&allocations, &key) == 0)
		bytes_add(proc_id, BYTES_FREED, 0, freed);
}

/* Copies of up to 4 KiB are of class 0, and each class is up to 16 times as large as the one before. */
static __always_inline __u32 size_class(__u64 amount)
{
	__u32 class = 0;

	for (__u64 bound = 4096; class < SIZE_CLASSES - 1 && amount > bound; bound <<= 4)
		class ++;
	return class;
}

static __noinline void book_rank(__u32 proc_id, __u64 ranks_and_rank)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (!proc)
		return;
	proc->world_size = ranks_and_rank >> 32;
	proc->rank_plus_one = (__u32)ranks_and_rank + 1;
}

/* The outermost call has returned after `ns` and has not failed. */
static __noinline void book_arguments(__u32 proc_id, const volatile struct op_info *info, struct frame *frame, __u64 ns)
{
	switch (info->role) {
	case ARGS_COPY:
	case ARGS_COPY_2D:
	case ARGS_COPY_FIELDS_2D:
	case ARGS_COPY_FIELDS_3D:
		bytes_add(proc_id, BYTES_COPIED, frame->kind, frame->bytes);
		hist_add(proc_id, HIST_COPY, frame->kind, size_class(frame->bytes), ns);
		break;
	case ARGS_ALLOC:
		book_allocation(proc_id, user_word(frame->pointer), frame->bytes);
		break;
	case ARGS_ALLOC_PITCH:
		book_allocation(proc_id, user_word(frame->pointer), user_word(frame->function) * frame->bytes);
		break;
	case ARGS_FREE:
		book_release(proc_id, frame->pointer);
		break;
	case ARGS_COLLECTIVE:
		bytes_add(proc_id, BYTES_COLLECTIVE, frame->op, frame->bytes);
		break;
	case ARGS_RANK:
		book_rank(proc_id, frame->bytes);
		break;
	default:
		break;
	}
}
