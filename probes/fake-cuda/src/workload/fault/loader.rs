//! Worker processes that read and prepare batches, and hand them over through pipes.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use gpucause_fake_cuda::script::Way;
use gpucause_fake_cuda::{block, clock};

use super::{Culprit, Fault};
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;
use crate::process::{self, fork};
use crate::shared::Shared;

const NAME: &str = "pt_data_worker";
const WORKERS: usize = 2;
/// A batch, and with the size of a pipe also how many are made in advance.
const BATCH_BYTES: usize = 8192;
/// Time that a worker takes for a batch while it keeps up.
const QUICK_NS: u64 = 1_500_000;

/// One worker's end of its pipe, and the process.
struct Worker {
    pid: u32,
    batches: PipeReader,
}

/// The fault.
pub(super) struct SlowWorkers {
    shared: &'static Shared,
    workers: Vec<Worker>,
    next: usize,
    slow_ns: u64,
}

impl SlowWorkers {
    pub(super) fn new(added_ns: u64) -> Result<Self> {
        let shared = Shared::map()?;
        shared.times_ns[0].store(QUICK_NS, Ordering::Relaxed);
        // Each worker makes every second batch.
        let slow_ns = WORKERS as u64 * (Pace::STEADY.step_ns() + added_ns);
        Ok(Self { shared, workers: Vec::new(), next: 0, slow_ns })
    }

    /// Waits for the next batch as Python's multiprocessing does, by `poll` and `read`.
    fn take_batch(&mut self) -> Result<()> {
        let next = self.next;
        self.next = (next + 1) % self.workers.len();
        let Some(worker) = self.workers.get_mut(next) else { bail!("no workers") };
        let mut wanted =
            libc::pollfd { fd: worker.batches.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is passed, and it is open.
        while unsafe { libc::poll(&raw mut wanted, 1, -1) } < 1 {}
        let mut batch = [0; BATCH_BYTES];
        worker.batches.read_exact(&mut batch)?;
        Ok(())
    }
}

/// Reads a file and computes, three parts to two, and hands batches over.
fn work(shared: &Shared, mut batches: PipeWriter) -> Result<()> {
    process::end_with_parent();
    process::set_comm(NAME)?;
    block::prepare(Way::Io)?;
    let batch = [1; BATCH_BYTES];
    loop {
        let time = shared.times_ns[0].load(Ordering::Relaxed);
        let start = clock::monotonic_ns();
        block::block(Way::Io, time * 3 / 5)?;
        clock::spin(time.saturating_sub(clock::monotonic_ns() - start));
        batches.write_all(&batch)?;
    }
}

impl Fault for SlowWorkers {
    fn culprit(&self) -> Option<Culprit> {
        let pids = self.workers.iter().map(|worker| worker.pid).collect();
        Some(Culprit { comm: NAME.into(), pids })
    }

    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        for _ in 0..WORKERS {
            let (batches, end) = pipe()?;
            let shared = self.shared;
            let pid = fork(move || work(shared, end))?;
            self.workers.push(Worker { pid, batches });
        }
        Ok(())
    }

    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.shared.times_ns[0].store(self.slow_ns, Ordering::Relaxed);
        Ok(())
    }

    fn before(&mut self, _gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        match loss {
            Some(loss) => loss.blocked(|| self.take_batch()),
            None => self.take_batch(),
        }
    }
}
