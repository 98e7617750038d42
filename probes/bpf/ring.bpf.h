/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A ring of the newest events, read by user space through a mapping, or by nobody until something is wrong.
 *
 * Each event takes the next index; its slot is that index within the ring, and its lap how often the ring was gone round
 * before. A writer takes the slot by making `turn` odd for its lap, and publishes by making it even. It may be preempted in
 * between for as long as the ring takes to come round: the writer that then finds the slot odd, or already a lap further, gives
 * its own event up and says so in the slot. So every index is sooner or later an event that can be read, one that was written
 * over, or one that was given up, and a reader can count each. All that matters is exchanged, not stored, which orders what was
 * written before. No scratch, per CPU or other: an event is written where it will be read. */
#pragma once

/* What user space wants recorded. Read in every call and interval. */
volatile struct recording recording SEC(".data.record");
struct ring_state ring_state SEC(".data.ring");

/* Of one slot unless the loader makes it larger. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct event);
} ring SEC(".maps");

/* Processes whose events are recorded, when not all are. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} recorded SEC(".maps");

/* Programs without a ring are loaded without all that this guards. */
static __always_inline bool is_recording(void)
{
	return settings.ring_slots && recording.on;
}

/* An event that finds its slot taken is lost. */
static __always_inline void give_up(struct event *event, __u32 lap)
{
	for (int i = 0; i < 4; i++) {
		__u32 last = *(volatile __u32 *)&event->given_up;

		if ((__s32)(last - (lap + 1)) >= 0 ||
		    __sync_val_compare_and_swap(&event->given_up, last, lap + 1) == last)
			break;
	}
}

/* The slot of the next event, to be filled and published at once; null when another writer is in it. */
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

/* The process number of a process; 0 when user space has deleted it. */
static __noinline __u32 tgid_of(__u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);

	return proc ? proc->tgid : 0;
}

/* What `begin_event` is told of an event: its kind, flags, and what it is of. */
#define EVENT(kind, flags, what) ((kind) | (__u32)(flags) << 8 | (__u32)(what) << 16)
/* And of a task, as the kernel's own helper has it; the process may be 0 when `proc_id` tells it. */
#define TASK(tgid, tid) ((__u64)(tgid) << 32 | (tid))

/* An event with an empty body, to be published at once; null when it is not wanted or lost. */
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
