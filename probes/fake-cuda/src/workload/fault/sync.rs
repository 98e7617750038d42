//! A wait for the GPU after each launch, so that it idles while the host prepares the next one.

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::{Fault, added_ns};
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// Host code before each launch.
const HOST_NS: u64 = 40_000;
const LAUNCHES: usize = 16;
/// A scalar, as `.item()` reads it.
const RESULT_BYTES: usize = 4;

/// The fault.
pub(super) struct EachLaunch {
    /// How long each wait takes.
    wait_ns: u64,
    copies: bool,
}

impl EachLaunch {
    fn new(strength: f64, copies: bool) -> Self {
        // Lost time is the time outside the waits.
        Self { wait_ns: added_ns(HOST_NS + Pace::STEADY.launch_ns, 1.0 - strength), copies }
    }

    /// By a copy to the host.
    pub(super) fn copying(strength: f64) -> Self {
        Self::new(strength, true)
    }

    /// By synchronising the stream.
    pub(super) fn synchronizing(strength: f64) -> Self {
        Self::new(strength, false)
    }
}

impl Fault for EachLaunch {
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.libraries.set("cudaMemcpy", &format!("spin={}ns", self.wait_ns))
    }

    fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        if !self.copies {
            gpu.libraries.set("cudaStreamSynchronize", &format!("spin={}ns", self.wait_ns))?;
        }
        Ok(())
    }

    /// Lost is the CPU time outside the waits.
    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        let Some(loss) = loss else { return gpu.step(&self.pace()) };
        let mut start = clock::thread_cpu_ns();
        for _ in 0..LAUNCHES {
            clock::spin(HOST_NS);
            gpu.launch()?;
            loss.add(clock::thread_cpu_ns() - start);
            if self.copies {
                gpu.copy_to_host(RESULT_BYTES)?;
            } else {
                gpu.synchronize()?;
            }
            start = clock::thread_cpu_ns();
        }
        Ok(())
    }
}
