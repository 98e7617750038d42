/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Histogram slot of a value: the C twin of gpucause-abi's hist.rs. Compiled for BPF and, by a test that compares both,
 * for the host. Needs the HIST_* constants and integer types. */
#pragma once

/* `bits` if the value needs more than so many, else 0; `log` is the logarithm of `bits`. Values are below 2^63. */
static inline __attribute__((always_inline)) __u64 bits_above(__u64 value, __u32 log)
{
	__u64 difference = (1ULL << (1 << log)) - 1 - value;

	/* Hides that its sign is a comparison, which is compiled to a branch. */
	asm volatile("" : "+r"(difference));
	return difference >> 63 << log;
}

/* log2, rounded down, of a non-zero value below 2^63. BPF has no count-leading-zeros instruction. Without branches: the
 * verifier follows each combination of those through all that comes after. */
static inline __attribute__((always_inline)) __u32 floor_log2(__u64 value)
{
	__u64 log = 0, bits;

#pragma unroll
	for (int step = 5; step > 0; step--) {
		bits = bits_above(value, step);
		value >>= bits;
		log += bits;
	}
	return log + (value >> 1);
}

static inline __attribute__((always_inline)) __u32 hdr_slot(__u64 ns)
{
	__u32 exponent;

	if (ns < HIST_UNIT_SLOTS)
		return ns;
	if (ns >> HIST_MAX_EXPONENT)
		return SLOTS - 1;
	exponent = floor_log2(ns);
	return HIST_UNIT_SLOTS + (exponent - HIST_UNIT_SHIFT) * HIST_SUB_SLOTS +
	       (__u32)(ns >> (exponent - (HIST_UNIT_SHIFT - 1))) - HIST_SUB_SLOTS;
}

/* The chunk of a slot: slot / CHUNK_SLOTS without a division, exact for all slots. */
static inline __attribute__((always_inline)) __u32 hdr_chunk(__u32 slot)
{
	return slot * (65536 / CHUNK_SLOTS + 1) >> 16;
}
