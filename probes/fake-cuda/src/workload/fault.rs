//! Faults of a loop that feeds a GPU, one file a family of causes.
//!
//! Each fault is injected for real: by processes that fight for a CPU, locks that are held, files that are read. Only the GPU and
//! its libraries are played. The strength of a fault is the share of the loop's time that it is meant to take; what it
//! really took is measured.

mod allocation;
mod cold;
mod computing;
mod copy;
mod graph;
mod hang;
mod healthy;
mod limit;
mod loader;
mod lock;
mod neighbours;
mod ranks;
mod storage;
mod sync;
mod throttled;
mod together;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::cli::{Common, FaultOptions};
use crate::gpu::{Gpu, Pace};
use crate::loss::{Kind, Loss};
pub(crate) use neighbours::Neighbours;
pub(crate) use together::{Faults, Losses};

/// The scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// A log shipper takes the dispatcher thread's CPU; the p99 of launches rises.
    Incident,
    /// Busy processes share the dispatcher thread's CPU.
    CpuContention,
    /// A CPU limit of the program's control group stops it.
    CpuLimit,
    /// A thread computes while it holds a mutex that the dispatcher thread needs before its launches.
    Lock,
    /// A thread computes while it holds a mutex that the dispatcher thread needs inside a copy of each step.
    LockInCall,
    /// Data-loader worker processes that do not keep up.
    Dataloader,
    /// The dispatcher thread reads a file past the page cache.
    Io,
    /// The dispatcher thread touches pages of a mapped file that are not in memory.
    PageFault,
    /// Large blocking copies among small ones.
    MemcpyBottleneck,
    /// A result is copied to the host after each launch.
    ImplicitSync,
    /// The stream is synchronised after each launch.
    ImplicitSyncStream,
    /// Device memory is allocated and freed in each step.
    AllocChurn,
    /// Device memory is allocated and never freed.
    Leak,
    /// A graph is captured and instantiated in each step.
    GraphRecapture,
    /// One of several ranks does more host work; the others wait for it when they synchronise.
    NcclStraggler,
    /// Kernels are launched for the first time all the time.
    ColdStart,
    /// The dispatcher thread computes each batch itself, while the GPU has nothing to do.
    HostCode,
    /// The GPU takes longer for the same work, as with clock throttling.
    ThrottledGpu,
    /// A launch does not return: it waits for a futex.
    Hang,
    /// A launch does not return: it waits in an ioctl.
    HangIoctl,
    /// Nothing is wrong; other threads of the process switch all the time.
    Healthy,
    /// Nothing is wrong: a server waits for requests.
    HealthyIdle,
    /// Nothing is wrong: the GPU is the bottleneck.
    HealthySync,
    /// Nothing is wrong: another CPU is busy.
    HealthyNoise,
}

impl Name {
    /// Returns true if it leaves the steps of the loop as they are, so that others can go wrong beside it.
    fn combines(self) -> bool {
        matches!(
            self,
            Self::CpuContention
                | Self::CpuLimit
                | Self::Lock
                | Self::LockInCall
                | Self::Dataloader
                | Self::Io
                | Self::PageFault
                | Self::MemcpyBottleneck
                | Self::AllocChurn
                | Self::GraphRecapture
                | Self::ColdStart
        )
    }

    /// The cause that is to be found, by its name on metrics; empty for the healthy ones.
    pub(crate) fn cause(self) -> &'static str {
        match self {
            Self::Incident | Self::CpuContention => "cpu_preemption",
            Self::CpuLimit => "noisy_cgroup",
            Self::Lock | Self::LockInCall | Self::Hang => "lock_wait",
            Self::Dataloader => "dataloader_starvation",
            Self::Io => "block_io",
            Self::PageFault => "page_fault",
            Self::MemcpyBottleneck => "large_copy",
            Self::ImplicitSync | Self::ImplicitSyncStream => "implicit_sync",
            Self::AllocChurn => "allocator_churn",
            Self::Leak => "memory_leak",
            Self::GraphRecapture => "graph_recapture",
            Self::NcclStraggler => "nccl_late_rank",
            Self::ColdStart => "cold_start",
            Self::HostCode => "host_code",
            Self::ThrottledGpu => "clock_throttling",
            Self::HangIoctl => "unexplained",
            Self::Healthy | Self::HealthyIdle | Self::HealthySync | Self::HealthyNoise => "",
        }
    }
}

/// The culprit, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Culprit {
    pub(crate) comm: String,
    /// Any of these processes.
    pub(crate) pids: Vec<u32>,
}

impl Culprit {
    pub(crate) fn to_json(culprit: Option<&Self>) -> Value {
        culprit.map_or(Value::Null, |own| json!({ "comm": own.comm, "pids": own.pids }))
    }
}

/// Something that goes wrong.
pub(crate) trait Fault {
    /// The loop while nothing is wrong.
    fn pace(&self) -> Pace {
        Pace::STEADY
    }

    /// Returns the kind of the program's time that counts as lost.
    fn kind(&self) -> Kind {
        Kind::Sections
    }

    fn culprit(&self) -> Option<Culprit> {
        None
    }

    /// Opens what other libraries are needed.
    fn open(&mut self, _gpu: &Gpu) -> Result<()> {
        Ok(())
    }

    /// Makes what is needed, after the first call and before the thread is bound to its CPU.
    fn prepare(&mut self, _gpu: &mut Gpu) -> Result<()> {
        Ok(())
    }

    /// Begins to go wrong.
    fn inject(&mut self, _gpu: &mut Gpu) -> Result<()> {
        Ok(())
    }

    /// Goes wrong in a step, before its launches.
    fn disturb(&mut self, _gpu: &mut Gpu, _loss: &Loss) -> Result<()> {
        Ok(())
    }

    /// Runs before the launches of each step; `loss` is there once the fault is.
    fn before(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        loss.map_or(Ok(()), |loss| self.disturb(gpu, loss))
    }

    /// One step of the loop.
    fn step(&mut self, gpu: &mut Gpu, loss: Option<&Loss>) -> Result<()> {
        self.before(gpu, loss)?;
        gpu.step(&self.pace())
    }
}

/// Time that a fault must add to a step of this length to take this share of the whole.
fn added_ns(step_ns: u64, strength: f64) -> u64 {
    let time = Duration::from_nanos(step_ns).mul_f64(strength / (1.0 - strength));
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The process that keeps another CPU busy, if requested. It starts with [`Neighbours::go`].
pub(crate) fn noise(options: &FaultOptions) -> Result<Option<Neighbours>> {
    let wanted = options.beside_noise || options.name == Name::HealthyNoise;
    wanted.then(|| Neighbours::start("unrelated-busy", options.other_cpu()?, 1)).transpose()
}

fn of(name: Name, common: &Common, options: &FaultOptions) -> Result<Box<dyn Fault>> {
    let strength = options.strength;
    let steady = added_ns(Pace::STEADY.step_ns(), strength);
    // Workers that are to be too slow must be slower than all that others add.
    let all = steady * options.names().count() as u64;
    Ok(match name {
        Name::Incident => Box::new(neighbours::Contention::new("fluent-bit", options)?),
        Name::CpuContention => Box::new(neighbours::Contention::new("noisy-neighb", options)?),
        Name::CpuLimit => Box::new(limit::Limited::new(strength)),
        Name::Lock => Box::new(lock::Contended::new(options, false)),
        Name::LockInCall => Box::new(lock::Contended::new(options, true)),
        Name::Dataloader => Box::new(loader::SlowWorkers::new(all)?),
        Name::Io => Box::new(storage::Reads(steady)),
        Name::PageFault => Box::new(storage::Faults::new(steady)),
        Name::MemcpyBottleneck => Box::new(copy::LargeCopies(steady)),
        Name::ImplicitSync => Box::new(sync::EachLaunch::copying(strength)),
        Name::ImplicitSyncStream => Box::new(sync::EachLaunch::synchronizing(strength)),
        Name::AllocChurn => Box::new(allocation::Churn(steady)),
        Name::Leak => Box::new(allocation::Leak::default()),
        Name::GraphRecapture => Box::new(graph::Recapture(steady)),
        Name::NcclStraggler => Box::new(ranks::Straggler::new(common, options, steady)?),
        Name::ColdStart => Box::new(cold::NewKernels::new(steady)),
        Name::HostCode => Box::new(computing::SlowDataset::new(strength)),
        Name::ThrottledGpu => Box::new(throttled::SlowGpu(steady)),
        Name::Hang => Box::new(hang::Stuck("lock")),
        Name::HangIoctl => Box::new(hang::Stuck("ioctl")),
        Name::Healthy | Name::HealthyNoise => Box::new(healthy::Steady),
        Name::HealthyIdle => Box::new(healthy::Server::new()?),
        Name::HealthySync => Box::new(healthy::Bound),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_half_the_time_doubles_the_step() {
        assert_eq!(added_ns(1_000, 0.5), 1_000);
        assert_eq!(added_ns(3_000, 0.25), 1_000);
    }
}
