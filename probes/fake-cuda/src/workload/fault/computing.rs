//! A data set that is computed by the thread that launches.

use anyhow::Result;
use gpucause_fake_cuda::clock;

use super::{Fault, added_ns};
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// The launches of a step. The GPU works on them while the next batch is computed, and is done long before.
const BURST: Pace = Pace { host_ns: 0, launches: 100, launch_ns: 8_000, gpu_ns: 0 };
/// With less than this share of the time the GPU would rarely be out of work.
const LEAST_SHARE: f64 = 0.9;

/// The fault.
pub(super) struct SlowDataset(u64);

impl SlowDataset {
    pub(super) fn new(strength: f64) -> Self {
        Self(added_ns(BURST.step_ns(), strength.max(LEAST_SHARE)))
    }
}

impl Fault for SlowDataset {
    fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        gpu.set_pace(&BURST)
    }

    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        let Some(loss) = loss else { return gpu.step(&Pace::STEADY) };
        loss.wall(|| {
            clock::spin(self.0);
            Ok(())
        })?;
        gpu.step(&BURST)
    }
}
