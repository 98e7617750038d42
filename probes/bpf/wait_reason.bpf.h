/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Why a thread blocks: by its state, its system call and what that waits for. */
#pragma once

/* Linux's S_IFMT and the file types that distinguish blocking reads. */
#define FILE_TYPE 0170000
#define FILE_SOCKET 0140000
#define FILE_REGULAR 0100000
#define FILE_BLOCK 0060000
#define FILE_DIRECTORY 0040000
#define FILE_PIPE 0010000
/* Linux's MM_SWAPENTS. */
#define SWAPPED_PAGES 2
/* Linux's AF_UNIX. */
#define FAMILY_UNIX 1

/* TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE */
#define SLEEPING_STATES 0x3
/* __TASK_STOPPED | __TASK_TRACED: stopped by a signal or a debugger. */
#define STOPPED_STATES 0xc
/* In the freezer of a cgroup v1, or of a suspending system. */
#define TASK_FROZEN 0x8000
/* In `jobctl`: its cgroup of version 2 is to be frozen. */
#define JOBCTL_TRAP_FREEZE (1UL << 23)
/* In `flags`: it frees memory, or moves pages to have larger ones. */
#define PF_MEMALLOC 0x800

/* Futex commands, without flags. */
#define FUTEX_COMMAND 0x7f
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_LOCK_PI2 13
/* A flag of the command: the timeout is not in the monotonic clock's time. */
#define FUTEX_CLOCK_REALTIME 0x100
/* Value of a contended glibc mutex ("low-level lock"). */
#define MUTEX_CONTENDED 2

/* Where glibc's mutex has the thread ID of its owner, after the futex, and the largest thread ID. */
#define MUTEX_OWNER 8
#define MAX_TID (1 << 22)

static __always_inline bool is_tid(__u32 number)
{
	return number && number <= MAX_TID;
}

/* Returns true if a thread that blocks in futex wants a mutex of the C library that a thread owns. The library's
 * condition variables and semaphores wait by another command, and a futex that others wait for with the same value has
 * no owner. */
static __always_inline bool wants_mutex(const struct pt_regs *regs)
{
	__u32 command = second_argument(regs) & FUTEX_COMMAND, owner = 0;

	if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2)
		return true;
	if (command != FUTEX_WAIT || third_argument(regs) != MUTEX_CONTENDED)
		return false;
	bpf_probe_read_user(&owner, sizeof(owner), (void *)(first_argument(regs) + MUTEX_OWNER));
	return is_tid(owner);
}

/* glibc's read-write lock. Threads wait on the phase, or behind a writer. */
struct rwlock {
	__u32 readers, writers, phase, behind, zeros[2], writer;
};

/* Bits of `readers`; their number is above. */
#define WRITE_PHASE 1
#define WRITE_LOCKED 2
#define READERS_SHIFT 3
/* Values that such a futex is waited on with, until a writer or until the readers unlock. */
#define UNTIL_WRITER 3
#define UNTIL_READERS 2

/* Returns true if this may be the address of a read-write lock that a thread has as its writer, or that threads read
 * while a writer waits. */
static __noinline bool is_rwlock_held(__u64 address, bool by_readers)
{
	struct rwlock lock;

	if (bpf_probe_read_user(&lock, sizeof(lock), (void *)address) || lock.zeros[0] || lock.zeros[1])
		return false;
	if (!by_readers)
		return is_tid(lock.writer);
	return !lock.writer && lock.readers >> READERS_SHIFT &&
	       (lock.readers & (WRITE_PHASE | WRITE_LOCKED)) == WRITE_LOCKED;
}

/* Returns true if a thread that blocks in futex wants a read-write lock of the C library that others have. */
static __always_inline bool wants_rwlock(const struct pt_regs *regs)
{
	__u64 futex = first_argument(regs), of_phase = futex - __builtin_offsetof(struct rwlock, phase);
	__u32 value = third_argument(regs);

	if ((second_argument(regs) & FUTEX_COMMAND) != FUTEX_WAIT_BITSET)
		return false;
	if (value == UNTIL_READERS)
		return is_rwlock_held(of_phase, true);
	return value == UNTIL_WRITER && (is_rwlock_held(of_phase, false) ||
					 is_rwlock_held(futex - __builtin_offsetof(struct rwlock, behind), false));
}

/* A futex wait that times out sooner is repeated: the thread polls. Python does so every 5 ms for its interpreter's lock. */
#define POLL_NS 20000000ULL
#define SECOND_NS 1000000000ULL
/* A relative time begins with the system call, not when the thread then leaves its CPU. */
#define CALLED_NS 20000ULL

/* When the wait times out, if that is soon; else 0. */
static __always_inline __u64 polls_until(const struct pt_regs *regs, __u64 now)
{
	__u32 operation = second_argument(regs), command = operation & FUTEX_COMMAND;
	__u64 timeout[2], until;

	if (command != FUTEX_WAIT && (command != FUTEX_WAIT_BITSET || operation & FUTEX_CLOCK_REALTIME))
		return 0;
	if (!fourth_argument(regs) || bpf_probe_read_user(timeout, sizeof(timeout), (void *)fourth_argument(regs)))
		return 0;
	until = timeout[0] * SECOND_NS + timeout[1] + (command == FUTEX_WAIT ? now - CALLED_NS : 0);
	return until > now && until - now <= POLL_NS ? until : 0;
}

/* Notes the wait of the running task in futex: as one for a lock only where that is known. */
static __noinline void note_futex(struct thread *thread, struct task_struct *task, __u64 now)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u32 futex = first_argument(regs) >> 3;

	if (syscall_number(regs) != SYSCALL_FUTEX)
		return;
	if (!is_beside(futex, thread->polled))
		thread->timed_out_ns = 0;
	if (wants_mutex(regs) || wants_rwlock(regs)) {
		thread->off_reason = REASON_LOCK;
		return;
	}
	thread->polls_until_ns = polls_until(regs, now);
	if (!thread->polls_until_ns)
		return;
	note_poll(thread, futex, task->se.sum_exec_runtime, now);
	if (thread->polled == thread->polled_lock)
		thread->off_reason = REASON_LOCK;
}

/* Classifies a wait on descriptor `fd`: only files and block devices are I/O. */
static __always_inline __u32 descriptor_reason(struct thread *thread, struct task_struct *task, __u32 fd, __u32 writes)
{
	struct file *file = file_of(task, fd);
	__u32 local = WAITS_LOCALLY | (writes ? WAITS_FOR_ROOM : 0);
	struct socket *socket;

	if (!file)
		return REASON_OTHER;
	switch (BPF_CORE_READ(file, f_inode, i_mode) & FILE_TYPE) {
	case FILE_REGULAR:
	case FILE_BLOCK:
	case FILE_DIRECTORY:
		return REASON_IO;
	case FILE_SOCKET:
		socket = BPF_CORE_READ(file, private_data);
		if (BPF_CORE_READ(socket, sk, __sk_common.skc_family) == FAMILY_UNIX)
			thread->waits_for = local;
		return REASON_NET;
	case FILE_PIPE:
		thread->waits_for = local;
		return REASON_POLL;
	default:
		return REASON_POLL;
	}
}

/* Returns true if a blocking task is in its cgroup's freezer. `frozen` alone is also set while a task waits for its
 * vfork child. */
static __always_inline bool is_frozen(struct task_struct *task)
{
	if (task->__state & TASK_FROZEN)
		return true;
	return bpf_core_field_exists(task->frozen) && task->jobctl & JOBCTL_TRAP_FREEZE &&
	       BPF_CORE_READ_BITFIELD(task, frozen);
}

/* Returns true if a task may wait for a page that had been in memory: the kernel says so of pages that had to go, and a
 * task with pages in swap may wait for one of those. */
static __noinline bool may_be_short_of_memory(struct task_struct *task)
{
	struct mm_struct___old *old = (void *)task->mm;
	long swapped;

	if (!bpf_core_field_exists(task->in_memstall) || BPF_CORE_READ_BITFIELD(task, in_memstall))
		return true;
	/* In one number until 6.1, then in parts for each CPU: the sum of most is enough. */
	if (bpf_core_type_exists(struct mm_rss_stat))
		swapped = BPF_CORE_READ(old, rss_stat.count[SWAPPED_PAGES].counter);
	else
		swapped = BPF_CORE_READ(task, mm, rss_stat[SWAPPED_PAGES].count);
	return swapped > 0;
}

/* Returns true if a task sleeps for lack of memory, not for a page: it frees some, or its cgroup is above `memory.high`, which the kernel
 * shows only while it keeps pressure. */
static __always_inline bool is_short_of_memory(struct task_struct *task, bool in_iowait)
{
	if (task->flags & PF_MEMALLOC)
		return true;
	return !in_iowait && bpf_core_field_exists(task->in_memstall) && BPF_CORE_READ_BITFIELD(task, in_memstall);
}

/* Reason why a task blocks, from its state and system call; the number is negative outside of system calls, where only
 * page faults sleep, besides suspended and exiting tasks. */
static __always_inline __u32 blocked_reason(struct thread *thread, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long number = syscall_number(regs);
	__u32 reason;
	bool in_iowait;

	if (BPF_CORE_READ(task, signal, core_state))
		return REASON_CORE_DUMP;
	if (is_frozen(task))
		return REASON_FROZEN;
	if (task->__state & STOPPED_STATES)
		return REASON_STOPPED;
	in_iowait = BPF_CORE_READ_BITFIELD(task, in_iowait);
	if (is_short_of_memory(task, in_iowait))
		return REASON_PAGE_FAULT;
	if (number < 0) {
		if (task->flags & PF_EXITING || !(task->__state & SLEEPING_STATES))
			return REASON_OTHER;
		if (in_iowait && !may_be_short_of_memory(task))
			thread->waits_for = WAITS_FOR_FILE_PAGE;
		return REASON_PAGE_FAULT;
	}
	if (in_iowait)
		return REASON_IO;
	if (number >= MAX_SYSCALLS)
		return REASON_OTHER;
	reason = syscall_reason[syscall_index(number)];
	if (reason & FIRST_ARG_IS_FD)
		return descriptor_reason(thread, task, first_argument(regs), reason & WRITES);
	if (reason & ASKS_FILE_SYSTEM && !opens_device(regs))
		thread->waits_for = WAITS_IN_FILE_CALL;
	return reason & ~ASKS_FILE_SYSTEM;
}

/* Linux's F_SETLKW and F_OFD_SETLKW. */
static __always_inline bool waits_for_lock(__u64 command)
{
	return command == 7 || command == 38;
}

/* The system call of a wait that has no reason of its own. */
VERIFIED_ONCE int note_syscall(struct thread *thread)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long number = syscall_number(regs);

	if (!thread)
		return 0;
	thread->blocked_on = number + 1;
	if (number != SYSCALL_FLOCK && (number != SYSCALL_FCNTL || !waits_for_lock(second_argument(regs))))
		return 0;
	thread->waits_for |= WAITS_FOR_FILE_LOCK;
	thread->blocked_by = file_lock_owner(task, first_argument(regs), number == SYSCALL_FLOCK);
	return 0;
}

/* Why the running task blocks, in its record. */
VERIFIED_ONCE int note_reason(struct thread *thread, __u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!thread)
		return 0;
	thread->waits_for = 0;
	thread->off_reason = blocked_reason(thread, task);
	thread->polls_until_ns = 0;
	if (thread->off_reason != REASON_FUTEX)
		thread->timed_out_ns = 0;
	if (thread->contended && still_contends(thread))
		note_kernel_lock(thread, task);
	else if (thread->off_reason == REASON_FUTEX)
		note_futex(thread, task, now);
	else if (thread->off_reason == REASON_OTHER)
		note_syscall(thread);
	return 0;
}
