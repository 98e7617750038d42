/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The system call that a task is in, and its arguments. */
#pragma once

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_FUTEX 202
#define SYSCALL_FLOCK 73
#define SYSCALL_FCNTL 72
#else
#define SYSCALL_FUTEX 98
#define SYSCALL_FLOCK 32
#define SYSCALL_FCNTL 25
#endif

static __always_inline long syscall_number(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (long)regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

/* Where the task goes on in its program. */
static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->ip;
#else
	return regs->user_regs.pc;
#endif
}

/* The mask is kept where comparisons make it redundant: on arm64 the verifier of Linux 6.1 does not know them any more. */
static __always_inline __u32 syscall_index(long number)
{
	__u32 index = number;

	barrier_var(index);
	return index & (MAX_SYSCALLS - 1);
}

static __always_inline __u64 first_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->di;
#else
	return regs->orig_x0;
#endif
}

static __always_inline __u64 second_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->si;
#else
	return regs->user_regs.regs[1];
#endif
}

static __always_inline __u32 third_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->dx;
#else
	return regs->user_regs.regs[2];
#endif
}

static __always_inline __u64 fourth_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->r10;
#else
	return regs->user_regs.regs[3];
#endif
}
