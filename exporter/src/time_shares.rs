//! The parts that the time of dispatcher threads is divided into, from healthy to lost.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// The kind of a thread's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// On a CPU in its own code.
    Host,
    /// On a CPU in launches.
    Launch,
    /// On a CPU in other calls.
    Calls,
    /// In a call that waits for the GPU: the GPU works.
    Gpu,
    /// Runnable, but without a CPU.
    Preempted,
    /// Blocked on a lock that another thread held, or one of the kernel.
    Lock,
    Io,
    PageFault,
    /// Blocked on anything else, such as a worker's pipe, another thread's work or a client's next request: either starved or
    /// idle; or suspended.
    Blocked,
}

impl Part {
    pub(crate) const COUNT: usize = 9;
    /// In the order in which a bar shows them.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Host,
        Self::Launch,
        Self::Calls,
        Self::Gpu,
        Self::Blocked,
        Self::Preempted,
        Self::Lock,
        Self::Io,
        Self::PageFault,
    ];

    /// Its letter, a capital where time is lost.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Host => 'h',
            Self::Launch => 'l',
            Self::Calls => 'c',
            Self::Gpu => '.',
            Self::Preempted => 'P',
            Self::Lock => 'L',
            Self::Io => 'I',
            Self::PageFault => 'M',
            Self::Blocked => 'b',
        }
    }

    /// Its name in JSON, and its class in the style sheet of the live page.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Launch => "launch",
            Self::Calls => "calls",
            Self::Gpu => "gpu",
            Self::Preempted => "no_cpu",
            Self::Lock => "lock",
            Self::Io => "io",
            Self::PageFault => "page_fault",
            Self::Blocked => "blocked",
        }
    }

    /// For the legend.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Host => "host code",
            Self::Launch => "launching",
            Self::Calls => "other calls",
            Self::Gpu => "waiting for the GPU",
            Self::Preempted => "no CPU",
            Self::Lock => "lock",
            Self::Io => "io",
            Self::PageFault => "page fault",
            Self::Blocked => "blocked otherwise",
        }
    }

    /// Returns true if all time in this part [is lost](State::is_lost_in).
    pub(crate) const fn is_lost(self) -> bool {
        matches!(self, Self::Preempted | Self::Lock | Self::Io | Self::PageFault)
    }

    pub(crate) const fn of(phase: Phase, state: State) -> Self {
        match (phase, state) {
            (_, state) if state.is_suspended() => Self::Blocked,
            (Phase::Sync, _) if !state.is_lost_in(phase) => Self::Gpu,
            (Phase::Host, State::Running) => Self::Host,
            (Phase::Launch, State::Running) => Self::Launch,
            (_, State::Running) => Self::Calls,
            (_, State::Off(reason)) => Self::blocked(reason),
        }
    }

    /// Where time goes that is blocked for this reason outside of waiting for the GPU.
    pub(crate) const fn blocked(reason: Reason) -> Self {
        match reason {
            Reason::Preempted | Reason::Runqueue => Self::Preempted,
            Reason::Lock | Reason::KernelLock => Self::Lock,
            Reason::Io => Self::Io,
            Reason::PageFault => Self::PageFault,
            Reason::Futex
            | Reason::GpuDriver
            | Reason::Poll
            | Reason::Net
            | Reason::Sleep
            | Reason::Other
            | Reason::Frozen
            | Reason::Stopped
            | Reason::CoreDump
            | Reason::Yield
            | Reason::Child => Self::Blocked,
        }
    }
}

/// The time of all dispatcher threads of a process by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts([u64; Part::COUNT]);

impl From<&TimeAccount> for Parts {
    fn from(time: &TimeAccount) -> Self {
        let mut parts = Self::default();
        for &phase in Phase::ALL {
            for state in State::all() {
                parts.0[Part::of(phase, state) as usize] += time.at(phase, state).0;
            }
        }
        parts
    }
}

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Part::COUNT))?;
        for (part, seconds) in self.seconds() {
            map.serialize_entry(part.key(), &seconds)?;
        }
        map.end()
    }
}

impl Parts {
    /// Each part with its seconds, in the order of a bar.
    pub(crate) fn seconds(&self) -> impl Iterator<Item = (Part, f64)> {
        Part::ALL.into_iter().map(|part| (part, self.of(part).as_secs_f64()))
    }

    pub(crate) const fn of(&self, part: Part) -> Nanos {
        Nanos(self.0[part as usize])
    }

    /// Time of all threads.
    pub(crate) fn total(&self) -> Nanos {
        Nanos(self.0.iter().sum())
    }

    /// The time that was lost.
    pub(crate) fn lost_time(&self) -> Nanos {
        let lost = Part::ALL.into_iter().filter(|part| part.is_lost());
        Nanos(lost.map(|part| self.of(part).0).sum())
    }

    /// Adds another process's time.
    pub(crate) fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own += other;
        }
    }

    /// The part of the time that was lost, of 1; `None` when there was no time.
    pub(crate) fn lost(&self) -> Option<f64> {
        let total = self.total().0;
        (total > 0).then(|| self.lost_time().0 as f64 / total as f64)
    }

    /// So many cells, divided as the time is (largest remainder method). Empty when there was no time.
    pub(crate) fn cells(&self, cells: usize) -> Vec<Part> {
        let total = u128::from(self.total().0);
        if total == 0 {
            return Vec::new();
        }
        let scaled = Part::ALL.map(|part| u128::from(self.of(part).0) * cells as u128);
        let mut counts = scaled.map(|scaled| usize::try_from(scaled / total).unwrap_or(cells));
        let mut by_rest: Vec<usize> = (0..Part::COUNT).collect();
        by_rest.sort_by_key(|&index| std::cmp::Reverse(scaled[index] % total));
        let left = cells.saturating_sub(counts.iter().sum());
        for &index in by_rest.iter().take(left) {
            counts[index] += 1;
        }
        let parts = Part::ALL.into_iter().zip(counts);
        parts.flat_map(|(part, count)| std::iter::repeat_n(part, count)).collect()
    }
}
