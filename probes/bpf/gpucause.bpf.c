// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* The only translation unit: it includes all program families, so that they share maps and settings without linking.
 * Families call each other only through thread.bpf.h. */
#include "kernel_types.h"
/* Makes bpf_tracing.h use the kernel's register names, as kernel_types.h does. */
#define __VMLINUX_H__
#if defined(__TARGET_ARCH_x86)
/* The cast of bpf_tracing.h for arm64, whatever the type of the registers is. */
#define __PT_REGS_CAST(x) ((const struct pt_regs *)(x))
#endif
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

/* A function that the verifier checks once, by itself. Static ones are checked again at each call, in each state of their
 * caller, which takes most of the time of a start. Such a function returns a number and takes numbers and memory, which
 * may be null as far as the verifier knows; before Linux 6.9 it cannot take a task. Memory that it takes cannot be the
 * key of a map before 6.2. It uses each argument: the compiler leaves one that it does not use out of calls. */
#define VERIFIED_ONCE __noinline

/* The registers of a traced call: their type is a typedef in the kernel, but before 6.3 such functions take them only as a
 * structure of its name. */
struct bpf_user_pt_regs_t {
};

/* Since 6.2. */
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/* A kernel object as memory that the verifier does not trust. Since 6.3, for each pointer that is loaded by a trusted one it
 * searches all types of the kernel by name, several times, which takes as long as thousands of its steps. */
#define UNTRUSTED(kind, pointer)                                                                                       \
	((const struct kind *)(bpf_ksym_exists(bpf_rdonly_cast)                                                        \
				       ? bpf_rdonly_cast(pointer, bpf_core_type_id_kernel(struct kind))                \
				       : (pointer)))

#include "abi.h"
#include "maps.bpf.h"
#include "ring.bpf.h"
#include "recorder.bpf.h"
#include "hist.h"
#include "hist.bpf.h"
#include "account.bpf.h"
#include "thread.bpf.h"
#include "syscall.bpf.h"
#include "other_process.bpf.h"
#include "blame.bpf.h"
#include "polled_lock.bpf.h"
#include "lock_holder.bpf.h"
#include "wait_end.bpf.h"
#include "cpu_wait.bpf.h"
#include "switch_in.bpf.h"
#include "kernel_lock.bpf.h"
#include "wait_reason.bpf.h"
#include "arguments.bpf.h"
#include "kernels.bpf.h"
#include "python.bpf.h"
#include "recorded_call.bpf.h"
#include "session.bpf.h"
#include "frames.bpf.h"
#include "launches.bpf.h"
#include "stacks.bpf.h"
#include "returns.bpf.h"

#include "calls.bpf.c"
#include "sched.bpf.c"
#include "lifecycle.bpf.c"
#include "adopt.bpf.c"
#include "block.bpf.c"
#include "kernel_locks.bpf.c"
#include "memory.bpf.c"
#include "network.bpf.c"
#include "report.bpf.c"
#include "samples.bpf.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
