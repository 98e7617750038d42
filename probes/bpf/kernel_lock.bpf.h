/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Waits for locks of the kernel: what the lock is for, and who has it. */
#pragma once

/* The kernel's flags of a contended lock; none for a counting semaphore. */
#define LOCK_SPINS 1
#define LOCK_READ 2
#define LOCK_WRITE 4
/* Another layout, of a kernel with PREEMPT_RT, and one in parts for each CPU: both without an owner where others have it. */
#define LOCK_RT 8
#define LOCK_PER_CPU 16
#define LOCK_MUTEX 32

/* In the lowest bits of an owner; a semaphore that readers have names one that had it, as likely as not no more. */
#define OWNER_FLAGS 7ULL
#define READERS_OWN 1

static __always_inline bool is_of_inode(__u64 lock)
{
	struct inode *inode = (void *)(lock - bpf_core_field_offset(struct inode, i_rwsem));

	return (__u64)BPF_CORE_READ(inode, i_mapping) == (__u64)&inode->i_data;
}

static __always_inline bool is_of_pages(__u64 lock)
{
	struct address_space *pages = (void *)(lock - bpf_core_field_offset(struct address_space, invalidate_lock));
	struct inode *inode = BPF_CORE_READ(pages, host);

	return inode && (__u64)&inode->i_data == (__u64)pages;
}

static __always_inline bool is_of_renames(__u64 lock)
{
	struct super_block *disk = (void *)(lock - bpf_core_field_offset(struct super_block, s_vfs_rename_mutex));
	struct dentry *root = BPF_CORE_READ(disk, s_root);

	return root && (__u64)BPF_CORE_READ(root, d_sb) == (__u64)disk;
}

/* Returns the kind of a lock that the running task contends for. Locks of files are known by what is around them, which
 * points to itself. */
VERIFIED_ONCE __u32 lock_kind(__u64 lock, __u32 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (flags & (LOCK_READ | LOCK_WRITE)) {
		if (lock == (__u64)BPF_CORE_READ(task, mm) + bpf_core_field_offset(struct mm_struct, mmap_lock))
			return LOCK_KIND_ADDRESS_SPACE;
		return is_of_inode(lock) || is_of_pages(lock) ? LOCK_KIND_INODE : LOCK_KIND_RWSEM;
	}
	if (flags & (LOCK_MUTEX | LOCK_RT))
		return is_of_renames(lock) ? LOCK_KIND_RENAME : LOCK_KIND_MUTEX;
	return LOCK_KIND_SEMAPHORE;
}

/* The task that has the lock, by address; 0 where the lock does not say. */
VERIFIED_ONCE __u64 lock_owner(__u64 lock, __u32 flags)
{
	const struct rw_semaphore *semaphore = (void *)lock;
	const struct mutex *mutex = (void *)lock;
	__u64 owner = 0;

	if (flags & (LOCK_RT | LOCK_PER_CPU))
		return 0;
	if (flags & LOCK_MUTEX) {
		if (bpf_core_field_exists(mutex->owner))
			bpf_probe_read_kernel(&owner, sizeof(owner), &mutex->owner);
		return owner & ~OWNER_FLAGS;
	}
	if (flags & (LOCK_READ | LOCK_WRITE) && bpf_core_field_exists(semaphore->owner))
		bpf_probe_read_kernel(&owner, sizeof(owner), &semaphore->owner);
	return owner & READERS_OWN ? 0 : owner & ~OWNER_FLAGS;
}

/* The relation of the process with this tgid to the process `proc_id`. */
static __noinline __u32 relation_of_tgid(__u32 tgid, __u32 proc_id)
{
	__u32 *other_id = bpf_map_lookup_elem(&tracked, &tgid);

	return other_id ? relation_of_process(*other_id, proc_id) : RELATION_OTHER;
}

/* Names the task at this address in the place of the one that will end the wait. */
VERIFIED_ONCE int name_owner(struct thread *thread, __u64 address)
{
	struct task_struct *owner = (void *)address, *named;
	__u32 tgid = BPF_CORE_READ(owner, tgid), tid = BPF_CORE_READ(owner, pid);
	bool is_own;

	if (!thread || !tgid)
		return 0;
	is_own = tgid == thread->tgid;
	thread->wakes = HOLDS_LOCK;
	forget_waker(thread);
	thread->waker.tgid = tgid;
	thread->waker.relation = is_own ? RELATION_THREAD : relation_of_tgid(tgid, thread->proc_id);
	thread->waker_tid = is_own ? tid : 0;
	named = is_own ? owner : BPF_CORE_READ(owner, group_leader);
	bpf_probe_read_kernel(thread->waker.comm, COMM_LEN, &named->comm);
	return 0;
}

static __always_inline bool is_suspended(__u32 reason)
{
	return reason == REASON_FROZEN || reason == REASON_STOPPED || reason == REASON_CORE_DUMP;
}

/* Returns true if the running task is where it began to contend: an end may be missed, as by a program that interrupts
 * another run of it. */
VERIFIED_ONCE int still_contends(struct thread *thread)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!thread)
		return false;
	if (thread->contended_ip == user_ip((struct pt_regs *)bpf_task_pt_regs(task)))
		return true;
	thread->contended = 0;
	return false;
}

/* The running task blocks while it contends for a lock: for that, whatever it is in. */
static __noinline void note_kernel_lock(struct thread *thread, struct task_struct *task)
{
	__u64 lock = thread->contended, owner;
	__u32 flags = thread->contended_flags;

	if (is_suspended(thread->off_reason))
		return;
	thread->off_reason = REASON_KERNEL_LOCK;
	thread->blocked_on = lock_kind(lock, flags) + 1;
	/* Who woke it before it slept may not have had the lock. */
	thread->wakes = 0;
	owner = lock_owner(lock, flags);
	if (owner && owner != (__u64)task)
		name_owner(thread, owner);
}
