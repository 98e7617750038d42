//! What a chain is, as `/api/v1/chains`, `explain` and the metrics show it.

mod evidence;
mod place;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tell::number;
use crate::utc::utc;

pub use evidence::Evidence;
pub use place::{Loss, Place};

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
            #[must_use]
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
    /// What went wrong on the host.
    Cause {
        /// Another task had the CPU.
        CpuPreemption = "cpu_preemption",
        /// The thread was woken and got no CPU.
        RunqueueWait = "runqueue_wait",
        /// Another thread held a lock.
        LockWait = "lock_wait",
        /// The thread waited for a disk.
        BlockIo = "block_io",
        /// The thread waited for pages, or gave memory back for others.
        PageFault = "page_fault",
        /// The workers that prepare data did not keep up.
        DataloaderStarvation = "dataloader_starvation",
        /// The program waits for the GPU after nearly every launch.
        ImplicitSync = "implicit_sync",
        /// Device memory is taken and given back all the time.
        AllocatorChurn = "allocator_churn",
        /// Device memory grows without end.
        MemoryLeak = "memory_leak",
        /// CUDA graphs are captured and built again and again.
        GraphRecapture = "graph_recapture",
        /// Another rank comes late to collectives.
        NcclLateRank = "nccl_late_rank",
        /// The GPU runs below its clock.
        ClockThrottling = "clock_throttling",
        /// The kernel killed a process for memory.
        OomKill = "oom_kill",
        /// The cgroup's CPU limit stopped the thread.
        NoisyCgroup = "noisy_cgroup",
        /// Kernels are launched for the first time and loaded for that.
        ColdStart = "cold_start",
        /// The copies are large.
        LargeCopy = "large_copy",
        /// None of the above explains it.
        Unexplained = "unexplained",
    }
}

impl Cause {
    /// Whether it takes time from feeding a GPU as long as it lasts: a leak does not until memory runs out, and a process that
    /// was killed has no time left.
    #[must_use]
    pub const fn takes_time(self) -> bool {
        !matches!(self, Self::MemoryLeak | Self::OomKill)
    }

    /// Whether what it takes can be lost: the victim is off the CPU in a state that [is
    /// lost](gpucause_abi::state::State::is_lost_in).
    #[must_use]
    pub const fn loses_time(self) -> bool {
        matches!(
            self,
            Self::CpuPreemption
                | Self::RunqueueWait
                | Self::NoisyCgroup
                | Self::LockWait
                | Self::BlockIo
                | Self::PageFault
                | Self::DataloaderStarvation
        )
    }
}

labelled! {
    /// What the GPU was kept waiting by.
    Effect {
        /// A launch in a hundred takes far longer than the others, or fewer do and cost much time off the CPU.
        LaunchTail = "launch_tail",
        /// Fewer launches than before.
        LaunchRateDrop = "launch_rate_drop",
        /// The thread is off the CPU between launches.
        LaunchGap = "launch_gap",
        /// Copies take far longer than others, or most of the time.
        CopyTail = "copy_tail",
        /// Taking device memory takes its time.
        AllocTail = "alloc_tail",
        /// Nearly every launch is waited for.
        SyncStorm = "sync_storm",
        /// A call does not return.
        Hang = "hang",
        /// Device memory in use only grows.
        MemoryGrowth = "memory_growth",
        /// A process was ended from outside.
        ProcessKilled = "process_killed",
    }
}

labelled! {
    /// How much of its time the cause took from the GPU-feeding thread; see [`Severities`](crate::settings::Severities).
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
    /// The thread; that of the process's leader when the effect is the whole process's.
    pub tid: u32,
    /// Name of the process.
    pub comm: String,
    /// When the process started, in seconds on the boot-time clock: with the PID it names one process and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<f64>,
    /// Where it runs.
    #[serde(flatten)]
    pub place: Place,
}

/// Who is to blame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// Its process.
    pub pid: u32,
    /// Its name: of a thread of the victim's own process, the thread's.
    pub comm: String,
    /// Where it runs.
    #[serde(flatten)]
    pub place: Place,
}

/// One arrow of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Who or what acts.
    pub from: String,
    /// On whom or what.
    pub to: String,
    /// By what.
    pub mechanism: String,
    /// For how long, in seconds, in the last window that showed it.
    pub seconds: f64,
}

/// Share of an effect from which on it is said that no cause explains it.
const WORTH_SAYING: f64 = 0.05;

/// One finding, from when it was first to when it was last seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Names the chain, on metrics, in answers and in alerts.
    pub id: String,
    /// The cause.
    pub cause: Cause,
    /// The effect.
    pub effect: Effect,
    /// The worst that it was.
    pub severity: Severity,
    /// Who suffered.
    pub victim: Victim,
    /// Who is to blame, when that is somebody.
    pub culprit: Option<Culprit>,
    /// Share of the effect that the cause explains, 0 to 1, in the last window that showed it.
    pub explained: f64,
    /// GPU-feeding time lost, in seconds, in all: the part of the [attributed time](Self::attributed_seconds) in states that
    /// [are lost](gpucause_abi::state::State::is_lost_in).
    pub lost_seconds: f64,
    /// Who took the time lost, who took most first; what they do not add up to was taken by nobody who is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<Loss>,
    /// The numbers behind it, in the last window that showed it, and the time attributed, in all.
    pub evidence: Evidence,
    /// From the culprit to the effect.
    pub path: Vec<Step>,
    /// What happened, in words.
    pub sentence: String,
    /// What to try.
    pub fix: String,
    /// When it was first seen, in seconds since the Unix epoch.
    pub first_seen: f64,
    /// When it was last seen, in seconds since the Unix epoch.
    pub last_seen: f64,
    /// Whether it was seen in the last windows. Of chains of old nodes it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<bool>,
}

impl Chain {
    /// The name of the time attributed among the evidence.
    pub const ATTRIBUTED: &str = "attributed_seconds";

    /// The victim's time that the cause took, in seconds, in all, lost or not: a program that waits for the GPU after each
    /// launch is on a CPU or in that wait, and neither is lost. Chains of old nodes have no other number than the time lost.
    #[must_use]
    pub fn attributed_seconds(&self) -> f64 {
        self.evidence.get(Self::ATTRIBUTED).unwrap_or(self.lost_seconds)
    }

    /// The name of the share of the effect that no cause explains, among the evidence.
    pub const UNEXPLAINED: &str = "unexplained_share";

    /// What no cause explains of the effect, in words; empty where that is too little to act on.
    #[must_use]
    pub fn unexplained(&self) -> String {
        match self.evidence.get(Self::UNEXPLAINED) {
            Some(share) if share >= WORTH_SAYING && self.cause != Cause::Unexplained => {
                format!(" No cause explains {} of it.", number(share, "percent"))
            }
            _ => String::new(),
        }
    }

    /// The name of the length of the last window that showed it, among the evidence.
    pub const WINDOW: &str = "window_seconds";

    /// Of which time the numbers are, and whether the chain is ongoing or has ended, in words.
    #[must_use]
    pub fn when(&self) -> String {
        let (first, last) = (utc(self.first_seen, true), utc(self.last_seen, true));
        let mut when = String::with_capacity(128);
        let window = self.evidence.get(Self::WINDOW).map(|seconds| number(seconds, "seconds"));
        let window = match &window {
            Some(window) => ["Measured over ", window, " until "],
            None => ["Last seen at ", "", ""],
        };
        let since = match self.ongoing {
            Some(true) => "ongoing since ",
            Some(false) => "ended then, after it began at ",
            None => "first seen at ",
        };
        when.extend(window);
        when.extend([&*last, " UTC; ", since, &*first, " UTC."]);
        when
    }

    /// The chain of an old recording, whose lost seconds were all that the cause took, as it is recorded now.
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
