// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* TCP retransmissions of tracked processes.
 *
 * They happen on a timer or in the receive path, where the running task is unrelated. So a socket stores its owner: the
 * last process that connected or received from it. A socket that was accepted but never received from, or connected before
 * the tracking without a receive since, has no owner. */

#define STATE_SYN_SENT 2

/* A socket locked by a task is used by that task; interrupts leave it alone. */
static __always_inline bool is_at_hand(const struct sock *socket)
{
	return socket->sk_lock.owned;
}

static __noinline void set_owner(struct sock *socket, __u32 proc_id)
{
	__u32 *owner = bpf_sk_storage_get(&sockets, socket, 0, 0);

	if (!owner && proc_id) {
		owner = bpf_sk_storage_get(&sockets, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!owner)
			count_self(SELF_FULL_SOCKETS);
	}
	if (owner && *owner != proc_id)
		*owner = proc_id;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_state, struct sock *socket, int from, int to)
{
	__u32 proc_id;

	COUNT_RUN(NETWORK);
	if (to != STATE_SYN_SENT || !is_at_hand(socket))
		return 0;
	proc_id = current_proc_id();
	if (proc_id)
		set_owner(socket, proc_id);
	return 0;
}

/* A task has received. An untracked one takes the socket over from its previous process. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(tcp_receive, struct sock *socket)
{
	__u32 proc_id;

	COUNT_RUN(NETWORK);
	proc_id = current_proc_id();
	if (!proc_id && !UNTRUSTED(sock, socket)->sk_bpf_storage)
		return 0;
	if (is_at_hand(socket))
		set_owner(socket, proc_id);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit(__u64 *ctx)
{
	struct sock *socket = (struct sock *)ctx[0];
	struct proc *proc;
	__u32 *owner;
	__u32 proc_id;

	COUNT_RUN(NETWORK);
	/* Kernels without the error argument do not report failed segments. */
	if (settings.retransmit_has_error && (int)ctx[2])
		return 0;
	if (!UNTRUSTED(sock, socket)->sk_bpf_storage)
		return 0;
	owner = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!owner)
		return 0;
	proc_id = *owner;
	proc = bpf_map_lookup_elem(&procs, &proc_id);
	if (!proc)
		return 0;
	__sync_fetch_and_add(&proc->measures.tcp_retransmits, 1);
	if (is_recording())
		record_plain(EVENT_TCP_RETRANSMIT, proc_id, 0, bpf_ktime_get_ns(), 0);
	return 0;
}
