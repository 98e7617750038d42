//! A slow GPU, as with clock throttling: the loop waits longer for the same work.

use anyhow::Result;

use super::Fault;
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// The fault.
pub(super) struct SlowGpu(pub(super) u64);

impl Fault for SlowGpu {
    fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.set_pace(&Pace { gpu_ns: Pace::STEADY.gpu_ns + self.0, ..Pace::STEADY })
    }

    /// Lost is the time of a step, as far as it is the GPU's slowness.
    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        gpu.step(&self.pace())?;
        if let Some(loss) = loss {
            loss.add(self.0);
        }
        Ok(())
    }
}
