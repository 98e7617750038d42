// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Baselines of the benchmark: the same probes with an empty program, and with one that sends every call to user space,
 * as event-driven tracers do. */
#include "kernel_types.h"
/* Makes bpf_tracing.h use the kernel's register names, as kernel_types.h does. */
#define __VMLINUX_H__
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define BPF_MAP_TYPE_RINGBUF 27

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int empty_session(struct pt_regs *ctx)
{
	return 0;
}

/* For calls and returns each. */
SEC("uprobe.multi")
int empty_multi(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe")
int empty_perf(struct pt_regs *ctx)
{
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(empty_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(empty_waking, struct task_struct *task)
{
	return 0;
}

/* Size of a typical tracer event: times, ids, arguments and a name. */
struct event {
	__u64 start_ns, end_ns, id, op, arguments[2];
	char comm[16];
	__u64 result;
};

struct start {
	__u64 ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct start);
} starts SEC(".maps");

__u64 lost;

SEC("uprobe.session")
int ring_session(struct pt_regs *ctx)
{
	struct start *start =
		bpf_task_storage_get(&starts, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct event *event;

	if (!start)
		return 0;
	if (!bpf_session_is_return()) {
		start->ns = bpf_ktime_get_ns();
		return 0;
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	event->start_ns = start->ns;
	event->end_ns = bpf_ktime_get_ns();
	event->id = bpf_get_current_pid_tgid();
	event->op = bpf_get_attach_cookie(ctx);
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	event->result = PT_REGS_RC(ctx);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
