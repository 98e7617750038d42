/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Accounting from call arguments: bytes copied, allocated, freed and sent, and ranks. Read at entry, recorded at return, for
 * successful outermost calls, so that the driver's part of a runtime call is not counted twice. Kernel names are an
 * exception, see has_arguments.
 *
 * Device memory is identified by the result of its allocation: an address, an array or a handle. One map has all of them:
 * arrays and handles are host addresses, which no device address can equal. */
#pragma once

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

/* Reads an argument from the location that `Abi` in Rust defines: a register, or a word of the stack. All registers are
 * read at fixed offsets first: the verifier rejects a context pointer with a variable offset. */
VERIFIED_ONCE __u64 argument(struct bpf_user_pt_regs_t *ctx, __u32 location)
{
	__u64 first = PT_REGS_PARM1(ctx), second = PT_REGS_PARM2(ctx), third = PT_REGS_PARM3(ctx);
	__u64 fourth = PT_REGS_PARM4(ctx), fifth = PT_REGS_PARM5(ctx), sixth = PT_REGS_PARM6(ctx);
#if defined(__TARGET_ARCH_arm64)
	__u64 seventh = PT_REGS_PARM7(ctx), eighth = PT_REGS_PARM8(ctx);

	barrier_var(seventh);
	barrier_var(eighth);
#endif

	barrier_var(first);
	barrier_var(second);
	barrier_var(third);
	barrier_var(fourth);
	barrier_var(fifth);
	barrier_var(sixth);
	switch (location) {
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
#if defined(__TARGET_ARCH_arm64)
	case 7:
		return seventh;
	case 8:
		return eighth;
#endif
	default:
		break;
	}
	return location < ARGUMENT_STACK ? 0 : user_word(PT_REGS_SP(ctx) + 8 * (location - ARGUMENT_STACK));
}

/* The address of a structure of more than two words passed by value: on the stack, or in a register. */
static __always_inline __u64 structure(struct bpf_user_pt_regs_t *ctx, __u32 location)
{
	return location < ARGUMENT_STACK ? argument(ctx, location) : PT_REGS_SP(ctx) + 8 * (location - ARGUMENT_STACK);
}

static __always_inline __u32 kind_of_memory(__u32 source, __u32 destination)
{
	if (source == MEMORY_UNIFIED || destination == MEMORY_UNIFIED)
		return COPY_DEFAULT;
	if (source == MEMORY_HOST)
		return destination == MEMORY_HOST ? COPY_H2H : COPY_H2D;
	return destination == MEMORY_HOST ? COPY_D2H : COPY_D2D;
}

static __noinline __u32 copy_kind(struct bpf_user_pt_regs_t *ctx, const volatile struct op_info *info, __u64 fields)
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

/* Size of an ncclDataType_t. */
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

/* A dimension of an array; missing ones are 0. */
static __always_inline __u64 length_at(__u64 address)
{
	__u64 length = user_word(address);

	return length ? length : 1;
}

/* Bits per element from a cudaChannelFormatDesc, which starts with those of its four channels. */
VERIFIED_ONCE __u32 element_bits(__u64 format)
{
	return user_int(format) + user_int(format + 4) + user_int(format + 8) + user_int(format + 12);
}

/* Bytes per channel from a CUarray_format; block-compressed formats count as one byte. */
static __always_inline __u32 channel_bytes(__u32 format)
{
	switch (format) {
	case 0x03: /* uint32 */
	case 0x0a: /* int32 */
	case 0x20: /* float */
		return 4;
	case 0x02: /* uint16 */
	case 0x09: /* int16 */
	case 0x10: /* half */
	case 0xc3: /* unorm16, of 1, 2 and 4 channels */
	case 0xc4:
	case 0xc5:
	case 0xc9: /* snorm16 */
	case 0xca:
	case 0xcb:
		return 2;
	default:
		return 1;
	}
}

/* Bytes of an array from its CUDA_ARRAY_DESCRIPTOR or CUDA_ARRAY3D_DESCRIPTOR. */
VERIFIED_ONCE __u64 described_bytes(__u64 descriptor, __u32 lengths)
{
	__u64 element = descriptor + 8 * lengths;
	__u64 cells = user_word(descriptor) * length_at(descriptor + 8);

	if (lengths > 2)
		cells *= length_at(descriptor + 16);
	return cells * channel_bytes(user_int(element)) * user_int(element + 4);
}

/* Removes an allocation from the map and returns its bytes. Done before the free: afterwards another thread may get and
 * record the same address before this call returns. */
VERIFIED_ONCE __u64 take_allocation(__u32 proc_id, __u64 address)
{
	struct allocation_key key = { .address = address, .proc_id = proc_id };
	__u64 *amount = bpf_map_lookup_elem(&allocations, &key);
	struct proc *proc;
	__u64 taken;

	/* Allocated before the daemon started, or not device memory. */
	if (!amount)
		return 0;
	taken = *amount;
	if (bpf_map_delete_elem(&allocations, &key))
		return 0;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (proc)
		__sync_fetch_and_add(&proc->allocations, -1);
	return taken;
}

/* Requested bytes of an allocation; with a pitch, its number of rows. */
static __noinline __u64 asked_bytes(struct bpf_user_pt_regs_t *ctx, const volatile struct op_info *info)
{
	__u64 box, cells;

	switch (info->role) {
	case ARGS_ALLOC_EXTENT:
		box = structure(ctx, info->first);
		return user_word(box + 8) * user_word(box + 16);
	case ARGS_ALLOC_ARRAY:
		cells = argument(ctx, info->second);
		cells = argument(ctx, info->first) * (cells ? cells : 1);
		return cells * element_bits(argument(ctx, 2)) / 8;
	case ARGS_ALLOC_ARRAY_EXTENT:
		box = structure(ctx, info->first);
		cells = user_word(box) * length_at(box + 8) * length_at(box + 16);
		return cells * element_bits(argument(ctx, 2)) / 8;
	case ARGS_ALLOC_ARRAY_DESCRIBED:
		return described_bytes(argument(ctx, 2), info->first);
	default:
		return argument(ctx, info->first);
	}
}

/* A cudaMemcpy3DBatchOp, with the offsets of width in bytes, height and depth. */
#define BOX_BYTES 112
#define BOX_EXTENT_AT 80

struct batch {
	__u64 at;
	__u64 total;
	__u32 stride;
};

static long add_copy(__u64 index, void *context)
{
	struct batch *batch = context;
	__u64 part = batch->at + index * batch->stride;
	__u64 amount = user_word(part);

	if (batch->stride == BOX_BYTES)
		amount *= user_word(part + 8) * user_word(part + 16);
	batch->total += amount;
	return 0;
}

/* Bytes of a batched copy. */
static __noinline __u64 batch_bytes(struct bpf_user_pt_regs_t *ctx, const volatile struct op_info *info)
{
	struct batch batch = { .at = argument(ctx, info->first), .stride = sizeof(__u64) };
	__u64 count = argument(ctx, info->second);

	if (info->role == ARGS_COPY_BOXES) {
		batch.at += BOX_EXTENT_AT;
		batch.stride = BOX_BYTES;
	}
	bpf_loop(count < MAX_BATCH ? count : MAX_BATCH, add_copy, &batch, 0);
	return count <= MAX_BATCH ? batch.total : batch.total / MAX_BATCH * count;
}

VERIFIED_ONCE int read_arguments(struct bpf_user_pt_regs_t *ctx, struct frame *frame, __u32 proc_id)
{
	const volatile struct op_info *info;
	__u64 pointer = argument(ctx, 1);

	if (!frame)
		return 0;
	info = &op_info[frame->op & (MAX_OPS - 1)];
	frame->pointer = pointer;
	frame->bytes = 0;
	switch (info->role) {
	case ARGS_COPY:
		frame->bytes = argument(ctx, info->first);
		break;
	case ARGS_COPY_2D:
		frame->bytes = argument(ctx, info->first) * argument(ctx, info->second);
		break;
	case ARGS_COPY_SIZES:
	case ARGS_COPY_BOXES:
		frame->bytes = batch_bytes(ctx, info);
		break;
	case ARGS_COPY_FIELDS_2D:
		frame->bytes = user_word(pointer + info->first) * user_word(pointer + info->first + 8);
		break;
	case ARGS_COPY_FIELDS_3D:
		frame->bytes = user_word(pointer + info->first) * user_word(pointer + info->first + 8) *
			       user_word(pointer + info->first + 16);
		break;
	case ARGS_ALLOC:
	case ARGS_ALLOC_ARRAY:
	case ARGS_ALLOC_ARRAY_EXTENT:
	case ARGS_ALLOC_ARRAY_DESCRIBED:
		frame->bytes = asked_bytes(ctx, info);
		break;
	case ARGS_ALLOC_PITCH:
	case ARGS_ALLOC_EXTENT:
		/* The pitch is known at return; until then its address is stored here. */
		frame->bytes = asked_bytes(ctx, info);
		frame->function = info->role == ARGS_ALLOC_PITCH ? argument(ctx, 2) : pointer + 8;
		break;
	case ARGS_FREE:
		frame->bytes = take_allocation(proc_id, pointer);
		break;
	case ARGS_COLLECTIVE:
		frame->bytes = argument(ctx, info->first) * datatype_bytes(argument(ctx, info->second));
		break;
	case ARGS_RANK:
		frame->bytes = argument(ctx, info->first) << 32 | (__u32)argument(ctx, info->second);
		break;
	case ARGS_KERNEL_NAME:
	case ARGS_KERNEL_ALIAS:
		frame->bytes = argument(ctx, info->first);
		break;
	default:
		break;
	}
	if (info->role >= ARGS_COPY && info->role <= ARGS_COPY_FIELDS_3D)
		frame->kind = copy_kind(ctx, info, pointer);
	return 0;
}

VERIFIED_ONCE int bytes_add(__u32 proc_id, __u16 what, __u16 which, __u64 amount)
{
	struct bytes_key key = { .proc_id = proc_id, .what = what, .which = which };
	__u64 *total = bpf_map_lookup_elem(&bytes, &key);

	if (!total) {
		ADD_ENTRY(&bytes, ADDED_BYTES, &key, &zero_u64);
		total = bpf_map_lookup_elem(&bytes, &key);
		if (!total) {
			count_self(SELF_FULL_BYTES);
			return 0;
		}
	}
	__sync_fetch_and_add(total, amount);
	return 0;
}

/* A process may use a bounded part of the map. Allocations beyond the limit count as freed at once: their release would
 * not be seen, and they would look like a leak. */
VERIFIED_ONCE int remember_allocation(__u32 proc_id, __u64 address, __u64 amount)
{
	struct allocation_key key = { .address = address, .proc_id = proc_id };
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (proc) {
		if (__sync_fetch_and_add(&proc->allocations, 1) < MAX_ALLOCATIONS &&
		    !bpf_map_update_elem(&allocations, &key, &amount, BPF_NOEXIST))
			return 0;
		__sync_fetch_and_add(&proc->allocations, -1);
	}
	count_self(SELF_FULL_ALLOCATIONS);
	bytes_add(proc_id, BYTES_FREED, 0, amount);
	return 0;
}

VERIFIED_ONCE int record_allocation(__u32 proc_id, __u64 address, __u64 amount)
{
	struct allocation_key key = { .address = address, .proc_id = proc_id };
	__u64 *before;

	if (!address)
		return 0;
	bytes_add(proc_id, BYTES_ALLOCATED, 0, amount);
	before = bpf_map_lookup_elem(&allocations, &key);
	/* The address is free: it was released with its context, or by an unseen call. */
	if (before) {
		bytes_add(proc_id, BYTES_FREED, 0, *before);
		*before = amount;
		return 0;
	}
	remember_allocation(proc_id, address, amount);
	return 0;
}

/* A free returned with this code: the memory is gone, or still allocated. */
VERIFIED_ONCE int record_release(__u32 proc_id, struct frame *frame, __u32 code)
{
	if (!frame || !frame->bytes)
		return 0;
	if (!code)
		bytes_add(proc_id, BYTES_FREED, 0, frame->bytes);
	else
		remember_allocation(proc_id, frame->pointer, frame->bytes);
	return 0;
}

/* Class 0 is up to 4 KiB; each next class is up to 16 times as large. */
static __always_inline __u32 size_class(__u64 amount)
{
	__u32 class = 0;

	for (__u64 bound = 4096; class < SIZE_CLASSES - 1 && amount > bound; bound <<= 4)
		class ++;
	return class;
}

static __noinline void record_rank(__u32 proc_id, __u64 ranks_and_rank)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (!proc)
		return;
	proc->world_size = ranks_and_rank >> 32;
	proc->rank_plus_one = (__u32)ranks_and_rank + 1;
}

/* The outermost call returned `code` after `ns`. */
static __noinline void record_arguments(__u32 proc_id, const volatile struct op_info *info, struct frame *frame,
					__u64 ns, __u32 code)
{
	if (info->role == ARGS_FREE)
		record_release(proc_id, frame, code);
	if (code)
		return;
	switch (info->role) {
	case ARGS_COPY:
	case ARGS_COPY_2D:
	case ARGS_COPY_SIZES:
	case ARGS_COPY_BOXES:
	case ARGS_COPY_FIELDS_2D:
	case ARGS_COPY_FIELDS_3D:
		bytes_add(proc_id, BYTES_COPIED, frame->kind, frame->bytes);
		hist_add(proc_id, HIST_COPY, frame->kind, size_class(frame->bytes), ns);
		break;
	case ARGS_ALLOC:
	case ARGS_ALLOC_ARRAY:
	case ARGS_ALLOC_ARRAY_EXTENT:
	case ARGS_ALLOC_ARRAY_DESCRIBED:
		record_allocation(proc_id, user_word(frame->pointer), frame->bytes);
		break;
	case ARGS_ALLOC_PITCH:
	case ARGS_ALLOC_EXTENT:
		record_allocation(proc_id, user_word(frame->pointer), user_word(frame->function) * frame->bytes);
		break;
	case ARGS_COLLECTIVE:
		bytes_add(proc_id, BYTES_COLLECTIVE, frame->op, frame->bytes);
		break;
	case ARGS_RANK:
		record_rank(proc_id, frame->bytes);
		break;
	default:
		break;
	}
}
