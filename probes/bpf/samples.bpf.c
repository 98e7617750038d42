// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Samples of what some threads run: those that user space has chosen because a chain is near that their code explains.
 *
 * A perf event on each CPU runs this at a fixed rate while it is enabled, which it is only while a thread is chosen. Where
 * user space may not open such events, it runs at the expiry of timers, such as the scheduler's tick. Both are in
 * interrupts, for whatever task has the CPU, and nothing else of this can interrupt them there: scratch memory per CPU is
 * safe, unlike in the other programs. Memory of the task that is not resident reads as zero. */

/* Thread -> where it is sampled. Written by user space. */
MAP(sampled_threads, HASH, 0, MAX_SAMPLED, __u32, struct sampled);

/* Samples by what was run; user space deletes those that it has read. A second of all threads at the highest rate fits
 * twice. */
MAP(samples, HASH, BPF_F_NO_PREALLOC, 2048, struct sample, __u64);

/* The sample that is being taken: too large for the BPF stack. */
MAP(sample_scratch, PERCPU_ARRAY, 0, 1, __u32, struct sample);

/* The period in which timers sampled the CPU last, and the tick before which no other begins. */
struct sample_clock {
	__u64 period;
	__u64 next_ticks;
};

MAP(sample_clocks, PERCPU_ARRAY, 0, 1, __u32, struct sample_clock);

/* Returns true if the thread runs outside its traced calls, according to its account. */
static __noinline bool is_host_code(struct task_struct *task, __u32 proc_id)
{
	struct thread *thread = stored_thread(task);
	__u64 key = (__u64)task;

	if (!thread)
		thread = bpf_map_lookup_elem(&hashed_threads, &key);
	return thread && thread->proc_id == proc_id && thread->account_since_ns && thread->phase == PHASE_HOST;
}

struct sample_walk {
	struct python_walk python;
	struct sample *sample;
};

static long keep_sampled_frame(__u64 index, void *context)
{
	struct sample_walk *walk = context;

	barrier_var(index);
	if (!walk->python.frame || index >= SAMPLE_FRAMES)
		return 1;
	next_frame(&walk->python, &walk->sample->code[index], &walk->sample->instruction[index]);
	walk->sample->frames = index + 1;
	return 0;
}

/* The innermost Python frames of the running thread, if it has any. */
static __noinline void sample_python(struct sampled *sampled, struct sample *sample)
{
	const struct python_layout *layout = &sampled->python;
	struct sample_walk walk = { .python = { .layout = layout }, .sample = sample };

	/* The list is searched once, not at each sample: it is long, and the main thread is its last. */
	if (!is_python_thread(layout, sampled->python_thread))
		sampled->python_thread = python_thread(layout);
	if (!sampled->python_thread)
		return;
	walk.python.frame = innermost_frame(layout, sampled->python_thread);
	bpf_loop(SAMPLE_FRAMES, keep_sampled_frame, &walk, 0);
	if (sample->frames)
		sample->kind = SAMPLE_PYTHON;
}

/* The address that the thread runs at, and its return addresses. Programs without frame pointers have the first only. */
static __noinline void sample_native(void *ctx, struct sample *sample)
{
	long bytes = bpf_get_stack(ctx, sample->code, sizeof(sample->code), BPF_F_USER_STACK);

	sample->kind = SAMPLE_NATIVE;
	sample->frames = bytes > 0 ? bytes / sizeof(__u64) : 0;
}

static __noinline void count_sample(const struct sample *sample)
{
	__u64 *count = bpf_map_lookup_elem(&samples, sample), one = 1;

	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&samples, sample, &one, BPF_NOEXIST))
		count_self(SELF_FULL_SAMPLES);
}

/* The running thread, if it is chosen. */
static __noinline struct sampled *chosen_thread(void)
{
	__u64 task = bpf_get_current_pid_tgid();
	__u32 tid = task;
	struct sampled *sampled = bpf_map_lookup_elem(&sampled_threads, &tid);

	return sampled && sampled->tgid == task >> 32 ? sampled : 0;
}

/* Unless the thread is not where it is sampled. */
static __noinline void take_sample(void *ctx, struct sampled *sampled)
{
	__u32 only = 0;
	struct sample *sample;

	if (sampled->within == SAMPLED_HOST && !is_host_code(bpf_get_current_task_btf(), sampled->proc_id))
		return;
	sample = bpf_map_lookup_elem(&sample_scratch, &only);
	if (!sample)
		return;
	__builtin_memset(sample, 0, sizeof(*sample));
	sample->proc_id = sampled->proc_id;
	sample->tid = bpf_get_current_pid_tgid();
	if (sampled->has_python)
		sample_python(sampled, sample);
	if (!sample->frames)
		sample_native(ctx, sample);
	count_sample(sample);
}

/* Samples the running thread, if it is chosen. */
static __always_inline void sample_thread(void *ctx)
{
	COUNT_RUN(SAMPLE);
	struct sampled *sampled = chosen_thread();

	if (sampled)
		take_sample(ctx, sampled);
}

SEC("perf_event")
int sample_code(struct bpf_perf_event_data *ctx)
{
	sample_thread(ctx);
	return 0;
}

#define SAMPLE_NS (1000000000ULL / SAMPLES_PER_SECOND)

/* True at the CPU's first timer in a period. The kernel's count of ticks tells cheaply that the period goes on: a
 * thousand timers and more expire in a second. */
static __always_inline bool begins_period(void)
{
	__u32 only = 0;
	struct sample_clock *clock = bpf_map_lookup_elem(&sample_clocks, &only);
	__u64 ticks = bpf_jiffies64(), now, period;

	if (!clock || ticks < clock->next_ticks)
		return false;
	now = bpf_ktime_get_ns();
	period = now / SAMPLE_NS;
	if (period == clock->period)
		return false;
	clock->period = period;
	clock->next_ticks = ticks + (SAMPLE_NS - now % SAMPLE_NS) / settings.tick_ns;
	/* An idle CPU has no ticks: the first one after that would sample what has just begun. */
	return now % SAMPLE_NS <= 2 * settings.tick_ns;
}

/* At the first timer of each CPU in each period, whatever runs there, as perf events do: some time after the last sample
 * would be biased towards what begins then. */
SEC("tp_btf/hrtimer_expire_entry")
int sample_tick(__u64 *ctx)
{
	if (begins_period())
		sample_thread(ctx);
	return 0;
}
