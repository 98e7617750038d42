/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A ring of the newest events, read by user space through a mapping, continuously or on demand.
 *
 * Each event takes the next index, which determines its slot and its lap. A writer reserves the slot by making `turn` odd
 * for its lap, and publishes by making it even. It may be preempted in between for a whole lap: the next writer, which
 * finds the slot odd or a lap ahead, drops its own event and marks that in the slot. So every index becomes a readable,
 * overwritten or dropped event, and a reader can count each. Atomic exchanges order earlier writes. There is no scratch
 * memory: events are written in place. */
#pragma once

/* Recording settings. Read in every call and interval. */
volatile struct recording recording SEC(".data.record");
struct ring_state ring_state SEC(".data.ring");

/* One slot unless the loader sets a size. */
MAP(ring, ARRAY, BPF_F_MMAPABLE, 1, __u32, struct event);

/* Recorded processes, when not all are. */
MAP(recorded, HASH, BPF_F_NO_PREALLOC, 4096, __u32, __u32);

/* Programs without a ring are loaded without the code that this guards. Before Linux 6.8 the verifier looks at functions that nothing
 * calls, too. */
static __always_inline bool is_recording(void)
{
	return settings.ring_slots && recording.on;
}

/* An event whose slot is in use is lost. */
static __always_inline void give_up(struct event *event, __u32 lap)
{
	for (int i = 0; i < 4; i++) {
		__u32 last = *(volatile __u32 *)&event->given_up;

		if ((__s32)(last - (lap + 1)) >= 0 ||
		    __sync_val_compare_and_swap(&event->given_up, last, lap + 1) == last)
			break;
	}
}

/* Reserves the next slot, to be filled and published at once; null when another writer is in it. */
static __noinline struct event *take_slot(void)
{
	__u64 index = __sync_fetch_and_add(&ring_state.head, 1);
	__u32 slot = index & (settings.ring_slots - 1), lap = index >> (settings.ring_shift & 31);
	struct event *event = bpf_map_lookup_elem(&ring, &slot);
	__u32 turn;

	if (!event)
		return 0;
	turn = *(volatile __u32 *)&event->turn;
	if (!(turn & 1) && (__s32)(turn - (lap * 2 + 1)) < 0 &&
	    __sync_val_compare_and_swap(&event->turn, turn, lap * 2 + 1) == turn)
		return event;
	give_up(event, lap);
	return 0;
}

static __always_inline void publish(struct event *event)
{
	__sync_lock_test_and_set(&event->turn, event->turn + 1);
}

static __always_inline bool is_recorded(__u32 tgid)
{
	return !recording.filtered || bpf_map_lookup_elem(&recorded, &tgid);
}

/* The tgid of a process; 0 when user space has deleted it. */
static __noinline __u32 tgid_of(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc ? proc->tgid : 0;
}

/* First argument of `begin_event`: kind, flags and subtype of the event. */
#define EVENT(kind, flags, what) ((kind) | (__u32)(flags) << 8 | (__u32)(what) << 16)
/* Second argument: pid and tgid as from the kernel's helper; the tgid may be 0 when `proc_id` implies it. */
#define TASK(tgid, tid) ((__u64)(tgid) << 32 | (tid))

/* Reserves an event with an empty body, to be published at once; null when it is not recorded or lost. */
static __noinline struct event *begin_event(__u32 head, __u32 proc_id, __u64 task, __u64 start, __u64 ns)
{
	__u32 tgid = task >> 32;
	struct event *event;

	if (!tgid)
		tgid = tgid_of(proc_id);
	if (!tgid || !is_recorded(tgid))
		return 0;
	event = take_slot();
	if (!event)
		return 0;
	event->start_ns = start;
	event->duration_ns = ns;
	event->tgid = tgid;
	event->tid = task;
	event->proc_id = proc_id;
	event->kind = head;
	event->flags = head >> 8;
	event->what = head >> 16;
	for (int i = 0; i < EVENT_WORDS; i++)
		event->body[i] = 0;
	return event;
}
