//! A launch that does not return.

use anyhow::Result;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

/// The fault.
pub(super) struct Stuck(pub(super) &'static str);

impl Fault for Stuck {
    fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.libraries.set("cudaLaunchKernel", &format!("{}=86400s", self.0))
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.for_good();
        gpu.launch()
    }
}
