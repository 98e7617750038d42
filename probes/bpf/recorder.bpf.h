/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Events of the host. Call only while recording. */
#pragma once

/* An event without a body. */
VERIFIED_ONCE int record_plain(__u32 kind, __u32 proc_id, __u32 tid, __u64 start, __u64 ns)
{
	struct event *event = begin_event(EVENT(kind, 0, 0), proc_id, tid, start, ns);

	if (event)
		publish(event);
	return 0;
}

/* Start or end of a process image. */
VERIFIED_ONCE int record_life(__u32 kind, __u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);
	struct life_body *body;
	struct event *event;

	if (!proc)
		return 0;
	event = begin_event(EVENT(kind, 0, 0), proc_id, TASK(proc->tgid, proc->tgid), bpf_ktime_get_ns(), 0);
	if (!event)
		return 0;
	body = (struct life_body *)event->body;
	__builtin_memcpy(body->comm, proc->comm, COMM_LEN);
	body->parent_id = proc->parent_id;
	publish(event);
	return 0;
}

/* The waiting thread and its process: first argument of record_offcpu and blame_add. */
#define VICTIM(proc_id, tid) ((proc_id) | (__u64)(tid) << 32)
/* Reason and phase of the wait: second argument. */
#define WAIT(reason, phase) ((reason) | (phase) << 16)
/* Additional flags of record_offcpu. */
#define WAIT_FLAGS(flags) ((__u32)(flags) << 24)

/* A thread was off the CPU for `ns`, because of `by`, which may be null. */
VERIFIED_ONCE int record_offcpu(__u64 victim, __u32 wait, const struct other_task *by, __u64 since, __u64 ns)
{
	__u32 what = (wait & 0xff) | (wait >> 8 & 0xff00);
	struct event *event;

	if (!ns || ns < recording.offcpu_ns)
		return 0;
	event = begin_event(EVENT(EVENT_OFFCPU, wait >> 24, what), victim, victim >> 32, since, ns);
	if (!event)
		return 0;
	if (by)
		__builtin_memcpy(event->body, by, sizeof(*by));
	publish(event);
	return 0;
}

/* A request has completed. */
VERIFIED_ONCE int record_block(const struct block_request *request, __u64 now)
{
	const struct block_key *key;
	struct block_body *body;
	struct event *event;

	if (!request)
		return 0;
	key = &request->key;
	event = begin_event(EVENT(EVENT_BLOCK, 0, key->operation), key->proc_id, request->tid, request->since_ns,
			    now > request->since_ns ? now - request->since_ns : 0);
	if (!event)
		return 0;
	body = (struct block_body *)event->body;
	__builtin_memcpy(body->device, key->device, DEVICE_LEN);
	body->bytes = request->done_bytes;
	publish(event);
	return 0;
}
