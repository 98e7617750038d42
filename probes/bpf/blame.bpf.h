/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The task that a thread waited for, by name: another process by that of its leader, a thread of the same process by its
 * own.
 *
 * A wakeup runs in the context of some task, which is unrelated if an interrupt caused it. Not all kernels report which it
 * was, so a waker is named only when it is in a system call that wakes such waiters; other wakeups are the kernel's: a
 * timer, a device, a network card.
 *
 * Waits for a CPU are charged to those that have it in cpu_wait.bpf.h. */
#pragma once

/* Sets a name without a task. */
static __always_inline void set_nobody(struct other_task *other, __u64 text)
{
	((__u64 *)other->comm)[0] = text;
	((__u64 *)other->comm)[1] = 0;
	other->tgid = 0;
	other->relation = RELATION_NONE;
}

#define NAME_IDLE 0x656c6469ULL       /* "idle" */
#define NAME_KERNEL 0x6c656e72656bULL /* "kernel" */
#define NAME_OTHER 0x726568746fULL    /* "other" */

/* The relation of the process `other_id` to the process `proc_id`. */
static __always_inline __u32 relation_of_process(__u32 other_id, __u32 proc_id)
{
	struct proc *proc = bpf_map_lookup_elem(&procs, &other_id);

	return proc && proc->parent_id == proc_id && !proc->dispatches ? RELATION_WORKER : RELATION_OTHER;
}

/* The relation of another process's task to the process `proc_id`. */
static __noinline __u32 relation_of(struct task_struct *task, __u32 tgid, __u32 proc_id)
{
	struct thread *thread;

	if (!maybe_tracked(tgid))
		return RELATION_OTHER;
	thread = thread_of(task);
	return thread ? relation_of_process(thread->proc_id, proc_id) : RELATION_OTHER;
}

/* Names a task as seen by threads of process `proc_id`, whose thread-group id is `own_tgid`. */
static __always_inline void name_task(struct other_task *other, struct task_struct *task, __u32 own_tgid, __u32 proc_id)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (!tgid) {
		set_nobody(other, NAME_IDLE);
		return;
	}
	other->tgid = tgid;
	if (tgid == own_tgid) {
		other->relation = RELATION_THREAD;
		bpf_probe_read_kernel(other->comm, COMM_LEN, &task->comm);
		return;
	}
	other->relation = relation_of(task, tgid, proc_id);
	bpf_probe_read_kernel(other->comm, COMM_LEN, &BPF_CORE_READ(task, group_leader)->comm);
}

/* Names the running task: the one that leaves the CPU at a switch, or the waker. */
VERIFIED_ONCE int name_current(struct other_task *other, __u32 own_tgid, __u32 proc_id)
{
	if (other)
		name_task(other, bpf_get_current_task_btf(), own_tgid, proc_id);
	return 0;
}

/* What the system call can wake that a task is in. */
static __always_inline __u32 wakes_of(struct task_struct *task)
{
	long number = syscall_number((struct pt_regs *)bpf_task_pt_regs(task));

	return number >= 0 && number < MAX_SYSCALLS ? syscall_wakes[syscall_index(number)] : 0;
}

static __always_inline void forget_waker(struct thread *thread)
{
	thread->waker_busy_since_ns = 0;
	thread->waker_lock_ns = 0;
	thread->waker_proc_id = 0;
	thread->waker_tid = 0;
	thread->waker_polled = 0;
	__builtin_memset(&thread->waker_had, 0, sizeof(thread->waker_had));
}

/* Remembers the task that wakes the thread, and what its system call can wake. A lock of the kernel is released by the task that had it,
 * unless its owner was known before. */
static __noinline void note_waker(struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct thread *of_waker;

	if (thread->contended && thread->wakes)
		return;
	thread->wakes = thread->contended ? HOLDS_LOCK : wakes_of(waker);
	if (thread->wakes == MAKES_ROOM)
		thread->wakes = thread->waits_for & WAITS_LOCALLY ? WAKES_FD : 0;
	else if (thread->wakes & WAKES_FD && may_be_of_file(thread) && serves_files(waker))
		thread->wakes |= WAKES_FILES;
	if (thread->waits_for)
		settle_reason(thread, waker);
	if (!thread->wakes)
		return;
	name_current(&thread->waker, thread->tgid, thread->proc_id);
	forget_waker(thread);
	if (thread->waker.tgid != thread->tgid)
		note_feeder(thread);
	if (thread->waker.relation == RELATION_OTHER)
		return;
	of_waker = thread_of(waker);
	if (!of_waker)
		return;
	if (thread->waker.relation == RELATION_WORKER)
		thread->waker_proc_id = of_waker->proc_id;
	if (thread->waker.relation != RELATION_THREAD)
		return;
	thread->waker_tid = waker->pid;
	thread->waker_busy_since_ns = of_waker->busy_since_ns;
	thread->waker_lock_ns = of_waker->offcpu_ns[REASON_LOCK] - of_waker->busy_lock_ns;
	/* Each of its waits is part of one wait for it. */
	if (thread->off_reason == REASON_FUTEX)
		of_waker->busy_lock_ns = of_waker->offcpu_ns[REASON_LOCK];
	thread->waker_polled = of_waker->polled;
	thread->waker_had = of_waker->had;
}

/* A thread is busy all the same in a shorter wait on a futex. */
#define BRIEF_NS 100000ULL

/* Whether an idle thread waits like this: for work, a message or a time. */
static __always_inline bool is_idle(__u32 reason, __u64 ns)
{
	return (reason == REASON_FUTEX && ns > BRIEF_NS) || reason == REASON_POLL || reason == REASON_NET ||
	       reason == REASON_SLEEP || reason == REASON_CHILD || reason == REASON_OTHER;
}

/* Since when the thread is busy, and has the lock that it polled for, after a blocked wait. */
static __always_inline void end_wait(struct thread *thread, __u32 reason, __u64 since, __u64 woken)
{
	if (is_idle(reason, woken - since)) {
		thread->busy_since_ns = woken;
		thread->busy_lock_ns = thread->offcpu_ns[REASON_LOCK];
	}
	if (woken >= thread->polls_until_ns)
		return;
	thread->had.before_ns = thread->had.took_ns;
	thread->had.gave_ns = thread->waits_since_ns;
	thread->had.took_ns = woken;
	thread->waits_since_ns = 0;
}

/* Sets the `waker` to blame for a wait of this reason. */
static __always_inline void settle_waker(struct thread *thread, __u32 reason)
{
	__u32 needed;

	switch (reason) {
	case REASON_FUTEX:
	case REASON_LOCK:
	case REASON_CHILD:
		needed = WAKES_FUTEX;
		break;
	case REASON_POLL:
	case REASON_NET:
		needed = WAKES_FD;
		break;
	case REASON_KERNEL_LOCK:
		needed = HOLDS_LOCK;
		break;
	case REASON_OTHER:
		needed = WAKES_FUTEX | WAKES_FD;
		break;
	default:
		needed = WAKES_FILES;
	}
	if (!(thread->wakes & needed))
		set_nobody(&thread->waker, NAME_KERNEL);
}

/* A process may use a bounded part of the map, as programs could give each thread its own name. Half of it is for
 * entries by thread. */
static __always_inline bool may_add_name(struct proc *proc, __u32 tid)
{
	__u32 limit = tid ? MAX_NAMES / 2 : MAX_NAMES;

	return proc->names < limit && __sync_fetch_and_add(&proc->names, 1) < limit;
}

/* The entry of a new name, or of `other` when the process has too many; `other` then has that name. */
static __noinline struct blamed *new_blamed(struct blame_key *key, struct other_task *other)
{
	__u32 proc_id = key->proc_id;
	struct proc *proc = bpf_map_lookup_elem(&procs, &proc_id);
	struct blamed *blamed;

	/* User space has deleted the process and would never delete the entry. */
	if (!proc)
		return 0;
	if (!may_add_name(proc, key->tid)) {
		key->tid = 0;
		key->by_tid = 0;
		blamed = bpf_map_lookup_elem(&blame, key);
		if (blamed)
			return blamed;
		if (!may_add_name(proc, 0)) {
			set_nobody(other, NAME_OTHER);
			__builtin_memcpy(key->comm, other->comm, COMM_LEN);
			blamed = bpf_map_lookup_elem(&blame, key);
			if (blamed)
				return blamed;
		}
	}
	bpf_map_update_elem(&blame, key, &zero_blamed, BPF_NOEXIST);
	blamed = bpf_map_lookup_elem(&blame, key);
	if (!blamed)
		count_self(SELF_FULL_BLAME);
	return blamed;
}

/* In the wait of `blame_add`: the thread that held a lock, 0 for other waits; and the kind of a kernel's lock, counted from 1. */
#define HELD_BY(tid) ((__u64)(tid) << 32)
#define FOR_LOCK(kind) ((__u64)(kind) << 24)

VERIFIED_ONCE int blame_add(__u64 victim, __u64 wait, struct other_task *other, __u64 ns, __u64 held)
{
	struct blame_key key = { .proc_id = victim,
				 .tid = victim >> 32,
				 .reason = wait,
				 .phase = wait >> 16,
				 .lock = wait >> 24,
				 .by_tid = wait >> 32 };
	struct blamed *blamed;

	if (!other)
		return 0;
	__builtin_memcpy(key.comm, other->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (!blamed)
		blamed = new_blamed(&key, other);
	if (!blamed)
		return 0;
	__sync_fetch_and_add(&blamed->total_ns, ns);
	if (held)
		__sync_fetch_and_add(&blamed->held_ns, held);
	blamed->tgid = other->tgid;
	blamed->relation = other->relation;
	return 0;
}

/* Adds how long the thread that ended such a wait, for its work, waited for locks itself. */
VERIFIED_ONCE int blame_behind(__u64 victim, __u64 wait, struct other_task *other, __u64 ns)
{
	struct blame_key key = { .proc_id = victim, .tid = victim >> 32, .reason = wait, .phase = wait >> 16 };
	struct blamed *blamed;

	if (!other)
		return 0;
	__builtin_memcpy(key.comm, other->comm, COMM_LEN);
	blamed = bpf_map_lookup_elem(&blame, &key);
	if (blamed)
		__sync_fetch_and_add(&blamed->behind_ns, ns);
	return 0;
}

/* Credits a worker with ending its parent's wait. */
static __always_inline void credit_worker(__u32 proc_id, __u64 ns)
{
	struct proc *worker = bpf_map_lookup_elem(&procs, &proc_id);

	if (worker)
		__sync_fetch_and_add(&worker->measures.ended_waits, ns);
}

/* The longest time between two waits for a lock that is polled, and how long the thread runs between them: else it had the lock. On a
 * slow CPU a thread that did not have it runs for longer. */
#define BETWEEN_NS 10000000ULL
#define RUNS_BETWEEN_NS 20000ULL
#define RUNS_BETWEEN_AT_MOST_NS 500000ULL

/* Charges waits for the polled lock that timed out: to the thread `by` of this name, or to nobody when that is 0. */
static __always_inline void charge_polled(struct thread *thread, __u32 tid, __u32 by, struct other_task *name, __u64 ns)
{
	blame_add(VICTIM(thread->proc_id, tid), WAIT(REASON_LOCK, thread->retried_phase) | HELD_BY(by), name, ns,
		  by ? ns : 0);
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

/* The same with all of them. */
static __always_inline void charge_retries(struct thread *thread, __u32 tid)
{
	charge_nobody(thread, tid, thread->retried_ns);
	__builtin_memset(thread->retries, 0, sizeof(thread->retries));
}

/* Whether a thread that waits for the lock since `waits`, if not 0, had the lock then: it took it before and did not wait for it. */
static __always_inline bool had_lock(const struct tenure *had, __u64 waits, const struct retry *then)
{
	if (had->took_ns <= then->since_ns)
		return !waits || waits >= then->until_ns;
	return had->before_ns && had->before_ns <= then->since_ns && had->gave_ns >= then->until_ns;
}

/* Takes the waits that timed out while a thread had the lock. It released it just when the last timed out, so that nobody was woken. */
VERIFIED_ONCE __u64 take_retries(struct thread *thread, const struct tenure *had, __u64 waits)
{
	__u64 ns = 0;

	if (!thread || !had)
		return 0;
	for (int i = 0; i < MAX_RETRIES; i++) {
		struct retry *retry = &thread->retries[i];

		if (retry->ns && had_lock(had, waits, retry)) {
			ns += retry->ns;
			retry->ns = 0;
		}
	}
	thread->retried_ns -= ns;
	return ns;
}

/* The running thread gives away a lock that it had polled before, to a thread that polls it. */
static __noinline int settle_retries(struct task_struct *task, const struct thread *holder)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct other_task name = {};
	struct thread *thread;
	__u64 ns;

	if (!task || !holder || current->tgid != task->tgid)
		return 0;
	thread = thread_of(current);
	/* The timer of a wait that times out may have interrupted it instead. */
	if (!thread || !thread->retried_ns || !(wakes_of(current) & WAKES_FUTEX) ||
	    holder->polled != thread->retried_lock)
		return 0;
	/* One that never took the lock had none to release. */
	if (!holder->had.took_ns)
		return 0;
	ns = take_retries(thread, &holder->had, holder->waits_since_ns);
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
	ns = take_retries(thread, &thread->waker_had, 0);
	if (ns)
		charge_polled(thread, tid, thread->waker_tid, &thread->waker, ns);
	return 0;
}

static __always_inline struct retry *retry_at(struct thread *thread, __u32 at)
{
	return &thread->retries[at & (MAX_RETRIES - 1)];
}

/* Whether a wait from `since` for the polled lock goes on after those that timed out. Where there is no room for one more, this is assumed:
 * if the thread did have the lock between them, no other had it all of the time, and nobody is charged. */
static __always_inline bool goes_on(struct thread *thread, const struct retry *after, __u64 since)
{
	__u64 runs = since - thread->on_since_ns;

	if (!after->ns || since - after->until_ns > BETWEEN_NS)
		return false;
	return runs <= RUNS_BETWEEN_NS ||
	       (runs <= RUNS_BETWEEN_AT_MOST_NS && retry_at(thread, thread->newest_retry + 1)->ns);
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
		if (retry->ns)
			thread->newest_retry++;
		retry = retry_at(thread, thread->newest_retry);
		charge_nobody(thread, tid, retry->ns);
		retry->ns = 0;
		retry->since_ns = since;
	}
	retry->until_ns = woken;
	retry->ns += woken - since;
	thread->retried_ns += woken - since;
}

/* How much of a futex wait from `since` to `woken` the thread that ended it was busy, or held the lock that it is for. */
static __always_inline __u64 held_of(const struct thread *thread, __u32 reason, __u64 since, __u64 woken)
{
	__u64 from;

	if (reason == REASON_KERNEL_LOCK || (reason == REASON_LOCK && !thread->polls_until_ns))
		return woken - since;
	if (thread->waker.relation != RELATION_THREAD)
		return 0;
	from = reason == REASON_LOCK ? thread->waker_had.took_ns : thread->waker_busy_since_ns;
	if (!from && reason == REASON_FUTEX)
		return 0;
	if (from < since)
		from = since;
	return from < woken ? woken - from : 0;
}

/* So many waits in a row that threads ended which have not polled the futex prove that it is another one by now. */
#define MAX_DOUBTS 8

/* The futex is a lock if the thread that ends the wait polls it, too: work is waited for by those alone who do it. */
static __always_inline void prove_lock(struct thread *thread)
{
	if (thread->waker.relation == RELATION_THREAD && thread->waker_polled == thread->polled) {
		thread->polled_lock = thread->polled;
		thread->doubts = 0;
	} else if (thread->polled_lock == thread->polled && ++thread->doubts >= MAX_DOUBTS) {
		thread->polled_lock = 0;
	}
}

/* A blocked wait from `since` to `woken` is over. */
VERIFIED_ONCE int blame_waker(struct thread *thread, __u32 tid, __u32 reason, __u64 since, __u64 woken)
{
	__u64 total = woken - since, held, kept, behind, wait;
	bool polls, is_lock;

	if (!thread)
		return 0;
	settle_waker(thread, reason);
	polls = (reason == REASON_FUTEX || reason == REASON_LOCK) && thread->polls_until_ns;
	/* The timer's interrupt may have come while some task was in such a system call. */
	if (polls && woken >= thread->polls_until_ns)
		set_nobody(&thread->waker, NAME_KERNEL);
	if (is_recording())
		record_offcpu(VICTIM(thread->proc_id, tid),
			      WAIT(reason, thread->phase) | WAIT_FLAGS(reason == REASON_LOCK ? EVENT_LOCK : 0),
			      &thread->waker, since, total);
	if (polls && reason == REASON_LOCK && thread->waker.relation == RELATION_NONE) {
		keep_retry(thread, tid, since, woken);
		return 0;
	}
	if (polls && thread->waker.relation != RELATION_NONE)
		prove_lock(thread);
	if (thread->waker.relation == RELATION_WORKER)
		credit_worker(thread->waker_proc_id, total);
	kept = polls && reason == REASON_LOCK && thread->waker.relation == RELATION_THREAD &&
			       thread->waker_polled == thread->retried_lock && thread->phase == thread->retried_phase
		       ? take_retries(thread, &thread->waker_had, 0)
		       : 0;
	is_lock = reason == REASON_LOCK || reason == REASON_KERNEL_LOCK;
	held = reason == REASON_FUTEX || is_lock ? held_of(thread, reason, since, woken)
						 : owed_of(thread, reason, total);
	wait = WAIT(reason, thread->phase);
	if (is_lock && thread->waker.relation == RELATION_THREAD)
		wait |= HELD_BY(thread->waker_tid);
	if (reason == REASON_KERNEL_LOCK) {
		wait |= FOR_LOCK(thread->lock_kind);
		/* Another may have taken the lock meanwhile, so that the thread waits again. */
		thread->wakes = 0;
	}
	blame_add(VICTIM(thread->proc_id, tid), wait, &thread->waker, total + kept, held + kept);
	behind = reason == REASON_FUTEX && thread->waker.relation == RELATION_THREAD ? thread->waker_lock_ns : 0;
	if (behind)
		blame_behind(VICTIM(thread->proc_id, tid), WAIT(reason, thread->phase), &thread->waker,
			     behind < held ? behind : held);
	return 0;
}
