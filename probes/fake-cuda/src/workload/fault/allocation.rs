//! Device memory that is taken and given back all the time, or never given back.

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

const CHURN_BYTES: usize = 32 << 20;
const LEAK_BYTES: usize = 8 << 20;
const LEAK_EVERY_NS: u64 = 100_000_000;

/// Takes and gives back in each step.
pub(super) struct Churn {
    each_ns: u64,
}

impl Churn {
    pub(super) fn new(each_ns: u64) -> Self {
        Self { each_ns }
    }
}

impl Fault for Churn {
    /// Taking maps memory; giving back waits for the GPU.
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.libraries.set("cudaMalloc", &format!("spin={}ns", self.each_ns / 2))?;
        gpu.libraries.set("cudaFree", &format!("ioctl={}ns", self.each_ns / 2))
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.wall(|| gpu.free(gpu.allocate(CHURN_BYTES)?))
    }
}

/// Takes and keeps.
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
