// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Block I/O of tracked processes, from submission to completion, by disk.
 *
 * A request belongs to the process of the submitting thread; later write-back from the page cache is not attributed.
 * Requests complete in interrupts on any CPU, so everything that may allocate happens at submission. */

/* enum req_op. */
#define REQUEST_OP_MASK 0xff
#define REQUEST_READ 0
#define REQUEST_WRITE 1
#define REQUEST_ZONE_APPEND 7

static __always_inline __u32 block_operation(__u32 flags)
{
	switch (flags & REQUEST_OP_MASK) {
	case REQUEST_READ:
		return BLOCK_READ;
	case REQUEST_WRITE:
	case REQUEST_ZONE_APPEND:
		return BLOCK_WRITE;
	default:
		return BLOCK_OTHER;
	}
}

/* Creates the entry that a request will be added to. */
static __noinline bool has_block_total(const struct block_key *key)
{
	if (bpf_map_lookup_elem(&block_io, key))
		return true;
	ADD_ENTRY(&block_io, ADDED_BLOCK_IO, key, &zero_block_total);
	if (bpf_map_lookup_elem(&block_io, key))
		return true;
	count_self(SELF_FULL_BLOCK_IO);
	return false;
}

static __noinline void begin_request(struct request *request, __u32 proc_id)
{
	struct block_request begun = {};
	__u64 address = (__u64)request;

	begun.key.proc_id = proc_id;
	begun.key.operation = block_operation(request->cmd_flags);
	bpf_probe_read_kernel_str(&begun.key.device, sizeof(begun.key.device),
				  &UNTRUSTED(request, request)->q->disk->disk_name);
	if (!has_block_total(&begun.key))
		return;
	begun.tid = bpf_get_current_pid_tgid();
	begun.since_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&block_requests, &address, &begun, BPF_ANY))
		count_self(SELF_FULL_BLOCK_REQUESTS);
}

static __always_inline int submitted(struct request *request)
{
	__u64 address = (__u64)request;
	__u32 proc_id;

	COUNT_RUN(BLOCK);
	proc_id = current_proc_id();
	if (proc_id)
		begin_request(request, proc_id);
	/* A stale request at this address, which was merged into another. */
	else if (bpf_map_lookup_elem(&block_requests, &address))
		bpf_map_delete_elem(&block_requests, &address);
	return 0;
}

/* In the submitter's context, before queueing; kernel >= 6.5. */
SEC("tp_btf/block_io_start")
int BPF_PROG(block_start, struct request *request)
{
	return submitted(request);
}

/* For older kernels: when the request is issued to the device. Not counted if that is not in the submitter's context. */
SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_issue, struct request *request)
{
	return submitted(request);
}

/* Requests may complete in parts. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_complete, struct request *request, int error, unsigned int done_bytes)
{
	__u64 address = (__u64)request, now;
	struct block_request *begun;
	struct block_total *total;

	COUNT_RUN(BLOCK);
	begun = bpf_map_lookup_elem(&block_requests, &address);
	if (!begun)
		return 0;
	/* Already deleted by user space. */
	total = bpf_map_lookup_elem(&block_io, &begun->key);
	if (total && !error)
		__sync_fetch_and_add(&total->bytes, done_bytes);
	if (!error)
		begun->done_bytes += done_bytes;
	if (done_bytes < request->__data_len)
		return 0;
	now = bpf_ktime_get_ns();
	if (total) {
		__sync_fetch_and_add(&total->requests, 1);
		if (now >= begun->since_ns)
			__sync_fetch_and_add(&total->ns, now - begun->since_ns);
		else
			count_self(SELF_CLOCK_UNDERFLOW);
	}
	if (is_recording())
		record_block(begun, now);
	bpf_map_delete_elem(&block_requests, &address);
	return 0;
}
