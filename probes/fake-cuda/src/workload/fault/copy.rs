//! Copies that take long because they are large.

use anyhow::Result;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

const BYTES: u32 = 8 << 20;

/// The fault.
pub(super) struct LargeCopies(pub(super) u64);

impl Fault for LargeCopies {
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        #[expect(clippy::cast_precision_loss, reason = "some milliseconds")]
        let speed = f64::from(BYTES) / self.0 as f64;
        gpu.libraries.set("cudaMemcpy", &format!("spin=5us,gbps={speed}"))
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.wall(|| gpu.copy_to_device(BYTES as usize))
    }
}
