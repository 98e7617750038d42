/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Adding to histograms. Any number of CPUs may add to one at the same time. */
#pragma once

#define MAX_UPDATE_TRIES 8

static __always_inline struct hist *hist_of(const struct hist_key *key)
{
	struct hist *hist = bpf_map_lookup_elem(&hists, key);

	if (hist)
		return hist;
	bpf_map_update_elem(&hists, key, &zero_hist, BPF_NOEXIST);
	hist = bpf_map_lookup_elem(&hists, key);
	if (!hist)
		count_self(SELF_FULL_HISTS);
	return hist;
}

/* `a` and `b` as HistKind says. */
static __noinline void hist_add(__u32 proc_id, __u16 kind, __u16 a, __u16 b, __u64 ns)
{
	__u32 slot = hdr_slot(ns);
	struct hist_key key = { .proc_id = proc_id, .kind = kind, .a = a, .b = b, .chunk = slot / CHUNK_SLOTS };
	struct hist *hist = hist_of(&key);

	slot -= key.chunk * CHUNK_SLOTS;
	/* Always in bounds, which the verifier cannot see and clang would not let it. */
	barrier_var(slot);
	if (!hist || slot >= CHUNK_SLOTS)
		return;
	__sync_fetch_and_add(&hist->slots[slot], 1);
	__sync_fetch_and_add(&hist->sum_ns, ns);
	for (int i = 0; i < MAX_UPDATE_TRIES; i++) {
		__u64 max = *(volatile __u64 *)&hist->max_ns;

		if (ns <= max || __sync_val_compare_and_swap(&hist->max_ns, max, ns) == max)
			break;
	}
}
