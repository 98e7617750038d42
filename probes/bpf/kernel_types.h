/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The kernel types and fields that the programs read. Offsets are relocated with the running kernel's BTF; only names
 * and nesting matter here. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_F_USER_STACK = 1 << 8,
	BPF_F_MMAPABLE = 1 << 10,
};

enum pid_type {
	PIDTYPE_SID = 3,
};

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct atomic_int {
	int counter;
};

struct core_state;

struct upid {
	int nr;
};

struct pid {
	struct upid numbers[1];
};

struct signal_struct {
	struct atomic_int live;
	unsigned int flags;
	unsigned int is_child_subreaper : 1;
	struct pid *pids[4];
	struct core_state *core_state;
	unsigned long min_flt;
	unsigned long maj_flt;
	unsigned long long sum_sched_runtime;
	__u64 cutime;
	__u64 cstime;
};

struct atomic_long {
	long counter;
};

struct mutex {
	struct atomic_long owner;
};

struct rw_semaphore {
	struct atomic_long owner;
};

struct inode;

struct address_space {
	struct inode *host;
	struct rw_semaphore invalidate_lock;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
	struct address_space *i_mapping;
	struct rw_semaphore i_rwsem;
	struct address_space i_data;
	struct file_lock_context *i_flctx;
};

struct list_head {
	struct list_head *next;
};

/* The locks of a file that are held, of flock and of fcntl. */
struct file_lock_context {
	struct list_head flc_flock;
	struct list_head flc_posix;
};

/* In a lock of a file, as of 6.9. */
struct file_lock_core {
	struct list_head flc_list;
	struct list_head flc_blocked_requests;
	int flc_pid;
};

struct file_lock___old {
	struct list_head fl_list;
	struct list_head fl_blocked_requests;
	unsigned int fl_pid;
};

struct super_block;

struct dentry {
	struct super_block *d_sb;
};

struct super_block {
	struct dentry *s_root;
	struct mutex s_vfs_rename_mutex;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct io_ring_ctx {
	unsigned int flags;
	void *sq_sqes;
	unsigned int *sq_array;
	unsigned int cached_sq_head;
	unsigned int sq_entries;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#endif

struct bpf_run_ctx;

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct percpu_counter {
	__s64 count;
};

struct mm_struct {
	struct rw_semaphore mmap_lock;
	struct uprobes_state uprobes_state;
	struct percpu_counter rss_stat[4];
};

struct mm_rss_stat {
	struct atomic_long count[4];
};

struct mm_struct___old {
	struct mm_rss_stat rss_stat;
};

struct return_instance {
	unsigned long stack;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct sched_info {
	__u64 run_delay;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	unsigned char sched_delayed;
};

struct thread_info {
	__u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	/* Signed before Linux 7, and one unsigned byte since: libbpf reads a smaller field only as an unsigned number. */
	unsigned int on_rq;
	int pid;
	int tgid;
	unsigned int in_iowait : 1;
	unsigned int in_memstall : 1;
	unsigned int frozen : 1;
	unsigned long jobctl;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct signal_struct *signal;
	struct files_struct *files;
	struct sched_entity se;
	struct sched_info sched_info;
	struct mm_struct *mm;
	struct uprobe_task *utask;
	__u64 start_time;
	__u64 start_boottime;
	unsigned long min_flt;
	unsigned long maj_flt;
	char comm[16];
	struct bpf_run_ctx *bpf_ctx;
#if defined(__TARGET_ARCH_x86)
	struct thread_struct thread;
#endif
};

struct bpf_session_run_ctx {
	bool is_return;
};

struct bpf_uprobe {
	__u64 cookie;
};

struct bpf_uprobe_multi_run_ctx {
	struct bpf_session_run_ctx session_ctx;
	struct bpf_uprobe *uprobe;
};

struct page;
struct sk_buff;

struct gendisk {
	char disk_name[32];
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
};

struct bpf_local_storage;

struct socket_lock {
	int owned;
};

struct sock_common {
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	struct socket_lock sk_lock;
	struct bpf_local_storage *sk_bpf_storage;
};

struct socket {
	struct sock *sk;
};

struct linux_binprm {
	int argc;
};

#if defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
	__u64 orig_x0;
	__s32 syscallno;
};
#endif

#pragma clang attribute pop

/* These are not relocated, as the kernel does not move what others read: iterators' contexts, and registers (PTRACE_GETREGS). To
 * find a type takes libbpf a search through all of the kernel's. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#endif
