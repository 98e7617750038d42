//! Records that live in kernel maps, and the bounds of those maps.

mod bounds;
mod kinds;
mod sampling;

use crate::c_record::{CRecord, records};
use crate::hist::SLOTS;
use crate::measure::Measures;

pub use bounds::*;
pub use kinds::{ArgRole, BytesKind, GrowingMap, HistKind, SelfCounter};
pub use sampling::*;

/// Number of self counters, as an array length.
pub const SELF_COUNTERS: usize = SelfCounter::COUNT;
/// Number of maps whose new entries are counted, as an array length.
pub const GROWING_MAPS: usize = GrowingMap::COUNT;

records! {
    /// Key of the `hists` map. See [`HistKind`] for `a` and `b`; `chunk` holds slots from `chunk * CHUNK_SLOTS` on.
    HistKey as "hist_key" { proc_id: u32, kind: u16, a: u16, b: u16, chunk: u16 }

    /// A chunk of a histogram. `sum` and `max` are exact and of this chunk's values; the count is the sum of the slots.
    HistRecord as "hist" { sum_ns: u64, max_ns: u64, slots: [u64; CHUNK_SLOTS] }

    /// Key of `stalls`: one op of one process; `flags` are [`CALL_COLD`] and [`CALL_NESTED`].
    CallKey as "call_key" { proc_id: u32, op: u16, flags: u16 }

    /// Off-CPU time that overlapped calls of one op.
    StallRecord as "stall" { calls: u64, offcpu_ns: [u64; REASONS] }

    /// Key of `errors`: one result code of one op of one process.
    ErrorKey as "error_key" { proc_id: u32, op: u16, pad: u16, code: u32 }

    /// Key of `kernels`: a kernel function of a process, by its handle.
    KernelKey as "kernel_key" { function: u64, proc_id: u32, pad: u32 }

    /// Launches of one kernel function. It counts as loading until the first launch returns. `timed` is the `kernel_hists`
    /// entry of its warm launches, counted from 1; 0 for none. `untimed` are those launches that were counted and not timed.
    KernelRecord as "kernel" { launches: u64, loaded: u32, timed: u32, untimed: u64 }

    /// The meaning of a handle that the driver or the runtime returned: another handle of the process, or a name.
    KernelNameRecord as "kernel_name" { stands_for: u64, text: [u8; KERNEL_NAME_LEN] }

    /// A whole histogram: times of one kernel function's warm launches.
    KernelHistRecord as "kernel_hist" { sum_ns: u64, max_ns: u64, slots: [u64; SLOTS] }

    /// Key of `allocations`: a device address of a process.
    AllocationKey as "allocation_key" { address: u64, proc_id: u32, pad: u32 }

    /// Key of `bytes`: what was counted, and for copies the kind, for collectives the op.
    BytesKey as "bytes_key" { proc_id: u32, what: u16, which: u16 }

    /// Key of `block_io`: one disk, and a [`BlockOperation`](crate::state::BlockOperation).
    BlockKey as "block_key" { proc_id: u32, operation: u32, device: [u8; DEVICE_LEN] }

    /// Block I/O that has completed. Times of requests that were in flight together add up.
    BlockRecord as "block_total" { ns: u64, bytes: u64, requests: u64 }

    /// Key of `blame`: the task that a thread waited for, and the phase. For `REASON_PREEMPTED` and `REASON_RUNQUEUE` the
    /// task that had the CPU, else the one that ended the wait. `tid` is 0 for threads without their own entries. `by_tid` is the holder of a
    /// lock that is a thread of the same process, the number of the system call plus 1 for `REASON_OTHER`, else 0. `lock` is the kind
    /// of a kernel's lock, counted from 1.
    BlameKey as "blame_key" {
        proc_id: u32, tid: u32, by_tid: u32, reason: u16, phase: u8, lock: u8, comm: [u8; COMM_LEN],
    }

    /// Wait time, and the task. `held_ns` is the part of a wait for a lock, of the kernel or of a file too, in which the other held it; of another futex wait that
    /// in which the other thread was busy, and `behind_ns` how much of that it waited for locks. Of a wait for another process it is the
    /// part that this owes: all where it makes room or serves a file, else what it computed meanwhile; of a page fault all that reads a file.
    BlameRecord as "blamed" {
        total_ns: u64,
        held_ns: u64,
        behind_ns: u64,
        /// The last process of that name; 0 for none.
        tgid: u32,
        /// A `RELATION_` of that process.
        relation: u32,
    }

    /// Another task, as stored by a thread that waits for it.
    OtherTaskRecord as "other_task" { comm: [u8; COMM_LEN], tgid: u32, relation: u32 }

    /// Wall time of dispatcher threads, by phase and state. In a thread's record the current stretch is open: its start was
    /// subtracted from the cell of running, so adding the current time completes the account.
    AccountRecord as "account" { cells_ns: [u64; ACCOUNT_CELLS] }

    /// How launches of one process are observed; without an entry each is timed, at the outermost layer.
    LaunchModeRecord as "launch_mode" {
        /// Odd while launches are not observed at all. Changes whenever that does.
        turn: u32,
        /// One in so many launches is timed, the others are counted; 0 and 1 for all.
        sample_every: u32,
        /// 0 when launches of the runtime are counted where they begin, else [`DRIVER_ONLY`] or [`DRIVER_ONLY_BEGINS`].
        driver_only: u32,
        /// `SHED_` bits.
        shed: u32,
    }

    /// A thread took a lock that it polls for, and waited for it again at `gave_ns`. It may have released it at any time between.
    TenureRecord as "tenure" {
        /// 0 in an entry without a tenure.
        took_ns: u64,
        gave_ns: u64,
        /// Futex of the lock, in the units of `polled`.
        lock: u32,
        tid: u32,
        comm: [u8; COMM_LEN],
    }

    /// The last tenures of all threads of a process that have ended.
    TenuresRecord as "tenures" {
        /// How many there were. Overflows.
        ended: u32,
        pad: u32,
        last: [TenureRecord; MAX_TENURES],
    }

    /// Waits for a lock that is polled that timed out, one soon after the other, until it is known who had the lock.
    RetryRecord as "retry" {
        /// Their sum.
        ns: u64,
        /// The begin of the first, and the end of the last.
        since_ns: u64,
        until_ns: u64,
    }

    /// Hits of call probes that a thread caused in a window, by [`LoadClass`](crate::op::LoadClass).
    #[derive(Default)]
    LoadRecord as "load" {
        /// Hits of calls that were timed.
        timed: [u32; LOADS],
        /// Hits of calls that were left at entry.
        counted: [u32; LOADS],
        /// Hits of both on single-stepped instructions.
        stepped: [u32; LOADS],
        /// Time that the hits took of the thread.
        spent_ns: u32,
        /// How long the program took to find the thread's record, in some of these hits, and how many those are.
        lookup_ns: u32,
        lookups: u32,
    }

    /// Report of a live thread of a tracked process: its page faults; a leader's include those of threads that have ended.
    /// The record of a thread that has an account follows.
    ThreadReport as "thread_report" {
        now_ns: u64,
        tid: u32,
        proc_id: u32,
        faults: [u64; FAULTS],
        /// 1 when a [`ThreadRecord`] follows.
        has_record: u32,
        /// 1 while it frees memory.
        frees_memory: u32,
    }

    /// One life of a process image. `ctx_switches` is `[role][kind]`.
    ProcRecord as "proc" {
        tgid: u32,
        /// The nearest ancestor that makes traced calls, when it was observed as this was forked or adopted; else 0.
        parent_id: u32,
        /// 1 once a thread of it has made a traced call.
        dispatches: u32,
        /// Accounts of ended threads that began to be, and that have been, added to the process's.
        flushes_begun: u32,
        flushes_done: u32,
        /// 1 when the image was replaced by exec rather than exited.
        execed: u32,
        /// Kernel functions that have a record, or were refused one.
        kernels: u32,
        /// Handles that a name is known of, or was refused.
        kernel_names: u32,
        /// Entries of `blame`, and names beyond the limit.
        names: u32,
        /// The `window` of [`Watch`] that `load` is of, and the load of the thread that launched most in it.
        load_window: u32,
        load: LoadRecord,
        /// Outermost launches that its threads made while they were observed, in whole batches of [`HIT_BATCH`]. Overflows.
        launches: u32,
        /// Rank and number of ranks of its communicator, the rank counted from 1; 0 when it has none.
        rank_plus_one: u32,
        world_size: u32,
        /// When the process started, on the boot-time clock.
        start_boot_ns: u64,
        /// When it was first seen, on the monotonic clock; 0 until it is tracked under this id: another thread may be faster.
        first_seen_ns: u64,
        /// When it exited or was replaced by exec, on the monotonic clock; 0 while it lives.
        ended_ns: u64,
        /// `spent_ns` of all its threads in `load_window`, and the sum of that of each thread times its time on a CPU between its first and
        /// last hits while calls were observed, in units of [`SPENT_RAN_UNIT`] nanoseconds.
        all_spent_ns: u64,
        all_spent_ran: u64,
        measures: Measures,
        ctx_switches: [u64; CTX_SWITCHES],
        /// Page faults of the process's threads that have ended, under earlier images too.
        faults_ended: [u64; FAULTS],
        /// Entries of `allocations`.
        allocations: u32,
        pad: u32,
        comm: [u8; COMM_LEN],
    }

    /// A traced call that has not returned. Offsets of off-CPU totals at entry give the overlap at return.
    FrameRecord as "frame" {
        start_ns: u64,
        /// Stack pointer at entry: identifies frames, and shows which are abandoned.
        stack: u64,
        /// Kernel function being launched; 0 when the op launches none.
        function: u64,
        /// Bytes from the arguments.
        bytes: u64,
        /// First argument of ops that allocate or free.
        pointer: u64,
        op: u16,
        link: u16,
        cold: u16,
        /// Kind of a copy; of a launch, the `timed` of its kernel function.
        kind: u16,
        /// The thread's `intervals` at entry: when it has not moved at return, the call never left the CPU.
        intervals: u32,
        /// 1 when a tail call from this call has returned: if this one is still open then, it was unwound.
        tail_called: u32,
        /// 1 when it was made within another traced call.
        nested: u32,
        /// 1 when it was off the CPU at some time, and `end_ns`: of a call that returns while events are recorded.
        stalled: u32,
        /// When it returned.
        end_ns: u64,
        offcpu_at_entry_ns: [u64; REASONS],
    }

    /// A tracked thread, in task storage.
    ///
    /// The call programs write `account_since_ns`, `counted_link`, `counted_op`, `counted_return`, `counted_stack`, `depth`,
    /// `frames`, `hist_key`, `hit_window`, `hits`, `kernel_hist_key`, `kernel_key`, `launched_ns`, `launched_turn`, `launches`,
    /// `left`, `load`, `mode`, `modes`, `moved_ns`, `offcpu_at_return_ns`, `phase`, `ran_before_ns`, `reported_ran_ns`, `reported_spent_ns` and `role`. No program that may interrupt them
    /// writes these, and they write no others. Exceptions are the functions in `APART` of `.ci/check-writers`, which checks this
    /// list.
    ThreadRecord as "thread" {
        proc_id: u32,
        tgid: u32,
        role: u32,
        depth: u32,
        /// When it left the CPU; 0 while it runs or when that is not known.
        off_since_ns: u64,
        /// The kernel's count of its waits for a CPU then.
        run_delay_ns: u64,
        /// When it last got a CPU.
        on_since_ns: u64,
        /// When it was last woken.
        woken_ns: u64,
        /// The last `woken_ns` that found it on a CPU, about to block: it went on, and a later wakeup ends its next wait; or it just left
        /// the CPU, if it did so at once.
        awake_ns: u64,
        /// Reason to charge when it returns, if it is not a wait for a CPU.
        off_reason: u32,
        /// Phase of the outermost open call.
        phase: u32,
        /// When the time account was opened; 0 for threads that have none.
        account_since_ns: u64,
        /// When the last launch returned; 0 before the first.
        launched_ns: u64,
        /// The `turn` of its process's [`LaunchModeRecord`] then.
        launched_turn: u32,
        /// Hits of call probes by this thread in this `window` of [`Watch`], as in [`LoadRecord`].
        hit_window: u32,
        load: LoadRecord,
        /// The times that its parts of `all_spent_ns` and `all_spent_ran` of its process are of.
        reported_spent_ns: u32,
        reported_ran_ns: u32,
        /// The `modes` of [`Watch`] when `mode` was copied.
        modes: u32,
        /// How launches of its process are observed.
        mode: LaunchModeRecord,
        /// Hits of call probes, and those left at entry that are not reported yet. Overflow.
        hits: u32,
        left: u32,
        /// 1 while it waits for the thread that it handed its work over to, and that replaced it on its CPU.
        handed_over: u32,
        /// The lock of `retries`, as in `polled`.
        retried_lock: u32,
        /// Outermost launches. Overflows.
        launches: u32,
        /// The last outermost call that was counted and not timed: op and link, its stack pointer, 0 for none, and its return address.
        counted_op: u16,
        counted_link: u16,
        counted_stack: u64,
        counted_return: u64,
        /// Its time on a CPU when this `hit_window` began for it, and that in pauses since; from any begin.
        ran_before_ns: u64,
        /// When it began to free memory; 0 when it does not. Written by the reclaim programs.
        reclaim_since_ns: u64,
        /// Its `offcpu_total_ns` then. Written by the reclaim programs.
        reclaim_offcpu_ns: u64,
        /// Where its wait for a CPU is split by who has it: one of that CPU's slots, counted from 1; 0 for none.
        slot: u32,
        slot_cpu: u32,
        /// Until when its wait for a CPU is charged, where it got no slot of the CPU that it was moved to; 0 otherwise.
        charged_until_ns: u64,
        /// Sum of `offcpu_ns`.
        offcpu_total_ns: u64,
        /// Who had the CPU while this thread could have run.
        culprit: OtherTaskRecord,
        /// Who woke it last with a system call that wakes others.
        waker: OtherTaskRecord,
        /// Since when the waker had been busy, when that is a thread of the same process; 0 for others.
        waker_busy_since_ns: u64,
        /// How long it had waited for locks since then.
        waker_lock_ns: u64,
        /// When the thread's last idle wait ended, or when it was first seen, and what it had waited for locks until then.
        busy_since_ns: u64,
        busy_lock_ns: u64,
        /// Changed between states.
        account: AccountRecord,
        /// Running time that the call programs moved between phases: to be added to that of `account`, modulo 2^64.
        moved_ns: [u64; PHASES],
        /// `WAKES_` bits of the last waker's system call.
        wakes: u32,
        /// Off-CPU intervals that have ended: readers retry when it moves.
        intervals: u32,
        /// The waker, when that is a thread of the same process; else 0.
        waker_tid: u32,
        /// The process of the waker, when that is a worker of this one; else 0.
        waker_proc_id: u32,
        /// When the futex wait that it left the CPU for times out, if that is soon: it polls a lock, or for work. Else 0.
        polls_until_ns: u64,
        /// Since when it waits like that; 0 after it took the lock.
        waits_since_ns: u64,
        /// When its last such wait timed out; 0 if that was ended, or if the thread has waited for anything else since.
        timed_out_ns: u64,
        /// Its time on a CPU when its last such wait began, and how much of it the thread had between the wait before and that one. All bits
        /// are set if that was for another futex, did not time out or was not the thread's last wait of any kind.
        polled_ran_ns: u64,
        between_ns: u64,
        /// When it last took the lock that it polls: a wait for it was ended before it timed out, or timed out and the thread then ran for
        /// long. Means nothing where the futex is no lock. 0 before the first for this futex.
        took_ns: u64,
        /// The futex of its last such wait, the lower half of its address in units of 8 bytes, 0 before the first; and the one that is
        /// proven to be a lock, since the thread that ended the last such wait has waited for it in the same way.
        polled: u32,
        polled_lock: u32,
        /// The waker's `polled` and `took_ns`, when that is a thread of the same process; else 0.
        waker_polled: u32,
        /// The phase of `retries`.
        retried_phase: u32,
        waker_took_ns: u64,
        /// The number of ended tenures of its process when its last such wait began; and when the last of `retries` began, plus its own since.
        polled_after: u32,
        retried_after: u32,
        /// Sum of `retries`.
        retried_ns: u64,
        /// When waits of `retries` were last charged to a thread, or could have been: the thread had the lock then.
        settled_ns: u64,
        retries: [RetryRecord; MAX_RETRIES],
        offcpu_ns: [u64; REASONS],
        /// `offcpu_ns` when the returning call ended.
        offcpu_at_return_ns: [u64; REASONS],
        /// When `fed_share` was last computed, and the CPU time of `fed_by` until then.
        fed_at_ns: u64,
        fed_ran_ns: u64,
        /// Lookup keys of the call programs, stored here instead of on their stacks.
        kernel_key: KernelKey,
        hist_key: HistKey,
        kernel_hist_key: u32,
        /// NUMA node of the last CPU that it got, counted from 1; 0 before the first.
        node: u32,
        /// Waits for `polled_lock` in a row that threads ended which had polled another futex last, or none.
        doubts: u32,
        /// Index of the newest of `retries`, modulo their number.
        newest_retry: u32,
        /// `WAITS_` bits say what its last blocked wait is for, as far as that was known when it began.
        waits_for: u32,
        /// The thread of another process that woke it last, 0 before the first and after one that ended; and for what part of 1,024 that
        /// had a CPU before it did.
        fed_by: u32,
        fed_share: u32,
        /// The lock of the kernel that it contends for, by address, 0 for none; where its program is then; and the flags of the kernel's report.
        contended: u64,
        contended_ip: u64,
        contended_flags: u16,
        /// Its last blocked wait is for this, counted from 1: a kind of lock of the kernel, or for `REASON_OTHER` the system call.
        blocked_on: u16,
        /// The process that had the lock of the file when the thread began to wait for it; of use in such a wait only.
        blocked_by: u32,
        frames: [FrameRecord; MAX_DEPTH],
    }

    /// Facts fixed when the programs are loaded.
    Settings as "settings" {
        /// The daemon itself, in no account.
        own_tgid: u32,
        /// Stack pointer at return minus stack pointer at entry: what the return instruction pops.
        return_pop: u32,
        /// Bytes of a page.
        page_bytes: u32,
        /// 1 when launches within other calls are timed too.
        nested_launches: u32,
        /// 1 when `tcp_retransmit_skb` reports whether the retransmission failed.
        retransmit_has_error: u32,
        /// 1 when `mark_victim` passes the task, 0 when only its PID.
        victim_is_task: u32,
        /// Slots of the ring of events, a power of two; 0 when none are recorded.
        ring_slots: u32,
        /// How often the number of slots can be halved.
        ring_shift: u32,
        /// 1 when all threads have their records in `hashed_threads`, since task storage would be refused.
        hashes_threads: u32,
        /// CPUs that the host may have.
        cpus: u32,
        /// Nanoseconds between two of the kernel's ticks.
        tick_ns: u32,
    }

    /// Settings of the call programs. Written in one piece.
    Watch as "watch" {
        /// 1 while no call counts, because all probes are removed.
        paused: u32,
        /// Changes when hits are counted from zero again.
        window: u32,
        /// A `CALIBRATE_` constant: how the daemon's own calls are counted, to find out what one costs.
        calibrates: u32,
        /// Changes when an entry of `launch_modes` has changed.
        modes: u32,
        /// Cost of a hit to a thread if the call is left at entry.
        counted_ns: u32,
        /// Cost of a hit if the call is timed.
        timed_ns: u32,
        /// Extra cost of either on an instruction that the kernel single-steps.
        stepped_ns: u32,
        /// Hits may take this much of a thread in a window before calls are only counted; 0 for no limit.
        quota_ns: u32,
        /// Hits that took this much of a thread are reported at once; 0 for never.
        overspent_ns: u32,
    }

    /// Facts about an op that the programs need.
    OpInfo as "op_info" {
        /// Place of the argument that holds the kernel function being launched; 0 for none.
        function_arg: u8,
        /// Phase of a thread inside the op.
        phase: u8,
        /// Result code that means "not yet" and is no error; 0 for none.
        pending_code: u16,
        /// 1 when calls count as launches: see [`LaunchOps`](crate::op::LaunchOps).
        is_launch: u8,
        /// How to read the arguments: an `ARGS_` role, and what `first` and `second` stand for in it. Arguments are given by
        /// their place, see [`Abi`](crate::op::Abi).
        role: u8,
        first: u8,
        second: u8,
        /// Kind of a copy, when neither an argument nor a field has it; otherwise 0.
        kind: u8,
        kind_arg: u8,
        kind_at: u8,
        source_at: u8,
        destination_at: u8,
        /// An `API_` constant.
        api: u8,
        /// A `LOAD_` constant.
        load: u8,
        pad: u8,
    }
}
/// Context-switch counters of a process: [`ROLES`] x [`SWITCHES`].
pub const CTX_SWITCHES: usize = ROLES * SWITCHES;
