//! How much time the injected cause has taken so far, by the program's own clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use gpucause_fake_cuda::clock;

use crate::thread_stats::RunQueue;

/// Kind of lost time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sections of the program that the fault marks.
    Sections,
    /// Time that the kernel says the thread could have run and had no CPU.
    RunDelay,
}

#[derive(Debug)]
struct Inner {
    kind: Kind,
    queue: RunQueue,
    /// The kernel's count when the injection began; [`u64::MAX`] before.
    run_delay_before_ns: AtomicU64,
    sections_ns: AtomicU64,
    /// When a section that does not end began.
    open_since_ns: AtomicU64,
}

/// Time lost by the thread that made this; others may read it.
#[derive(Debug, Clone)]
pub(crate) struct Loss(Arc<Inner>);

impl Loss {
    /// Nothing lost so far.
    pub(crate) fn new(kind: Kind) -> Result<Self> {
        let queue = RunQueue::of_this_thread()?;
        let run_delay_before_ns = AtomicU64::new(u64::MAX);
        let [sections_ns, open_since_ns] = Default::default();
        Ok(Self(Arc::new(Inner { kind, queue, run_delay_before_ns, sections_ns, open_since_ns })))
    }

    /// The injection begins now.
    pub(crate) fn begin(&self) -> Result<()> {
        self.0.run_delay_before_ns.store(self.0.queue.waited_ns()?, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn add(&self, ns: u64) {
        self.0.sections_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// All time in a section is lost.
    pub(crate) fn wall<T>(&self, section: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = clock::monotonic_ns();
        let result = section()?;
        self.add(clock::monotonic_ns() - start);
        Ok(result)
    }

    /// Time in a section that the thread was blocked is lost: neither on a CPU nor waiting for one, which is another's doing.
    pub(crate) fn blocked<T>(&self, section: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = self.0.queue.now()?;
        let result = section()?;
        self.add(self.0.queue.now()?.blocked_since(&start));
        Ok(result)
    }

    /// From now on all time is lost.
    pub(crate) fn for_good(&self) {
        self.0.open_since_ns.store(clock::monotonic_ns(), Ordering::Relaxed);
    }

    /// Nanoseconds that the thread waited for a CPU since it began.
    pub(crate) fn waited_for_cpu_ns(&self) -> Result<u64> {
        self.0.queue.waited_ns()
    }

    /// Lost since the injection began, in nanoseconds.
    pub(crate) fn so_far_ns(&self) -> Result<u64> {
        if self.0.kind == Kind::RunDelay {
            let before = self.0.run_delay_before_ns.load(Ordering::Relaxed);
            return Ok(self.0.queue.waited_ns()?.saturating_sub(before));
        }
        let open = match self.0.open_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since => clock::monotonic_ns() - since,
        };
        Ok(self.0.sections_ns.load(Ordering::Relaxed) + open)
    }
}
