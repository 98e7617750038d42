/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* What a thread waits for from another process: room to write, a file that it serves, the end of a child, work to do.
 *
 * Whoever writes to a full pipe, wants the lock of a file or asks a file system has work: the other process owes all of the wait. Whoever reads, or waits for a child,
 * may as well be idle: the other process owes what it computed meanwhile. The kernel's count of its CPU time tells; that of a task that
 * runs is updated at its ticks only, so it is compared over some of them. Of a child that ends only the count at its end is known: it owes
 * what it cannot have computed before the wait. */
#pragma once

/* Bits of a thread's `waits_for`. On a pipe or a socket of this host: no interrupt ends the wait. */
#define WAITS_LOCALLY 1
/* Until a reader of such a pipe or socket makes room. */
#define WAITS_FOR_ROOM 2
/* In a system call that asks a file system. */
#define WAITS_IN_FILE_CALL 4
/* For a page that is read from a file, where memory is not short. */
#define WAITS_FOR_FILE_PAGE 8
/* For a lock of a file. */
#define WAITS_FOR_FILE_LOCK 0x10

/* Beside the bits of system calls: the waker serves a file system, and answers. */
#define WAKES_FILES 0x10

/* Linux's /dev/fuse: MKDEV(MISC_MAJOR, FUSE_MINOR). */
#define FUSE_DEVICE (10 << 20 | 229)

#define SYSCALL_IO_URING_ENTER 426

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_SPLICE 275
#else
#define SYSCALL_SPLICE 76
#endif

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_OPEN 2
#define SYSCALL_OPENAT 257
#else
#define SYSCALL_OPEN (-1)
#define SYSCALL_OPENAT 56
#endif
#define SYSCALL_OPENAT2 437

/* Returns true if the running task opens a device, or a path below /dev: that waits for a driver, as for a GPU's, and
 * for no file. */
static __noinline bool opens_device(const struct pt_regs *regs)
{
	long number = syscall_number(regs);
	__u64 path, begin = 0;

	if (number == SYSCALL_OPEN)
		path = first_argument(regs);
	else if (number == SYSCALL_OPENAT || number == SYSCALL_OPENAT2)
		path = second_argument(regs);
	else
		return false;
	/* "/dev" or "/dev/" */
	if (bpf_probe_read_user(&begin, 5, (void *)path))
		return false;
	return begin == 0x7665642f || begin == 0x2f7665642f;
}

/* The open file of a task's descriptor; 0 when there is none. */
static __noinline struct file *file_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **slots, *file = 0;

	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	slots = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), slots + fd);
	return file;
}

/* The process that has this lock of a file, if any task waits for the lock; else 0. */
static __noinline __u32 owner_with_waiters(struct list_head *lock)
{
	struct file_lock_core *held;
	struct file_lock___old *old;
	struct list_head *waiters;

	if (bpf_core_type_exists(struct file_lock_core)) {
		held = (void *)lock - bpf_core_field_offset(struct file_lock_core, flc_list);
		waiters = (void *)held + bpf_core_field_offset(struct file_lock_core, flc_blocked_requests);
		return BPF_CORE_READ(waiters, next) != waiters ? BPF_CORE_READ(held, flc_pid) : 0;
	}
	old = (void *)lock - bpf_core_field_offset(struct file_lock___old, fl_list);
	waiters = (void *)old + bpf_core_field_offset(struct file_lock___old, fl_blocked_requests);
	return BPF_CORE_READ(waiters, next) != waiters ? BPF_CORE_READ(old, fl_pid) : 0;
}

/* Locks of a file that are examined: processes may lock parts of one. */
#define MAX_FILE_LOCKS 16

/* The process that has the only lock of the file that any task waits for: of flock's, or of fcntl's; 0 for none. */
static __noinline __u32 file_lock_owner(struct task_struct *task, __u32 fd, bool is_flock)
{
	struct file *file = file_of(task, fd);
	struct file_lock_context *held = file ? BPF_CORE_READ(file, f_inode, i_flctx) : 0;
	struct list_head *list, *lock;
	__u32 owner = 0, other;

	if (!held)
		return 0;
	list = is_flock ? &held->flc_flock : &held->flc_posix;
	lock = BPF_CORE_READ(list, next);
	for (int i = 0; i < MAX_FILE_LOCKS && lock != list; i++) {
		other = owner_with_waiters(lock);
		if (owner && other)
			return 0;
		owner |= other;
		lock = BPF_CORE_READ(lock, next);
	}
	return lock == list ? owner : 0;
}

/* Linux's IORING_ENTER_REGISTERED_RING: the ring is no descriptor. Of a ring: IORING_SETUP_SQE128, IORING_SETUP_NO_SQARRAY. */
#define RING_IS_REGISTERED 0x10
#define RING_LARGE_ENTRIES 0x400
#define RING_WITHOUT_ARRAY 0x10000

/* The first fields of a request in a ring (`struct io_uring_sqe`). */
struct ring_entry {
	__u8 op, flags;
	__u16 priority;
	__u32 fd, command;
};

/* Linux's size of one, IORING_OP_URING_CMD, and FUSE_IO_URING_CMD_COMMIT_AND_FETCH of /dev/fuse. */
#define RING_ENTRY_BYTES 64
#define RING_COMMAND 46
#define RING_ANSWERS 2

/* Returns true if the last request that the kernel took from this ring answers for a file system in user space. */
static __noinline bool ring_serves_files(struct file *file)
{
	struct io_ring_ctx *ring = BPF_CORE_READ(file, private_data);
	struct ring_entry entry;
	__u32 index, flags;

	/* Kernels that are built without io_uring lack it. */
	if (!bpf_core_type_exists(struct io_ring_ctx))
		return false;
	index = (BPF_CORE_READ(ring, cached_sq_head) - 1) & (BPF_CORE_READ(ring, sq_entries) - 1);
	flags = BPF_CORE_READ(ring, flags);
	if (!(flags & RING_WITHOUT_ARRAY) &&
	    bpf_probe_read_kernel(&index, sizeof(index), BPF_CORE_READ(ring, sq_array) + index))
		return false;
	if (flags & RING_LARGE_ENTRIES)
		index *= 2;
	if (bpf_probe_read_kernel(&entry, sizeof(entry), BPF_CORE_READ(ring, sq_sqes) + index * RING_ENTRY_BYTES))
		return false;
	return entry.op == RING_COMMAND && entry.command == RING_ANSWERS;
}

/* Returns true if the running task, in a system call that writes or submits requests of a ring, answers for a file
 * system in user space. */
static __noinline bool serves_files(struct task_struct *task)
{
	const struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long number = syscall_number(regs);
	__u32 fd = number == SYSCALL_SPLICE ? third_argument(regs) : first_argument(regs);
	struct file *file = file_of(task, fd);

	if (!file)
		return false;
	if (number == SYSCALL_IO_URING_ENTER)
		return !(fourth_argument(regs) & RING_IS_REGISTERED) && ring_serves_files(file);
	return BPF_CORE_READ(file, f_inode, i_rdev) == FUSE_DEVICE;
}

/* Returns true if a wait for this reason may be one for a file system in user space. */
static __always_inline bool may_be_of_file(__u32 reason)
{
	return reason == REASON_IO || reason == REASON_PAGE_FAULT || reason == REASON_GPU_DRIVER ||
	       reason == REASON_OTHER;
}

/* Returns true if a wait for this reason may be for the work of another process. */
static __always_inline bool may_be_fed(__u32 reason)
{
	return reason == REASON_POLL || reason == REASON_NET || reason == REASON_CHILD || reason == REASON_FUTEX;
}

#define FED_WHOLE 1024
/* Some ticks of the slowest timer. */
#define FED_EVERY_NS 20000000ULL

static __always_inline __u32 fed_share_of(__u64 ran, __u64 lived)
{
	return !lived || ran >= lived ? FED_WHOLE : ran * FED_WHOLE / lived;
}

/* The share of a wait since `since` for which the process that ends now had a CPU for certain, with the children that it has waited for: what
 * it ran in all, less what it would have run before the wait on every CPU. */
static __noinline __u32 share_of_child(struct task_struct *task, __u64 since, __u64 now)
{
	__u64 began = BPF_CORE_READ(task, group_leader, start_time);
	__u64 before = since > began ? (since - began) * settings.cpus : 0;
	__u64 ran = BPF_CORE_READ(task, se.sum_exec_runtime) + BPF_CORE_READ(task, signal, sum_sched_runtime) +
		    BPF_CORE_READ(task, signal, cutime) + BPF_CORE_READ(task, signal, cstime);

	return since && since < now && ran > before ? fed_share_of(ran - before, now - since) : 0;
}

/* The running task, of another process, wakes the thread: for what share of the time since it last did so it had a CPU. */
static __noinline void note_feeder(struct thread *thread)
{
	struct task_struct *feeder = bpf_get_current_task_btf();
	__u64 ran = feeder->se.sum_exec_runtime, now = bpf_ktime_get_ns();
	bool is_same;

	if (feeder->flags & PF_EXITING) {
		thread->fed_by = 0;
		thread->fed_share = share_of_child(feeder, *(volatile __u64 *)&thread->off_since_ns, now);
		return;
	}
	/* Another task may have got its number. */
	is_same = thread->fed_by == feeder->pid && ran >= thread->fed_ran_ns && now > thread->fed_at_ns;
	if (is_same && now - thread->fed_at_ns < FED_EVERY_NS)
		return;
	thread->fed_share = is_same ? fed_share_of(ran - thread->fed_ran_ns, now - thread->fed_at_ns) : 0;
	thread->fed_by = feeder->pid;
	thread->fed_at_ns = now;
	thread->fed_ran_ns = ran;
}

/* How much of a blocked wait of this length, for no lock of the kernel or of a thread, the process that ended it owes. A worker that prepares data owes nothing here: its
 * own account says what it did. */
static __always_inline __u64 owed_of(const struct thread *thread, __u32 reason, __u64 ns)
{
	__u32 relation = thread->waker.relation;

	if (reason == REASON_PAGE_FAULT && thread->waits_for & WAITS_FOR_FILE_PAGE)
		return ns;
	if (relation != RELATION_OTHER && relation != RELATION_WORKER)
		return 0;
	if (thread->wakes & WAKES_FILES)
		return ns;
	/* Another writer may have been woken first, and passed the rest of the room on. */
	if (thread->waits_for & WAITS_FOR_ROOM)
		return thread->wakes & MAKES_ROOM ? ns : 0;
	/* One that waits may have had the lock after its first owner: how long each had it is not known. */
	if (thread->waits_for & WAITS_FOR_FILE_LOCK && thread->wakes & RELEASES_FILE_LOCK)
		return thread->waker.tgid == thread->blocked_by ? ns : 0;
	if (reason == REASON_CHILD || (relation == RELATION_OTHER && may_be_fed(reason)))
		return ns / FED_WHOLE * thread->fed_share;
	return 0;
}

/* Corrects the reason of a wait that only the task that ends it shows: a call that asks a file system sleeps for much
 * else, and a call that closes a file may ask its file system. */
static __always_inline void settle_reason(struct thread *thread, const struct task_struct *waker)
{
	bool is_kernel = !waker->pid || waker->flags & PF_KTHREAD;

	if (thread->off_reason != REASON_OTHER)
		return;
	if (thread->wakes & WAKES_FILES || (thread->waits_for & WAITS_IN_FILE_CALL && is_kernel))
		thread->off_reason = REASON_IO;
}
