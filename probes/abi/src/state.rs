//! Why a thread is off the CPU, and what part a thread plays in its process.

/// Declares an enum whose discriminants the C side uses under the name `PREFIX_VARIANT`.
macro_rules! shared_enum {
    (
        $(#[$meta:meta])*
        $name:ident, $prefix:literal { $($(#[$vmeta:meta])* $variant:ident = $label:literal),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every variant, by discriminant.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Number of variants.
            pub const COUNT: usize = Self::ALL.len();
            pub(crate) const C_PREFIX: &str = $prefix;

            /// The label value on metrics; also the C name, in lower case.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }

            /// The variant with this discriminant, if there is one.
            pub fn from_raw(raw: u8) -> Option<Self> {
                Self::ALL.get(usize::from(raw)).copied()
            }
        }
    };
}
pub(crate) use shared_enum;

shared_enum! {
    /// The one reason that a stretch of off-CPU time is charged to.
    Reason, "REASON" {
        /// It could have run, but another task replaced it on the CPU.
        Preempted = "preempted",
        /// From wakeup until it got a CPU.
        Runqueue = "runqueue",
        /// Blocked on a futex that is not known to be a lock: it waits for work, a condition, the end of a thread.
        Futex = "futex",
        /// Blocked on a file or block device.
        Io = "io",
        /// Blocked outside any system call: the kernel was fetching a page. Also blocked while it freed memory, in a system call or not, and
        /// of a dispatcher thread the time in which it ran for that.
        PageFault = "page_fault",
        /// Blocked in `ioctl`, the way into GPU drivers.
        GpuDriver = "gpu_driver",
        /// Blocked until a descriptor is ready, a signal or a message comes: poll, select, epoll, or reading a pipe, terminal or event
        /// descriptor.
        Poll = "poll",
        /// Blocked on a socket.
        Net = "net",
        /// Asleep on a timer it asked for.
        Sleep = "sleep",
        /// Blocked on anything else.
        Other = "other",
        /// Frozen with its cgroup.
        Frozen = "frozen",
        /// Stopped by a signal or a debugger.
        Stopped = "stopped",
        /// Blocked while its process dumps core.
        CoreDump = "core_dump",
        /// Blocked on a futex that is a held lock: a mutex of the C library, or a lock that its threads poll, as Python's for its
        /// interpreter.
        Lock = "lock",
        /// Blocked on a lock of the kernel, in a system call or a page fault.
        KernelLock = "kernel_lock",
        /// It gave its CPU away (`sched_yield`) and could run again at any time.
        Yield = "yield",
        /// Blocked until a child process ends, or has another program.
        Child = "child",
    }
}

shared_enum! {
    /// Purpose of a kernel lock, or else its type.
    LockKind, "LOCK_KIND" {
        /// The thread's own address space: `mmap_lock`.
        AddressSpace = "address_space",
        /// A file or folder, or its pages.
        Inode = "inode",
        /// Renames of a whole file system.
        Rename = "rename",
        /// A mutex.
        Mutex = "mutex",
        /// A semaphore of readers and writers.
        Rwsem = "rwsem",
        /// A counting semaphore.
        Semaphore = "semaphore",
    }
}

impl LockKind {
    /// In a sentence.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::AddressSpace => "the lock of the address space (mmap_lock)",
            Self::Inode => "the lock of a file or folder (its inode)",
            Self::Rename => "the lock of renames of a file system",
            Self::Mutex => "a mutex of the kernel",
            Self::Rwsem => "a reader-writer lock of the kernel",
            Self::Semaphore => "a semaphore of the kernel",
        }
    }
}

shared_enum! {
    /// How a page fault was served.
    Fault, "FAULT" {
        /// From memory.
        Minor = "minor",
        /// From a disk.
        Major = "major",
    }
}

shared_enum! {
    /// Operation of a block I/O request.
    BlockOperation, "BLOCK" {
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Flushes, discards and the like.
        Other = "other",
    }
}

shared_enum! {
    /// Part that a thread plays.
    Role, "ROLE" {
        /// Has made a traced call.
        Dispatcher = "dispatcher",
        /// Another thread of a process that has a dispatcher.
        Helper = "helper",
        /// A thread of a descendant without traced calls of a process that has a dispatcher, such as a data-loader worker.
        Worker = "worker",
    }
}

shared_enum! {
    /// The task that a thread waited for has this relation to the thread's process.
    Relation, "RELATION" {
        /// No task: the idle loop, a timer, a device.
        None = "none",
        /// A thread of it.
        Thread = "thread",
        /// A worker process of it.
        Worker = "worker",
        /// Anything else.
        Other = "other",
    }
}

shared_enum! {
    /// How a thread left the CPU, as the kernel's own per-task switch counters see it.
    Switch, "SWITCH" {
        /// It blocked.
        Voluntary = "voluntary",
        /// It was runnable.
        Involuntary = "involuntary",
    }
}

shared_enum! {
    /// A dispatcher thread is in one of these phases, whether it is on a CPU or not: its outermost call decides.
    Phase, "PHASE" {
        /// Its own code, outside traced calls.
        Host = "host",
        /// Starting kernels.
        Launch = "launch",
        /// Copying or filling memory.
        Memcpy = "memcpy",
        /// Taking memory or giving it back.
        Alloc = "alloc",
        /// Waiting for the GPU.
        Sync = "sync",
        /// Capturing, building or launching graphs.
        Graph = "graph",
        /// Communicating between GPUs.
        Nccl = "nccl",
        /// Any other traced call.
        Other = "other",
    }
}

/// A thread's wall time is spent in these states: on a CPU, or off it for a [`Reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// On a CPU.
    Running,
    /// Off it.
    Off(Reason),
}

impl State {
    /// Number of states.
    pub const COUNT: usize = Reason::COUNT + 1;

    /// Every state, by [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Running).chain(Reason::ALL.iter().copied().map(Self::Off))
    }

    /// The position in an account: running first, then the reasons.
    pub const fn index(self) -> usize {
        match self {
            Self::Running => 0,
            Self::Off(reason) => reason as usize + 1,
        }
    }

    /// Returns true if a dispatcher's time in this state and phase is lost to the GPU. This is the one definition, for metrics, rules,
    /// chains and `top`. In a wait for the GPU only the wait for a CPU after the wake-up is lost: a polling thread that is preempted there
    /// delays nothing that can be measured. In other phases the lost time is that without a CPU, or blocked on a held lock, the program's or
    /// the kernel's, a disk or a page. Waits for another thread's work are not lost: the thread is idle, whatever the other does.
    pub const fn is_lost_in(self, phase: Phase) -> bool {
        let Self::Off(reason) = self else { return false };
        match reason {
            Reason::Runqueue => true,
            Reason::Preempted
            | Reason::Lock
            | Reason::Io
            | Reason::PageFault
            | Reason::KernelLock => !matches!(phase, Phase::Sync),
            _ => false,
        }
    }

    /// Returns true if somebody outside suspended the thread: that is neither healthy nor lost time, and no chain.
    pub const fn is_suspended(self) -> bool {
        matches!(self, Self::Off(Reason::Frozen | Reason::Stopped | Reason::CoreDump))
    }

    /// The label value on metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Off(reason) => reason.label(),
        }
    }
}
