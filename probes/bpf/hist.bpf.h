/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Histogram updates, safe for concurrent CPUs. */
#pragma once

#define MAX_UPDATE_TRIES 8

static __always_inline struct hist *hist_of(const struct hist_key *key)
{
	struct hist *hist = bpf_map_lookup_elem(&hists, key);

	if (hist)
		return hist;
	ADD_ENTRY(&hists, ADDED_HISTS, key, &zero_hist);
	hist = bpf_map_lookup_elem(&hists, key);
	if (!hist)
		count_self(SELF_FULL_HISTS);
	return hist;
}

VERIFIED_ONCE int raise_to(__u64 *maximum, __u64 ns)
{
	if (!maximum)
		return 0;
	for (int i = 0; i < MAX_UPDATE_TRIES; i++) {
		__u64 max = *(volatile __u64 *)maximum;

		if (ns <= max || __sync_val_compare_and_swap(maximum, max, ns) == max)
			break;
	}
	return 0;
}

static __always_inline void raise(__u64 *maximum, __u64 ns)
{
	if (ns > *(volatile __u64 *)maximum)
		raise_to(maximum, ns);
}

/* Adds to the histogram of a key without chunk. Returns the slot in the whole histogram. */
static __always_inline __u32 hist_add_to(struct hist_key *key, __u64 ns)
{
	__u32 whole = hdr_slot(ns), slot;
	struct hist *hist;

	key->chunk = hdr_chunk(whole);
	hist = hist_of(key);
	slot = whole - key->chunk * CHUNK_SLOTS;
	/* Always in bounds, but the verifier cannot prove it and clang would remove the check. */
	barrier_var(slot);
	if (!hist || slot >= CHUNK_SLOTS)
		return whole;
	__sync_fetch_and_add(&hist->slots[slot], 1);
	__sync_fetch_and_add(&hist->sum_ns, ns);
	raise(&hist->max_ns, ns);
	return whole;
}

/* See HistKind for `a` and `b`. */
VERIFIED_ONCE __u32 hist_add(__u32 proc_id, __u16 kind, __u16 a, __u16 b, __u64 ns)
{
	struct hist_key key = { .proc_id = proc_id, .kind = kind, .a = a, .b = b };

	return hist_add_to(&key, ns);
}

/* Adds to a histogram from a call program, without a stack frame. */
static __always_inline __u32 hist_add_call(struct thread *thread, __u16 kind, __u16 a, __u16 b, __u64 ns)
{
	struct hist_key *key = &thread->hist_key;

	key->proc_id = thread->proc_id;
	key->kind = kind;
	key->a = a;
	key->b = b;
	return hist_add_to(key, ns);
}

/* Adds to the histogram of a kernel; `timed` counts from 1. */
static __always_inline void kernel_hist_add(struct thread *thread, __u32 timed, __u32 slot, __u64 ns)
{
	struct kernel_hist *hist;

	thread->kernel_hist_key = timed - 1;
	hist = bpf_map_lookup_elem(&kernel_hists, &thread->kernel_hist_key);

	barrier_var(slot);
	if (!hist || slot >= SLOTS)
		return;
	__sync_fetch_and_add(&hist->slots[slot], 1);
	__sync_fetch_and_add(&hist->sum_ns, ns);
	raise(&hist->max_ns, ns);
}
