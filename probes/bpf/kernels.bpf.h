/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Launched kernel functions: launch counts, whether they are loaded, durations of the hottest, and names of the handles
 * that the driver and the runtime return. Host functions are named by user space. */
#pragma once

/* Counts a launch of a kernel without a record. */
VERIFIED_ONCE int count_other_launch(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	if (proc)
		__sync_fetch_and_add(&proc->measures.other_launches, 1);
	count_self(SELF_FULL_KERNELS);
	return 0;
}

/* A process may use a bounded part of the map. */
static __noinline bool may_add_kernel(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->kernels < MAX_KERNELS && __sync_fetch_and_add(&proc->kernels, 1) < MAX_KERNELS;
}

VERIFIED_ONCE int may_remember_kernel(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->kernels < MAX_KERNELS;
}

/* Adds the record of a new kernel; false when the map is full. */
VERIFIED_ONCE int add_kernel(__u32 proc_id, __u64 function)
{
	struct kernel_key key = { .function = function, .proc_id = proc_id };
	struct kernel first = {};

	if (may_add_kernel(proc_id))
		ADD_ENTRY(&kernels, ADDED_KERNELS, &key, &first);
	if (bpf_map_lookup_elem(&kernels, &key))
		return true;
	count_other_launch(proc_id);
	return false;
}

/* Returns true if this launch may have to load its kernel: until the first launch has returned, and for kernels without
 * a record, as tails are evaluated on launches known to be warm. */
static __always_inline bool is_cold(struct thread *thread, struct frame *frame)
{
	struct kernel *kernel;

	thread->kernel_key.function = frame->function;
	thread->kernel_key.proc_id = thread->proc_id;
	kernel = bpf_map_lookup_elem(&kernels, &thread->kernel_key);
	frame->kind = 0;
	if (!kernel && add_kernel(thread->proc_id, frame->function))
		kernel = bpf_map_lookup_elem(&kernels, &thread->kernel_key);
	if (!kernel)
		return true;
	__sync_fetch_and_add(&kernel->launches, 1);
	frame->kind = kernel->timed;
	return !kernel->loaded;
}

static __noinline void mark_loaded(__u32 proc_id, __u64 function)
{
	struct kernel_key key = { .function = function, .proc_id = proc_id };
	struct kernel *kernel = bpf_map_lookup_elem(&kernels, &key);

	if (kernel)
		kernel->loaded = 1;
}

/* Counts a launch by name whose return is not seen. Its kernel counts as loaded. */
VERIFIED_ONCE int count_by_name(__u32 proc_id, __u64 function)
{
	struct kernel_key key = { .function = function, .proc_id = proc_id };
	struct kernel *kernel;

	if (!function)
		return 0;
	kernel = bpf_map_lookup_elem(&kernels, &key);
	if (!kernel && add_kernel(proc_id, function))
		kernel = bpf_map_lookup_elem(&kernels, &key);
	if (!kernel)
		return 0;
	__sync_fetch_and_add(&kernel->launches, 1);
	kernel->loaded = 1;
	return 0;
}

static __noinline bool may_add_kernel_name(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc && proc->kernel_names < MAX_KERNEL_NAMES &&
	       __sync_fetch_and_add(&proc->kernel_names, 1) < MAX_KERNEL_NAMES;
}

/* The entry of a handle, zeroed when new. Handles are reused after their module was unloaded. */
static __noinline struct kernel_name *kernel_name_of(__u32 proc_id, __u64 handle)
{
	struct kernel_key key = { .function = handle, .proc_id = proc_id };
	struct kernel_name *name = bpf_map_lookup_elem(&kernel_names, &key);

	if (name)
		return name;
	if (may_add_kernel_name(proc_id))
		bpf_map_update_elem(&kernel_names, &key, &zero_kernel_name, BPF_NOEXIST);
	name = bpf_map_lookup_elem(&kernel_names, &key);
	if (!name)
		count_self(SELF_FULL_KERNEL_NAMES);
	return name;
}

/* A handle was returned. `frame->bytes` is the address of its name, or the handle that it is equal to. */
static __noinline void record_kernel_name(__u32 proc_id, const volatile struct op_info *info, struct frame *frame)
{
	__u64 handle = frame->pointer ? user_word(frame->pointer) : 0;
	struct kernel_name *name;

	if (!handle || handle == frame->bytes)
		return;
	name = kernel_name_of(proc_id, handle);
	if (!name)
		return;
	if (info->role == ARGS_KERNEL_ALIAS) {
		name->stands_for = frame->bytes;
		return;
	}
	name->stands_for = 0;
	bpf_probe_read_user_str(name->text, sizeof(name->text), (void *)frame->bytes);
}

/* Run by user space: starts timing a kernel's warm launches in an entry of `kernel_hists`, counted from 1. A program,
 * because an update from user space would overwrite the count of launches. */
SEC("raw_tp")
int BPF_PROG(time_kernel, __u64 function, __u64 proc_id, __u64 timed)
{
	struct kernel_key key = { .function = function, .proc_id = proc_id };
	struct kernel *kernel = bpf_map_lookup_elem(&kernels, &key);

	if (!kernel)
		return 0;
	kernel->timed = timed;
	return 1;
}
