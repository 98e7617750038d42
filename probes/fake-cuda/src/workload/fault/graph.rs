//! Graphs that are built for one launch.

use anyhow::Result;

use super::Fault;
use crate::gpu::Gpu;
use crate::loss::Loss;

/// The fault.
pub(super) struct Recapture(pub(super) u64);

fn build(gpu: &Gpu) -> Result<usize> {
    let mut graph = 0usize;
    let mut executable = 0usize;
    gpu.call("cudaStreamBeginCapture", &[])?;
    gpu.call("cudaStreamEndCapture", &[(1, (&raw mut graph) as usize)])?;
    gpu.call("cudaGraphInstantiate", &[(0, (&raw mut executable) as usize), (1, graph)])?;
    Ok(std::hint::black_box(executable))
}

impl Fault for Recapture {
    fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        let part = self.0 / 10;
        gpu.libraries.set("cudaStreamBeginCapture", &format!("spin={part}ns"))?;
        gpu.libraries.set("cudaStreamEndCapture", &format!("spin={part}ns"))?;
        gpu.libraries.set("cudaGraphInstantiate", &format!("spin={}ns", 8 * part))?;
        gpu.libraries.set("cudaGraphLaunch", "spin=20us")
    }

    fn disturb(&mut self, gpu: &mut Gpu, loss: &Loss) -> Result<()> {
        let executable = loss.wall(|| build(gpu))?;
        gpu.call("cudaGraphLaunch", &[(0, executable)])
    }
}
