/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Histogram slot of a value: the C twin of gpucause-abi's hist.rs. Compiled for BPF and, by a test that compares both,
 * for the host. Needs the HIST_* constants and integer types. */
#pragma once

/* log2, rounded down, of a non-zero value. BPF has no count-leading-zeros instruction. */
static inline __attribute__((always_inline)) __u32 floor_log2(__u64 value)
{
	__u32 log = 0;
	__u32 low = value >> 32;

	if (low)
		log = 32;
	else
		low = value;
	if (low >> 16) {
		log += 16;
		low >>= 16;
	}
	if (low >> 8) {
		log += 8;
		low >>= 8;
	}
	if (low >> 4) {
		log += 4;
		low >>= 4;
	}
	if (low >> 2) {
		log += 2;
		low >>= 2;
	}
	return log + (low >> 1);
}

/* Hides `number` from the verifier, which knows no number that is combined with an unknown one: else it would follow
 * each way through the branches above through all that comes after. Code without branches is slower than these. */
static inline __attribute__((always_inline)) __u32 hidden(__u32 number, __u32 unknown)
{
	number ^= unknown;
	asm volatile("" : "+r"(number));
	return number ^ unknown;
}

static inline __attribute__((always_inline)) __u32 hdr_slot(__u64 ns)
{
	__u32 exponent;

	if (ns < HIST_UNIT_SLOTS)
		return ns;
	exponent = hidden(floor_log2(ns), ns);
	if (exponent >= HIST_MAX_EXPONENT)
		return SLOTS - 1;
	return HIST_UNIT_SLOTS + (exponent - HIST_UNIT_SHIFT) * HIST_SUB_SLOTS +
	       (__u32)(ns >> (exponent - (HIST_UNIT_SHIFT - 1))) - HIST_SUB_SLOTS;
}

/* The chunk of a slot: slot / CHUNK_SLOTS without a division, exact for all slots. */
static inline __attribute__((always_inline)) __u32 hdr_chunk(__u32 slot)
{
	return slot * (65536 / CHUNK_SLOTS + 1) >> 16;
}
