//! Bounds of the maps and of arrays in records, and constants in their fields.

use crate::state::{BlockOperation, Fault, Phase, Reason, Role, State, Switch};

/// Slots in one entry of the `hists` map. Histograms are stored in chunks of three powers of two, created on first use:
/// most need two or three, and an entry fills a 512-byte allocation, which the kernel caches for use in `sched_switch`,
/// where it cannot allocate.
pub const CHUNK_SLOTS: usize = 48;
/// Most open traced calls per thread: NCCL over runtime over driver, and some for callbacks.
pub const MAX_DEPTH: usize = 8;
/// Groups of waits for a lock that timed out that are kept for a thread, a power of two: see [`RetryRecord`](super::RetryRecord).
pub const MAX_RETRIES: usize = 8;
/// Tenures of polled locks that are kept of each process, all its threads together. A power of two.
pub const MAX_TENURES: usize = 32;
/// `TASK_COMM_LEN` of the kernel.
pub const COMM_LEN: usize = 16;
/// Bytes of a disk's name; longer than any in use.
pub const DEVICE_LEN: usize = 16;
/// Off-CPU reasons, as an array length.
pub const REASONS: usize = Reason::COUNT;
/// Roles, as an array length.
pub const ROLES: usize = Role::COUNT;
/// Size classes of copies: up to 4 KiB, 64 KiB, 1 MiB, 16 MiB, 256 MiB, and beyond.
pub const SIZE_CLASSES: usize = 6;
/// Phases, as an array length.
pub const PHASES: usize = Phase::COUNT;
/// States of a time account, as an array length: running, then the off-CPU reasons.
pub const STATES: usize = State::COUNT;
/// Cells of a time account: [`PHASES`] x [`STATES`].
pub const ACCOUNT_CELLS: usize = PHASES * STATES;
/// Kinds of context switch, as an array length.
pub const SWITCHES: usize = Switch::COUNT;
/// Kinds of page fault, as an array length.
pub const FAULTS: usize = Fault::COUNT;
/// Kinds of block I/O, as an array length.
pub const BLOCK_OPERATIONS: usize = BlockOperation::COUNT;
/// Most ops in the table; a power of two, so that a mask bounds an index.
pub const MAX_OPS: usize = 512;
/// Most library links at a time.
pub const MAX_LINKS: usize = 4096;
/// System-call numbers that have a reason of their own; higher numbers count as [`Reason::Other`].
pub const MAX_SYSCALLS: usize = 512;
/// Bit of a [`HistKind::Call`](super::HistKind::Call) key: first launch of a kernel function.
pub const CALL_COLD: u16 = 1;
/// Bit of a [`HistKind::Call`](super::HistKind::Call) key: off the CPU at some time between entry and return.
pub const CALL_STALLED: u16 = 2;
/// Bit of a [`HistKind::Call`](super::HistKind::Call) key: made within another traced call of the thread.
pub const CALL_NESTED: u16 = 4;
/// Most kernel functions per process.
pub const MAX_KERNELS: usize = 4096;
/// Most device memory addresses per process.
pub const MAX_ALLOCATIONS: usize = 65_536;
/// Most kernel handles with names per process.
pub const MAX_KERNEL_NAMES: usize = 2048;
/// Bytes of a kernel's name, with terminator.
pub const KERNEL_NAME_LEN: usize = 248;
/// Most timed kernel functions of all processes.
pub const KERNEL_HISTS: usize = 512;
/// Most entries of `blame` per process, without `other`.
pub const MAX_NAMES: usize = 256;
/// Most CPUs on which waits are split by running task; a power of two.
pub const MAX_CPUS: usize = 1024;
/// Most threads per CPU whose waits for it are split.
pub const MAX_VICTIMS: usize = 8;
/// State of a link in `closed_links`: new calls do not count, but earlier ones still report returns.
pub const LINK_RETIRING: u8 = 1;
/// State of a link in `closed_links`: detached, returns are not seen.
pub const LINK_CLOSED: u8 = 2;
/// Slots of the filter that saves untracked tasks map lookups; a power of two.
pub const FILTER_SLOTS: usize = 4096;
