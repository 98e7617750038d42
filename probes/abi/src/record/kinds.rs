//! Kinds of what the maps hold: parts of their keys, and roles of arguments.

use crate::state::shared_enum;

shared_enum! {
    /// The kind says what a histogram in the `hists` map holds, and how its key's `a` and `b` are to be read.
    HistKind, "HIST" {
        /// Durations of calls: `a` is the op, `b` has [`CALL_COLD`](super::CALL_COLD), [`CALL_STALLED`](super::CALL_STALLED) and
        /// [`CALL_NESTED`](super::CALL_NESTED).
        Call = "call",
        /// Off-CPU intervals: `a` is the role, `b` the reason.
        Offcpu = "offcpu",
        /// Time from runnable to running: `a` is the role.
        Runqueue = "runqueue",
        /// Time from one launch's return to the next launch's entry on the same thread.
        LaunchGap = "launch_gap",
        /// Durations of copies: `a` is the kind, `b` the size class.
        Copy = "copy",
    }
}

shared_enum! {
    /// Quantity in an entry of the `bytes` map.
    BytesKind, "BYTES" {
        /// Copied, by kind.
        Copied = "copied",
        /// Device memory allocated.
        Allocated = "allocated",
        /// Device memory freed.
        Freed = "freed",
        /// Sent into collectives, by op.
        Collective = "collective",
        /// No bytes: outermost calls that were counted and not timed, by op; without launches of kernels that have a record.
        UntimedCalls = "untimed_calls",
    }
}

shared_enum! {
    /// How the programs are to read an op's arguments; see [`Args`](crate::op::Args).
    ArgRole, "ARGS" {
        /// Not at all.
        None = "none",
        /// `first` is the number of bytes.
        Copy = "copy",
        /// `first` is the width, `second` the height.
        Copy2d = "copy_2d",
        /// `first` is an array of sizes, `second` its length.
        CopySizes = "copy_sizes",
        /// `first` is an array of `cudaMemcpy3DBatchOp`, `second` its length.
        CopyBoxes = "copy_boxes",
        /// `first` is the offset of width and height.
        CopyFields2d = "copy_fields_2d",
        /// `first` is the offset of width, height and depth.
        CopyFields3d = "copy_fields_3d",
        /// `first` is the number of bytes.
        Alloc = "alloc",
        /// `first` is the height; the second argument points to the pitch.
        AllocPitch = "alloc_pitch",
        /// `first` is the `cudaExtent`; the first argument points to a `cudaPitchedPtr`.
        AllocExtent = "alloc_extent",
        /// `first` is the width, `second` the height; the second argument points to a `cudaChannelFormatDesc`.
        AllocArray = "alloc_array",
        /// `first` is the `cudaExtent`; the second argument points to a `cudaChannelFormatDesc`.
        AllocArrayExtent = "alloc_array_extent",
        /// `first` is the number of lengths in the descriptor that the second argument points to.
        AllocArrayDescribed = "alloc_array_described",
        /// The first argument is the address.
        Free = "free",
        /// `first` is the count, `second` the data type.
        Collective = "collective",
        /// `first` is the number of ranks, `second` the rank.
        Rank = "rank",
        /// The first argument points to where the handle of a kernel goes, `first` is the kernel's name.
        KernelName = "kernel_name",
        /// The first argument points to where a handle goes, `first` is another handle of the same kernel.
        KernelAlias = "kernel_alias",
    }
}

shared_enum! {
    /// Counters of the programs about themselves, and what user space makes of them.
    SelfCounter, "SELF" {
        /// Traced calls that were entered: runs of the call program, returns not counted again.
        HitCall = "hit_call",
        /// Runs of the `sched_switch` program.
        HitSwitch = "hit_switch",
        /// Runs of the programs for wakeups and migrations.
        HitWaking = "hit_waking",
        /// Runs of the process lifecycle programs.
        HitLifecycle = "hit_lifecycle",
        /// Runs of the block I/O programs.
        HitBlock = "hit_block",
        /// Runs of the reclaim and out-of-memory programs.
        HitMemory = "hit_memory",
        /// Runs of the page allocation program.
        HitPageAlloc = "hit_page_alloc",
        /// Runs of the TCP programs.
        HitNetwork = "hit_network",
        /// Runs of the program that samples stacks, but for those at timers within a period.
        HitSample = "hit_sample",
        /// Runs of the programs for the kernel's own locks, without those for locks that spin.
        HitLock = "hit_lock",
        /// Time that hits of call probes took of threads, in nanoseconds. User space computes it: traps and returns are no part of a program.
        CostCall = "cost_call",
        /// Time of the `sched_switch` program, in nanoseconds: one run in so many is timed, and stands for all. The others
        /// follow in the order of their runs.
        CostSwitch = "cost_switch",
        /// Time of the programs for wakeups and migrations.
        CostWaking = "cost_waking",
        /// Time of the process lifecycle programs.
        CostLifecycle = "cost_lifecycle",
        /// Time of the block I/O programs.
        CostBlock = "cost_block",
        /// Time of the reclaim and out-of-memory programs.
        CostMemory = "cost_memory",
        /// Time of the page allocation program.
        CostPageAlloc = "cost_page_alloc",
        /// Time of the TCP programs.
        CostNetwork = "cost_network",
        /// Time of the program that samples stacks.
        CostSample = "cost_sample",
        /// Time of programs for the kernel's own locks.
        CostLock = "cost_lock",
        /// Calls in flight when their return probes were detached; not timed, and only their outermost launches are
        /// counted.
        Truncated = "cut",
        /// Calls that the program left at entry: nested ones, and those counted but not timed. Cheaper than others.
        LeftAtEntry = "left_at_entry",
        /// Hits of probes on instructions that the kernel single-steps. Dearer than others.
        SingleStepped = "single_stepped",
        /// Hits of call probes for which it was measured how long the program took to find the thread's record.
        Lookups = "lookups",
        /// How long it took in all, in nanoseconds.
        LookupNs = "lookup_ns",
        /// Second reports of one call through another mount of the same file; not counted as calls.
        DuplicateHit = "duplicate_hit",
        /// Calls that never returned: unwound by longjmp or an exception, or ended by exit or exec.
        Abandoned = "abandoned",
        /// Returns without a matching entry, such as of calls that were in flight when the probe was attached.
        Unmatched = "unmatched",
        /// Calls nested deeper than a thread's record can hold; neither counted nor timed.
        TooDeep = "too_deep",
        /// Intervals whose end lies before their start on another CPU's clock; not stored.
        ClockUnderflow = "clock_underflow",
        /// `hists` refused an entry.
        FullHists = "full_hists",
        /// `procs` or `tracked` refused an entry.
        FullProcs = "full_procs",
        /// `stalls` refused an entry.
        FullStalls = "full_stalls",
        /// `errors` refused an entry.
        FullErrors = "full_errors",
        /// `kernels` refused an entry.
        FullKernels = "full_kernels",
        /// `kernel_names` refused an entry, or a process has too many.
        FullKernelNames = "full_kernel_names",
        /// `allocations` refused an entry, or a process has too many: what was allocated counts as freed at once.
        FullAllocations = "full_allocations",
        /// `bytes` refused an entry.
        FullBytes = "full_bytes",
        /// `accounts` refused an entry.
        FullAccounts = "full_accounts",
        /// `blame` refused an entry.
        FullBlame = "full_blame",
        /// `block_io` refused an entry.
        FullBlockIo = "full_block_io",
        /// `block_requests` refused an entry: the request is not counted.
        FullBlockRequests = "full_block_requests",
        /// `sockets` refused a record: retransmissions of the socket are not counted.
        FullSockets = "full_sockets",
        /// Neither the task's storage nor `hashed_threads` took a thread's record.
        FullThreads = "full_threads",
        /// `samples` refused an entry: the sample is lost.
        FullSamples = "full_samples",
        /// Off-CPU intervals whose end the kernel did not report; reconstructed from the wakeup and the scheduler's run
        /// delay.
        MissedSwitchIn = "missed_arrival",
        /// Calls on another stack than the thread's open calls, as of a coroutine; only their launches are counted.
        OtherStack = "other_stack",
        /// Calls of threads that got no record; neither counted nor timed.
        NoRecord = "no_record",
    }
}

shared_enum! {
    /// Maps whose new entries the programs count in `.data.added`. User space adds none once they are read.
    GrowingMap, "ADDED" {
        /// Processes.
        Procs = "procs",
        /// Chunks of histograms.
        Hists = "hists",
        /// Calls that left the CPU.
        Stalls = "stalls",
        /// Errors that calls returned.
        Errors = "errors",
        /// Launches by kernel function.
        Kernels = "kernels",
        /// Waits by the task waited for.
        Blame = "blame",
        /// Byte counts.
        Bytes = "bytes",
        /// Time accounts of ended threads.
        Accounts = "accounts",
        /// Completed block I/O.
        BlockIo = "block_io",
    }
}
