//! Files that the dispatcher thread itself reads.

use anyhow::{Context as _, Result};
use gpucause_fake_cuda::scratch::EvictedMapping;
use gpucause_fake_cuda::script::Way;
use gpucause_fake_cuda::{block, clock};

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

/// Reads past the page cache.
pub(super) struct Reads(pub(super) u64);

impl Fault for Reads {
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        Ok(block::prepare(Way::Io)?)
    }

    fn disturb(&mut self, _gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        loss.blocked(|| Ok(block::block(Way::Io, self.0)?))
    }
}

/// Page faults on a file that is being read in.
///
/// Each waits for many pages: a single page of a fast disk takes some 25 us, and a tenth or more of that passes between the
/// disk's answer and the thread's return, which the kernel partly counts as blocked. Only the touch counts as lost, not the CPU
/// time of requesting pages and evicting them.
pub(super) struct Faults {
    each_ns: u64,
    mapping: Option<EvictedMapping>,
}

impl Faults {
    pub(super) fn new(each_ns: u64) -> Self {
        Self { each_ns, mapping: None }
    }
}

impl Fault for Faults {
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        self.mapping = Some(EvictedMapping::new()?);
        Ok(())
    }

    fn disturb(&mut self, _gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        let mapping = self.mapping.as_mut().context("the file was not made")?;
        let end = clock::monotonic_ns().saturating_add(self.each_ns);
        while clock::monotonic_ns() < end {
            mapping.request_next()?;
            loss.blocked(|| {
                mapping.touch_requested();
                Ok(())
            })?;
        }
        Ok(())
    }
}
