//! Kernel statistics of the calling thread, and their difference over a stretch of work.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use gpucause_fake_cuda::clock;
use perf_event::events::Software;
use perf_event::{Builder, Counter};
use serde_json::{Value, json};

use crate::process::thread_id;

/// A reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadStats {
    at_ns: u64,
    cpu_ns: u64,
    run_ns: u64,
    wait_ns: u64,
}

impl ThreadStats {
    pub(crate) fn now() -> Result<Self> {
        let path = format!("/proc/self/task/{}/schedstat", thread_id());
        let schedstat = fs::read_to_string(&path).with_context(|| path.clone())?;
        let mut numbers = schedstat.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Ok(Self {
            run_ns: next(),
            wait_ns: next(),
            at_ns: clock::monotonic_ns(),
            cpu_ns: clock::thread_cpu_ns(),
        })
    }

    /// Returns the difference from an earlier reading to this one. `start_ns` and `end_ns` are on `CLOCK_MONOTONIC`.
    pub(crate) fn since(&self, start: &Self) -> Value {
        let wall = self.at_ns - start.at_ns;
        let cpu = self.cpu_ns - start.cpu_ns;
        json!({
            "start_ns": start.at_ns,
            "end_ns": self.at_ns,
            "wall_ns": wall,
            "cpu_ns": cpu,
            "offcpu_ns": wall.saturating_sub(cpu),
            "schedstat": {
                "run_ns": self.run_ns - start.run_ns,
                "wait_ns": self.wait_ns - start.wait_ns,
            },
        })
    }
}

/// Clocks of a thread, read without a wait for the CPU between them: what is taken from another would else not be of the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) wall_ns: u64,
    /// Without what a hypervisor takes.
    cpu_ns: u64,
    /// With it, and without a part of the switch to the thread.
    on_cpu_ns: u64,
    pub(crate) queued_ns: u64,
}

impl Reading {
    /// For how long the thread had a CPU from an earlier reading to this one, also where a hypervisor had that CPU.
    pub(crate) fn on_cpu_since(&self, start: &Self) -> u64 {
        (self.cpu_ns - start.cpu_ns).max(self.on_cpu_ns - start.on_cpu_ns)
    }

    /// For how long it had none.
    pub(crate) fn off_cpu_since(&self, start: &Self) -> u64 {
        (self.wall_ns - start.wall_ns).saturating_sub(self.on_cpu_since(start))
    }

    /// For how long it was blocked: neither on a CPU nor waiting for one.
    pub(crate) fn blocked_since(&self, start: &Self) -> u64 {
        self.off_cpu_since(start).saturating_sub(self.queued_ns - start.queued_ns)
    }
}

/// The kernel's own sums of what a thread has waited for a CPU, and was on one.
#[derive(Debug)]
pub(crate) struct RunQueue {
    waited: File,
    /// `None` where perf events are not allowed.
    on_cpu: Option<Mutex<Counter>>,
}

impl RunQueue {
    pub(crate) fn of_this_thread() -> Result<Self> {
        let path = format!("/proc/self/task/{}/schedstat", thread_id());
        let waited = File::open(&path).with_context(|| path.clone())?;
        let counter = Builder::new(Software::TASK_CLOCK).include_kernel().enabled(true).build();
        Ok(Self { waited, on_cpu: counter.ok().map(Mutex::new) })
    }

    fn on_cpu_ns(&self) -> Result<u64> {
        let Some(counter) = &self.on_cpu else { return Ok(0) };
        Ok(counter.lock().unwrap_or_else(PoisonError::into_inner).read()?)
    }

    /// The clocks of the calling thread, which must be the one that this was made by.
    pub(crate) fn now(&self) -> Result<Reading> {
        loop {
            let queued_ns = self.waited_ns()?;
            let (wall_ns, cpu_ns) = (clock::monotonic_ns(), clock::thread_cpu_ns());
            let on_cpu_ns = self.on_cpu_ns()?;
            if self.waited_ns()? == queued_ns {
                return Ok(Reading { wall_ns, cpu_ns, on_cpu_ns, queued_ns });
            }
        }
    }

    /// In nanoseconds, since the thread began.
    pub(crate) fn waited_ns(&self) -> Result<u64> {
        let mut text = [0; 96];
        let length = self.waited.read_at(&mut text, 0).context("schedstat")?;
        let text = std::str::from_utf8(&text[..length]).context("schedstat")?;
        let waited = text.split_whitespace().nth(1).context("schedstat is short")?;
        waited.parse().context("schedstat")
    }
}
