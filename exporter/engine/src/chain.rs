//! The chain as shown by `/api/v1/chains`, `explain` and the metrics.

mod code;
mod continued;
mod course;
mod limit_user;
pub(crate) mod losses;
mod place;

use std::cmp::Ordering;
use std::fmt;
use std::path::Path;

use gpucause_abi::Nanos;
use serde::{Deserialize, Serialize};

use crate::shell::quoted;
use crate::template::number;
use crate::utc::utc;

pub use crate::evidence::Evidence;
pub use code::CodeShare;
pub use course::Course;
pub use limit_user::LimitUser;
pub use place::{HostCpus, Located, Loss, Place, Thread};

/// Declares an enum whose variants have a label each, the same on metrics, in JSON and in the configuration.
macro_rules! labelled {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $label:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $label)] $variant),+ }

        impl $name {
            /// Every variant.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The label value.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.label())
            }
        }
    };
}

labelled! {
    /// Cause that keeps the host from feeding the GPU.
    Cause {
        /// Another task had the CPU.
        CpuPreemption = "cpu_preemption",
        /// The thread was woken and got no CPU.
        RunqueueWait = "runqueue_wait",
        /// Another thread held a lock.
        LockWait = "lock_wait",
        /// Another task held a lock of the kernel.
        KernelLock = "kernel_lock",
        /// The thread waited for a disk.
        BlockIo = "block_io",
        /// The thread waited for pages, or reclaimed memory.
        PageFault = "page_fault",
        /// The thread waited for another process, which was busy.
        ProcessWait = "process_wait",
        /// The workers that prepare data did not keep up.
        DataloaderStarvation = "dataloader_starvation",
        /// The program waits for the GPU after nearly every launch.
        ImplicitSync = "implicit_sync",
        /// Device memory is allocated and freed all the time.
        AllocatorChurn = "allocator_churn",
        /// Device memory in use only grows.
        MemoryLeak = "memory_leak",
        /// CUDA graphs are captured and built repeatedly.
        GraphRecapture = "graph_recapture",
        /// Another rank comes late to collectives.
        NcclLateRank = "nccl_late_rank",
        /// The GPU is clock-throttled.
        ClockThrottling = "clock_throttling",
        /// The OOM killer killed a process.
        OomKill = "oom_kill",
        /// The cgroup's CPU limit throttled the thread.
        NoisyCgroup = "noisy_cgroup",
        /// Kernels are launched for the first time, which loads them.
        ColdStart = "cold_start",
        /// The program's own code computes between launches while the GPU is out of work.
        HostCode = "host_code",
        /// The copies are large.
        LargeCopy = "large_copy",
        /// None of the above explains it.
        Unexplained = "unexplained",
    }
}

impl Cause {
    /// Returns true if it takes dispatcher time while it lasts: a leak takes none until memory runs out, and a killed process has none.
    pub const fn takes_time(self) -> bool {
        !matches!(self, Self::MemoryLeak | Self::OomKill)
    }

    /// Returns true if the program itself is the cause: no other task is the culprit.
    pub const fn is_of_the_program(self) -> bool {
        matches!(
            self,
            Self::ImplicitSync
                | Self::AllocatorChurn
                | Self::MemoryLeak
                | Self::GraphRecapture
                | Self::ColdStart
                | Self::HostCode
                | Self::LargeCopy
        )
    }

    /// Another thread had the lock, which may be the culprit.
    pub const fn has_holder(self) -> bool {
        matches!(self, Self::LockWait | Self::KernelLock)
    }

    /// Returns true if the time that it takes is lost: the victim is off the CPU in a [lost
    /// state](gpucause_abi::state::State::is_lost_in).
    pub const fn loses_time(self) -> bool {
        matches!(
            self,
            Self::CpuPreemption
                | Self::RunqueueWait
                | Self::NoisyCgroup
                | Self::LockWait
                | Self::KernelLock
                | Self::BlockIo
                | Self::PageFault
        )
    }
}

labelled! {
    /// How the dispatcher thread was slowed.
    Effect {
        /// One launch in a hundred is far slower than the others, or fewer are and cost much time off the CPU.
        LaunchTail = "launch_tail",
        /// Fewer launches than before.
        LaunchRateDrop = "launch_rate_drop",
        /// Time between launches, off the CPU or in the program's own code.
        LaunchGap = "launch_gap",
        /// Some copies are far slower than others, or copies take much of the time.
        CopyTail = "copy_tail",
        /// Device memory allocation is slow.
        AllocTail = "alloc_tail",
        /// The program waits for the GPU after nearly every launch.
        SyncStorm = "sync_storm",
        /// A call does not return.
        Hang = "hang",
        /// Device memory in use only grows.
        MemoryGrowth = "memory_growth",
        /// A process was killed.
        ProcessKilled = "process_killed",
    }
}

impl Effect {
    /// Returns true if a call hangs or a process was killed, which comes before all that only takes time.
    pub const fn is_urgent(self) -> bool {
        matches!(self, Self::Hang | Self::ProcessKilled)
    }

    /// Returns the name of the whole that a share is part of, as in `80 % of the slow launches`.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::LaunchTail => "slow launches",
            Self::LaunchRateDrop => "missing launches",
            Self::LaunchGap => "gaps between launches",
            Self::CopyTail => "slow copies",
            Self::AllocTail => "slow allocations",
            Self::SyncStorm => "waits for the GPU",
            Self::Hang => "hang",
            Self::MemoryGrowth => "growth of memory",
            Self::ProcessKilled => "kill",
        }
    }

    /// The calls that are slow, if the effect is that some are.
    pub(crate) const fn slow_calls(self) -> Option<&'static str> {
        match self {
            Self::LaunchTail => Some("launches"),
            Self::CopyTail => Some("copies"),
            Self::AllocTail => Some("allocations"),
            _ => None,
        }
    }
}

labelled! {
    /// How much of the dispatcher thread's time the cause took; see [`Severities`](crate::settings::Severities).
    Severity {
        /// Worth knowing.
        Low = "low",
        /// Worth a ticket.
        Medium = "medium",
        /// Worth waking somebody.
        High = "high",
        /// It took more time than it left.
        Critical = "critical",
    }
}

/// The thread that feeds the GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Victim {
    /// Its process.
    pub pid: u32,
    /// The thread; the leader when the effect concerns the whole process.
    pub tid: u32,
    /// Name of the process.
    pub comm: String,
    /// Start of the process, in seconds on the boot-time clock: unique together with the PID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<f64>,
    /// Where it runs.
    #[serde(flatten)]
    pub place: Place,
}

/// The task that caused it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// Its process.
    pub pid: u32,
    /// Its name; the thread's name for a thread of the victim's own process.
    pub comm: String,
    /// Its thread: that of the victim's own process, if no other has its name; of another process the one that was measured to
    /// have had most of the victim's CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Name of that thread of another process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thread: String,
    /// The host of a rank of the victim's job, as Prometheus calls it; empty on this one. Its PID is not known here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Where it runs.
    #[serde(flatten)]
    pub place: Place,
    /// The observed process that feeds a GPU and that it is, or works for. It is for texts and known only on its host.
    #[serde(skip)]
    pub feeds: Option<Feeder>,
}

/// A process that feeds a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feeder {
    /// Its PID.
    pub pid: u32,
    /// Its name.
    pub comm: String,
}

impl Culprit {
    /// Its process, if that is one of the victim's host.
    pub fn local_pid(&self) -> Option<u32> {
        self.host.is_empty().then_some(self.pid)
    }

    /// Its name, with its host where that is another than the victim's.
    pub fn name(&self) -> String {
        match &*self.host {
            "" => self.comm.clone(),
            host => format!("{} on {host}", self.comm),
        }
    }

    /// Which process it is.
    pub(crate) fn process(&self) -> (u32, &str) {
        (self.pid, &self.host)
    }

    /// Describes its relation to the victim: a thread of the victim's process, or another process with the place where that runs.
    pub fn describe(&self, victim: &Victim) -> String {
        let own = self.pid == victim.pid;
        match self.tid {
            _ if !self.host.is_empty() => format!("on {}", self.host),
            Some(tid) if own => {
                format!("thread {tid} of the victim's process{}", self.place.allowed_on())
            }
            None if own => "a thread of the victim's process".to_owned(),
            Some(tid) if !self.thread.is_empty() => {
                format!("thread {} ({tid}) of {}", self.thread, self.place.describe(self.pid))
            }
            _ => self.place.describe(self.pid),
        }
    }
}

/// One step of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Who or what causes it.
    pub from: String,
    /// Who or what is affected.
    pub to: String,
    /// How.
    pub mechanism: String,
    /// For how long, in seconds, in the chain's last window.
    pub seconds: f64,
}

impl Step {
    pub(crate) fn new(
        from: impl Into<String>,
        to: impl Into<String>,
        mechanism: impl Into<String>,
        time: Nanos,
    ) -> Self {
        let (from, to, mechanism) = (from.into(), to.into(), mechanism.into());
        Self { from, to, mechanism, seconds: time.as_secs_f64() }
    }
}

/// Smallest unexplained share that the sentence mentions.
const WORTH_SAYING: f64 = 0.05;

/// A causal chain, from its first to its last detection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Id of the chain in metrics, answers and alerts.
    pub id: String,
    /// The cause.
    pub cause: Cause,
    /// The effect.
    pub effect: Effect,
    /// Highest severity of any window; see [`Course`] for when.
    pub severity: Severity,
    /// The thread that lost time.
    pub victim: Victim,
    /// The task that took it, if known.
    pub culprit: Option<Culprit>,
    /// Share of the effect that the cause explains, 0 to 1, in its last window.
    pub explained: f64,
    /// Total dispatcher time lost, in seconds: the part of the [attributed time](Self::attributed_seconds) in [lost
    /// states](gpucause_abi::state::State::is_lost_in).
    pub lost_seconds: f64,
    /// Who took the lost time, most first; the rest has no known culprit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<Loss>,
    /// Where the victim's own code spent its time, or that of a lock's holder, most first; empty where that was not sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<CodeShare>,
    /// The numbers behind it in its last window, and the total time attributed.
    pub evidence: Evidence,
    /// From the culprit to the effect.
    pub path: Vec<Step>,
    /// Description of what happened.
    pub sentence: String,
    /// Advice on what to try.
    pub fix: String,
    /// When it was first seen, in seconds since the Unix epoch.
    pub first_seen: f64,
    /// When it was last seen, in seconds since the Unix epoch.
    pub last_seen: f64,
    /// True if it was seen in the last windows; `None` for chains of old nodes, where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<bool>,
    /// How it went on from its first window to its last.
    #[serde(flatten)]
    pub course: Course,
}

impl Chain {
    /// The order of every list: a call that hangs and a killed process first, then by the time taken in the period, or by all time
    /// that the chain took where that is not known.
    pub fn worst_first(&self, other: &Self, period: (f64, f64)) -> Ordering {
        let taken = |chain: &Self| match chain.taken_in(period) {
            Some((attributed, _)) => attributed,
            None => chain.attributed_seconds(),
        };
        let urgent = other.effect.is_urgent().cmp(&self.effect.is_urgent());
        let taken = || taken(other).total_cmp(&taken(self));
        urgent.then_with(taken).then_with(|| self.id.cmp(&other.id))
    }

    /// Evidence key of the attributed time.
    pub const ATTRIBUTED: &str = "attributed_seconds";

    /// Total time of the victim that the cause took, in seconds, lost or not: an implicit sync, for example, runs or waits for
    /// the GPU, and neither is lost. Chains of old nodes only have the lost time.
    pub fn attributed_seconds(&self) -> f64 {
        self.evidence.get(Self::ATTRIBUTED).unwrap_or(self.lost_seconds)
    }

    /// Evidence key of the share of the effect that no cause explains.
    pub const UNEXPLAINED: &str = "unexplained_share";
    /// Evidence of a wait for the lock of a file: how long the culprit had it.
    pub(crate) const FILE_LOCK_SECONDS: &str = "file_lock_seconds";

    /// The clause about the unexplained share; empty when it is too small to act on.
    pub(crate) fn unexplained(&self) -> String {
        match self.evidence.get(Self::UNEXPLAINED) {
            Some(share) if share >= WORTH_SAYING && self.cause != Cause::Unexplained => {
                let effect = self.effect.describe();
                format!(" {} of the {effect} are unexplained.", number(share, "percent"))
            }
            _ => String::new(),
        }
    }

    /// The clause about the cgroup whose CPU limit it is; empty where that is unknown.
    pub(crate) fn limited_cgroup(&self) -> String {
        let file = Path::new(&self.victim.place.cpu_limit);
        let group = file.parent().and_then(|group| quoted(group.to_str()?));
        match (self.cause, group) {
            (Cause::NoisyCgroup, Some(group)) => format!(" The limit is that of {group}."),
            _ => String::new(),
        }
    }

    /// Describes the culprit's relation to the victim, and whether others of its name took time as well; `None` without a culprit.
    pub fn place_of_culprit(&self) -> Option<String> {
        let own = self.culprit.as_ref()?;
        let has_several = |loss: &Loss| loss.comm == own.comm && loss.pid.is_none();
        let is_one_of_several = own.pid != self.victim.pid && self.losses.iter().any(has_several);
        let more = if is_one_of_several { "; one of several of this name" } else { "" };
        Some(format!("{}{more}", own.describe(&self.victim)))
    }

    /// Evidence key of the length of the last window.
    pub const WINDOW: &str = "window_seconds";

    /// The clause about the window, and whether the chain is ongoing or has ended.
    pub fn when(&self) -> String {
        self.when_by(|at| format!("{} UTC", utc(at, true)))
    }

    /// Returns the clause of [`when`](Self::when), with times in another form.
    pub fn when_by(&self, time: impl Fn(f64) -> String) -> String {
        let measured = self.course.measured_at.unwrap_or(self.last_seen);
        let mut when = String::with_capacity(128);
        let window = self.evidence.get(Self::WINDOW).map(|seconds| number(seconds, "seconds"));
        let window = match &window {
            Some(window) => ["Measured over ", window, " until "],
            None => ["Last seen at ", "", ""],
        };
        let since = match self.ongoing {
            Some(true) => "ongoing since ",
            Some(false) if measured < self.last_seen => "ended later; first seen at ",
            Some(false) => "ended then; first seen at ",
            None => "first seen at ",
        };
        when.extend(window);
        when.extend([&*time(measured), "; ", since, &*time(self.first_seen), "."]);
        when
    }

    /// Converts a chain of an old recording, whose lost seconds are all time that the cause took.
    #[must_use]
    pub fn upgraded(mut self) -> Self {
        if self.evidence.get(Self::ATTRIBUTED).is_none() {
            self.set_attributed_seconds(self.lost_seconds);
            if !self.cause.loses_time() {
                self.lost_seconds = 0.0;
            }
        }
        self
    }

    pub(crate) fn set_attributed_seconds(&mut self, seconds: f64) {
        let evidence = std::mem::take(&mut self.evidence);
        self.evidence = evidence.with(Self::ATTRIBUTED, seconds);
    }
}
