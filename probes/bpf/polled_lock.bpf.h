/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Waits for a lock that is polled, as Python's interpreter lock, that time out before it is released: who had it. */
#pragma once

/* The longest time between two waits for a lock that is polled, and how long the thread has a CPU between them: else it may have had the
 * lock. */
#define BETWEEN_NS 10000000ULL
#define RUNS_BETWEEN_NS 20000ULL
/* A thread that has a CPU for longer between them is taken to have had the lock: what it does without it takes microseconds. */
#define RUNS_WITHOUT_NS 500000ULL
#define UNKNOWN_NS (~0ULL)

/* The farthest that a futex is from its lock's, in units of 8 bytes: both are fields of one structure. */
#define BESIDE 32

static __always_inline bool is_beside(__u32 futex, __u32 lock)
{
	return futex - lock < BESIDE || lock - futex < BESIDE;
}

/* The thread took the lock that it polls. */
static __always_inline void take_lock(struct thread *thread, __u64 at)
{
	thread->took_ns = at;
	thread->waits_since_ns = 0;
}

/* The running thread waits again for the lock that it took. Threads whose waits timed out meanwhile look here for who had it. */
VERIFIED_ONCE int end_tenure(struct thread *thread, __u64 now)
{
	struct tenures *tenures;
	struct tenure *tenure;
	__u32 proc_id;

	if (!thread || !thread->took_ns)
		return 0;
	proc_id = thread->proc_id;
	tenures = bpf_map_lookup_elem(&tenures_of, &proc_id);
	if (!tenures) {
		bpf_map_update_elem(&tenures_of, &proc_id, &zero_tenures, BPF_NOEXIST);
		tenures = bpf_map_lookup_elem(&tenures_of, &proc_id);
	}
	if (!tenures)
		return 0;
	tenure = &tenures->last[__sync_fetch_and_add(&tenures->ended, 1) & (MAX_TENURES - 1)];
	/* Its own tenure does not part its waits, those of others do. */
	thread->retried_after++;
	/* None, for those that read it meanwhile. */
	*(volatile __u64 *)&tenure->took_ns = 0;
	tenure->gave_ns = now;
	tenure->lock = thread->polled;
	tenure->tid = bpf_get_current_pid_tgid();
	bpf_get_current_comm(tenure->comm, COMM_LEN);
	*(volatile __u64 *)&tenure->took_ns = thread->took_ns;
	return 0;
}

/* How many tenures of the thread's process have ended. Overflows. */
static __always_inline __u32 tenures_ended(const struct thread *thread)
{
	__u32 proc_id = thread->proc_id;
	const struct tenures *tenures = bpf_map_lookup_elem(&tenures_of, &proc_id);

	return tenures ? tenures->ended : 0;
}

/* The running thread waits for a futex that it polls. It had taken the lock when its last wait timed out, if it then ran for long. */
static __always_inline void note_poll(struct thread *thread, __u32 futex, __u64 ran, __u64 now)
{
	bool again = thread->timed_out_ns && futex == thread->polled;

	thread->between_ns = again ? ran - thread->polled_ran_ns : UNKNOWN_NS;
	if (again && thread->between_ns > RUNS_WITHOUT_NS)
		take_lock(thread, thread->timed_out_ns);
	if (futex != thread->polled) {
		thread->took_ns = 0;
		thread->waits_since_ns = 0;
	}
	thread->polled_ran_ns = ran;
	thread->polled = futex;
	if (!thread->waits_since_ns) {
		thread->waits_since_ns = now;
		end_tenure(thread, now);
	}
	thread->polled_after = tenures_ended(thread);
}

/* Charges waits for the polled lock that timed out: to the thread `by` of this name, or to nobody when that is 0. */
static __always_inline void charge_polled(struct thread *thread, __u32 tid, __u32 by, struct other_task *name, __u64 ns)
{
	blame_add(VICTIM(thread->proc_id, tid), WAIT(REASON_LOCK, thread->retried_phase) | HELD_BY(by), name, ns,
		  by ? ns : 0);
}

static __always_inline struct retry *retry_at(struct thread *thread, __u32 at)
{
	return &thread->retries[at & (MAX_RETRIES - 1)];
}

struct tenure_search {
	const struct tenures *tenures;
	__u64 since_ns;
	__u64 until_ns;
	__u32 lock;
	/* Who had it, 0 for nobody, and the index of that tenure. */
	__u32 tid;
	__u32 found;
	__u32 is_ambiguous;
};

/* True for a thread that took the lock before a wait, and waited for it again only after that. */
static __always_inline bool covers(const struct tenure *tenure, __u32 lock, __u64 since, __u64 until)
{
	__u64 took = *(volatile __u64 *)&tenure->took_ns;

	return tenure->lock == lock && took && took <= since && tenure->gave_ns >= until;
}

static long find_holder(__u64 index, void *context)
{
	struct tenure_search *search = context;
	const struct tenure *tenure;

	barrier_var(index);
	if (index >= MAX_TENURES)
		return 1;
	tenure = &search->tenures->last[index];
	if (!covers(tenure, search->lock, search->since_ns, search->until_ns))
		return 0;
	if (search->tid && search->tid != tenure->tid)
		search->is_ambiguous = 1;
	search->tid = tenure->tid;
	search->found = index;
	return 0;
}

/* The tenure of the only thread that may have had the lock in a group of waits, counted from 1; 0 for none, or several. */
static __noinline __u32 only_holder(const struct thread *thread, const struct tenures *tenures,
				    const struct retry *retry)
{
	struct tenure_search search = { .tenures = tenures, .lock = thread->retried_lock };

	search.since_ns = retry->since_ns;
	search.until_ns = retry->until_ns;
	bpf_loop(MAX_TENURES, find_holder, &search, 0);
	return search.tid && !search.is_ambiguous ? search.found + 1 : 0;
}

/* Charges group `at` of the waits that timed out to the thread that had the lock meanwhile, if that waits for it again by now. */
VERIFIED_ONCE int settle_ended(struct thread *thread, __u32 tid, __u32 at)
{
	struct other_task holder = {};
	const struct tenures *tenures;
	const struct tenure *tenure;
	struct retry *retry;
	__u32 found, proc_id;
	__u64 ns;

	if (!thread)
		return 0;
	retry = retry_at(thread, at);
	ns = retry->ns;
	proc_id = thread->proc_id;
	tenures = ns ? bpf_map_lookup_elem(&tenures_of, &proc_id) : 0;
	if (!tenures)
		return 0;
	found = only_holder(thread, tenures, retry);
	if (!found)
		return 0;
	tenure = &tenures->last[(found - 1) & (MAX_TENURES - 1)];
	proc_id = tenure->tid;
	__builtin_memcpy(holder.comm, tenure->comm, COMM_LEN);
	holder.tgid = thread->tgid;
	holder.relation = RELATION_THREAD;
	/* Another thread's may have taken its place meanwhile. */
	if (!covers(tenure, thread->retried_lock, retry->since_ns, retry->until_ns))
		return 0;
	/* A switch that interrupted a call program may have taken it. */
	ns = __sync_lock_test_and_set(&retry->ns, 0);
	if (!ns)
		return 0;
	__sync_fetch_and_sub(&thread->retried_ns, ns);
	charge_polled(thread, tid, proc_id, &holder, ns);
	return 0;
}

/* Charges each group of such waits like that. */
static __always_inline void settle_all_ended(struct thread *thread, __u32 tid)
{
	if (!thread->retried_ns)
		return;
	for (int i = 0; i < MAX_RETRIES; i++)
		settle_ended(thread, tid, i);
}

/* Charges nobody with such waits. The waker's name is not needed any more. */
static __always_inline void charge_nobody(struct thread *thread, __u32 tid, __u64 ns)
{
	if (!ns)
		return;
	thread->retried_ns -= ns;
	set_nobody(&thread->waker, NAME_KERNEL);
	charge_polled(thread, tid, 0, &thread->waker, ns);
}

/* Charges nobody with all of them. */
static __always_inline void charge_retries(struct thread *thread, __u32 tid)
{
	charge_nobody(thread, tid, thread->retried_ns);
	__builtin_memset(thread->retries, 0, sizeof(thread->retries));
}

/* Takes group `at` of the waits that timed out if a thread had the lock meanwhile: it took it at `took`, and waits for it since `waits`, if
 * not 0. */
VERIFIED_ONCE __u64 take_retry(struct thread *thread, __u32 at, __u64 took, __u64 waits)
{
	struct retry *retry;

	if (!thread)
		return 0;
	retry = retry_at(thread, at);
	if (took > retry->since_ns || (waits && waits < retry->until_ns))
		return 0;
	return __sync_lock_test_and_set(&retry->ns, 0);
}

/* Takes all such groups. The thread released the lock just when the last wait timed out, so that nobody was woken. */
VERIFIED_ONCE __u64 take_retries(struct thread *thread, __u64 took, __u64 waits)
{
	__u64 ns = 0;

	if (!thread)
		return 0;
	for (int i = 0; i < MAX_RETRIES; i++)
		ns += take_retry(thread, i, took, waits);
	__sync_fetch_and_sub(&thread->retried_ns, ns);
	thread->settled_ns = bpf_ktime_get_ns();
	return ns;
}

/* True for a thread that waits on a futex beside the lock's: Python's thread gives the lock away and waits there until another has
 * taken it. */
static __always_inline bool waits_beside(struct task_struct *task, const struct thread *thread)
{
	const struct pt_regs *regs = (const struct pt_regs *)bpf_task_pt_regs(task);

	if (thread->off_reason != REASON_FUTEX || !thread->off_since_ns || syscall_number(regs) != SYSCALL_FUTEX)
		return false;
	return is_beside(first_argument(regs) >> 3, thread->polled);
}

/* The running thread wakes the `holder` of the lock that it polled: it gives the lock away to one that polls it, or has taken it. */
static __noinline int settle_retries(struct task_struct *task, const struct thread *holder)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct other_task name = {};
	struct thread *thread;
	__u64 ns;

	if (!task || !holder || current->tgid != task->tgid)
		return 0;
	thread = thread_of(current);
	if (!thread || !thread->retried_ns || !(wakes_of_current() & WAKES_FUTEX) ||
	    holder->polled != thread->retried_lock)
		return 0;
	if (!holder->polls_until_ns && !waits_beside(task, holder))
		return 0;
	/* The timer of its wait has interrupted the running thread instead. */
	if (holder->polls_until_ns && bpf_ktime_get_ns() >= holder->polls_until_ns)
		return 0;
	/* One that never took the lock had none to release. */
	if (!holder->took_ns)
		return 0;
	ns = take_retries(thread, holder->took_ns,
			  holder->polls_until_ns ? holder->waits_since_ns : holder->off_since_ns);
	if (!ns)
		return 0;
	name_task(&name, task, thread->tgid, thread->proc_id);
	charge_polled(thread, current->pid, task->pid, &name, ns);
	return 0;
}

/* The running thread leaves the CPU. If a thread released the lock when this one was about to wait for it again, no wait has ended. */
VERIFIED_ONCE int settle_awake(struct thread *thread, __u32 tid)
{
	__u64 ns;

	if (!thread || *(volatile __u64 *)&thread->woken_ns < thread->on_since_ns || !(thread->wakes & WAKES_FUTEX) ||
	    thread->waker.relation != RELATION_THREAD || thread->waker_polled != thread->retried_lock)
		return 0;
	ns = take_retries(thread, thread->waker_took_ns, 0);
	if (ns)
		charge_polled(thread, tid, thread->waker_tid, &thread->waker, ns);
	return 0;
}

/* True for a wait from `since` that is kept as one with those that timed out before: no tenure of another has ended between their begins,
 * and the thread has not had the lock between them, or there is no room for one more. One thread is charged with all of them or none: it took
 * the lock before the first, and did not wait for it until the end of the last. */
static __always_inline bool goes_on(struct thread *thread, const struct retry *after, __u64 since)
{
	if (!after->ns || since - after->until_ns > BETWEEN_NS || after->since_ns <= thread->settled_ns ||
	    thread->polled_after != thread->retried_after)
		return false;
	return thread->between_ns <= RUNS_BETWEEN_NS ||
	       (thread->between_ns != UNKNOWN_NS && retry_at(thread, thread->newest_retry + 1)->ns);
}

/* Keeps a wait for the polled lock that timed out, until it is known who has it. */
static __always_inline void keep_retry(struct thread *thread, __u32 tid, __u64 since, __u64 woken)
{
	struct retry *retry;

	if (thread->phase != thread->retried_phase || thread->polled != thread->retried_lock)
		charge_retries(thread, tid);
	thread->retried_phase = thread->phase;
	thread->retried_lock = thread->polled;
	retry = retry_at(thread, thread->newest_retry);
	if (!goes_on(thread, retry, since)) {
		/* A tenure has ended since the last wait: it may be the holder's. */
		settle_ended(thread, tid, thread->newest_retry);
		if (retry->ns)
			thread->newest_retry++;
		settle_ended(thread, tid, thread->newest_retry);
		retry = retry_at(thread, thread->newest_retry);
		charge_nobody(thread, tid, retry->ns);
		retry->ns = 0;
		retry->since_ns = since;
	}
	thread->retried_after = thread->polled_after;
	retry->until_ns = woken;
	retry->ns += woken - since;
	thread->retried_ns += woken - since;
}
