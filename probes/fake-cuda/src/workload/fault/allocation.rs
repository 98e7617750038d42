//! Device memory that is allocated and freed all the time, or never freed.

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

const CHURN_BYTES: usize = 32 << 20;
const LEAK_BYTES: usize = 8 << 20;
const LEAK_EVERY_NS: u64 = 100_000_000;

/// Allocates and frees in each step.
pub(super) struct Churn(pub(super) u64);

impl Fault for Churn {
    /// Allocating maps memory; freeing waits for the GPU.
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.libraries.set("cudaMalloc", &format!("spin={}ns", self.0 / 2))?;
        gpu.libraries.set("cudaFree", &format!("ioctl={}ns", self.0 / 2))
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.wall(|| gpu.free(gpu.allocate(CHURN_BYTES)?))
    }
}

/// Allocates and never frees.
#[derive(Default)]
pub(super) struct Leak {
    due_ns: u64,
}

impl Fault for Leak {
    fn disturb(&mut self, gpu: &mut Gpu, _loss: &Loss) -> Result<()> {
        let now = clock::monotonic_ns();
        if now >= self.due_ns {
            self.due_ns = now + LEAK_EVERY_NS;
            gpu.allocate(LEAK_BYTES)?;
        }
        Ok(())
    }
}
