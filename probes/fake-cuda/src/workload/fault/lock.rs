//! A mutex that another thread holds while it computes.

use std::cell::{OnceCell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::{Culprit, Fault};
use crate::cli::FaultOptions;
use crate::gpu::Gpu;
use crate::loss::Loss;
use crate::process::pin;
use crate::thread_stats::RunQueue;

const HOLDER: &str = "stats-flusher";
/// How long the holder leaves the mutex alone.
const FREE_NS: u64 = 1_500_000;

/// The C library's mutex.
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is for any thread.
unsafe impl Sync for Mutex {}

static MUTEX: Mutex = Mutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
static HOLDING: AtomicBool = AtomicBool::new(false);
/// Time that the dispatcher thread was blocked for until it had the mutex.
static WAITED_NS: AtomicU64 = AtomicU64::new(0);

fn lock() {
    // SAFETY: the mutex is initialised and never destroyed.
    unsafe { libc::pthread_mutex_lock(MUTEX.0.get()) };
}

fn unlock() {
    // SAFETY: the calling thread has locked it.
    unsafe { libc::pthread_mutex_unlock(MUTEX.0.get()) };
}

thread_local! {
    static CLOCKS: OnceCell<RunQueue> = const { OnceCell::new() };
}

/// Locks the mutex briefly, and adds up the time that the thread was blocked, without its wait for a CPU.
fn pass() -> Result<()> {
    CLOCKS.with(|clocks| {
        if clocks.get().is_none() {
            let _ = clocks.set(RunQueue::of_this_thread()?);
        }
        let Some(clocks) = clocks.get() else { return Ok(()) };
        let start = clocks.now()?;
        lock();
        let end = clocks.now();
        unlock();
        WAITED_NS.fetch_add(end?.blocked_since(&start), Ordering::Relaxed);
        Ok(())
    })
}

extern "C-unwind" fn pass_in_call(_: *mut c_void) {
    // A wait that is not measured is missing in the truth, which then does not agree.
    let _ = pass();
}

/// The fault.
pub(super) struct Contended {
    held_ns: u64,
    inside: bool,
    /// The holder's: on the dispatcher thread's it would preempt it, and have released the mutex by the time the other runs.
    cpu: Option<usize>,
}

impl Contended {
    /// The loop gets at most a step into each pause of the holder.
    pub(super) fn new(options: &FaultOptions, inside: bool) -> Self {
        let held_ns = super::added_ns(4_500_000, options.strength);
        Self { held_ns, inside, cpu: options.other_cpu().ok() }
    }
}

impl Fault for Contended {
    fn culprit(&self) -> Option<Culprit> {
        Some(Culprit { comm: HOLDER.into(), pids: vec![std::process::id()] })
    }

    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        let (held, cpu) = (self.held_ns, self.cpu);
        thread::Builder::new().name(HOLDER.into()).spawn(move || {
            let _ = cpu.map(pin);
            loop {
                clock::sleep(FREE_NS);
                lock();
                if HOLDING.load(Ordering::Relaxed) {
                    clock::spin(held);
                }
                unlock();
            }
        })?;
        if self.inside {
            gpu.inside("cudaMemcpyAsync", pass_in_call)?;
        }
        Ok(())
    }

    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        HOLDING.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn before(&mut self, _gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        if !self.inside {
            pass()?;
        }
        // Waits inside calls are those of the step before.
        let waited = WAITED_NS.swap(0, Ordering::Relaxed);
        if let Some(loss) = loss {
            loss.add(waited);
        }
        Ok(())
    }
}
