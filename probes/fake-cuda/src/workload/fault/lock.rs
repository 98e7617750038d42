//! A mutex that another thread holds while it computes.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::{Culprit, Fault};
use crate::gpu::Gpu;
use crate::loss::Loss;

const HOLDER: &str = "stats-flusher";
/// How long the holder leaves the mutex alone.
const FREE_NS: u64 = 1_500_000;

/// The C library's mutex.
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is for any thread.
unsafe impl Sync for Mutex {}

static MUTEX: Mutex = Mutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
static HOLDING: AtomicBool = AtomicBool::new(false);
/// Off-CPU time of the calls that took the mutex.
static WAITED_NS: AtomicU64 = AtomicU64::new(0);

fn lock() {
    // SAFETY: the mutex is initialised and never destroyed.
    unsafe { libc::pthread_mutex_lock(MUTEX.0.get()) };
}

fn unlock() {
    // SAFETY: the calling thread has locked it.
    unsafe { libc::pthread_mutex_unlock(MUTEX.0.get()) };
}

/// Takes the mutex for a moment, and counts the time off the CPU until it was had.
fn pass() {
    let (start, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
    lock();
    let cpu = clock::thread_cpu_ns() - cpu;
    let waited = (clock::monotonic_ns() - start).saturating_sub(cpu);
    unlock();
    WAITED_NS.fetch_add(waited, Ordering::Relaxed);
}

extern "C-unwind" fn pass_in_call(_: *mut c_void) {
    pass();
}

/// The fault.
pub(super) struct Held {
    held_ns: u64,
    inside: bool,
}

impl Held {
    /// The loop gets at most a step into each pause of the holder.
    pub(super) fn new(strength: f64, inside: bool) -> Self {
        Self { held_ns: super::added_ns(4_500_000, strength), inside }
    }
}

impl Fault for Held {
    fn culprit(&self) -> Option<Culprit> {
        Some(Culprit { comm: HOLDER.into(), pids: vec![std::process::id()] })
    }

    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        let held = self.held_ns;
        thread::Builder::new().name(HOLDER.into()).spawn(move || {
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

    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        if !self.inside {
            pass();
        }
        gpu.step(&self.pace())?;
        let waited = WAITED_NS.swap(0, Ordering::Relaxed);
        if let Some(loss) = loss {
            loss.add(waited);
        }
        Ok(())
    }
}
