//! Kernels that are launched for the first time, and loaded for that.

use anyhow::Result;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

/// Time that loading a kernel takes.
const LOAD_NS: u64 = 50_000_000;

/// The fault: as many new kernels as take the time that the fault adds to the steps.
pub(super) struct NewKernels {
    each_ns: u64,
    due_ns: u64,
}

impl NewKernels {
    pub(super) fn new(each_ns: u64) -> Self {
        Self { each_ns, due_ns: 0 }
    }
}

impl Fault for NewKernels {
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.libraries.set("cudaLaunchKernel_ptsz", &format!("spin={LOAD_NS}ns"))
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        self.due_ns += self.each_ns;
        if self.due_ns < LOAD_NS {
            return Ok(());
        }
        self.due_ns -= LOAD_NS;
        loss.wall(|| gpu.launch_new_kernel())
    }
}
