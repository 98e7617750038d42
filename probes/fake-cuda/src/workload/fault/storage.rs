//! Files that the feeding thread itself reads.

use anyhow::Result;
use gpucause_fake_cuda::block;
use gpucause_fake_cuda::script::Way;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

/// The fault.
pub(super) struct Storage {
    way: Way,
    each_ns: u64,
}

impl Storage {
    /// Reads past the page cache.
    pub(super) fn reads(each_ns: u64) -> Self {
        Self { way: Way::Io, each_ns }
    }

    /// Page faults on a file that is not in memory.
    pub(super) fn faults(each_ns: u64) -> Self {
        Self { way: Way::PageFault, each_ns }
    }
}

impl Fault for Storage {
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        Ok(block::prepare(self.way)?)
    }

    fn disturb(&mut self, _gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.blocked(|| Ok(block::block(self.way, self.each_ns)?))
    }
}
