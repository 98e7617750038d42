//! A GPU that has become slow, as one does whose clock is held down: the loop waits longer for the same work.

use anyhow::Result;

use super::Fault;
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// The fault.
pub(super) struct SlowGpu {
    /// How much longer each step of work takes the GPU.
    added_ns: u64,
}

impl SlowGpu {
    pub(super) fn new(added_ns: u64) -> Self {
        Self { added_ns }
    }
}

impl Fault for SlowGpu {
    fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.set_pace(&Pace { gpu_ns: Pace::STEADY.gpu_ns + self.added_ns, ..Pace::STEADY })
    }

    /// Lost is the time of a step, as far as it is the GPU's slowness.
    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        gpu.step(&self.pace())?;
        if let Some(loss) = loss {
            loss.add(self.added_ns);
        }
        Ok(())
    }
}
