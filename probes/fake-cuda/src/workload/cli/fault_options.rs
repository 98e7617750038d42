//! Options of scenarios in which something goes wrong.

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{fault, process};

/// Prints a line `{"injected":{..}}` when the fault begins, lines `{"truth":{..}}` with the seconds lost since then, by cause too, and
/// the last of these as its result.
#[derive(Debug, Args)]
pub(crate) struct FaultOptions {
    /// Fault to inject.
    #[arg(value_enum)]
    pub(crate) name: fault::Name,
    /// Other faults to inject at the same time.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,...")]
    pub(crate) and: Vec<fault::Name>,
    /// Share of the loop's time that is to be lost, 0.05 to 0.8.
    #[arg(long, default_value_t = 0.4, value_parser = strength)]
    pub(crate) strength: f64,
    /// How long the loop is healthy before.
    #[arg(long, default_value_t = 12.0, value_name = "SECONDS")]
    pub(crate) baseline: f64,
    /// How long the fault stays.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// Between two lines of truth.
    #[arg(long, value_parser = super::time, default_value = "1s")]
    pub(crate) every: u64,
    /// The dispatcher thread's CPU [default: the last that it may use]
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// Have the dispatcher thread run before all others, so that only the fault disturbs it.
    #[arg(long)]
    pub(crate) undisturbed: bool,
    /// Keep another CPU busy with a process that has nothing to do with it.
    #[arg(long)]
    pub(crate) beside_noise: bool,
}

impl FaultOptions {
    /// Everything that goes wrong.
    pub(crate) fn names(&self) -> impl Iterator<Item = fault::Name> {
        [self.name].into_iter().chain(self.and.iter().copied())
    }

    /// Binds the calling thread, which feeds the GPU, to a CPU.
    pub(crate) fn settle(&self, cpu: usize) -> Result<()> {
        process::pin(cpu)?;
        if self.undisturbed { process::run_first() } else { Ok(()) }
    }

    /// The dispatcher thread's CPU.
    pub(crate) fn cpu(&self) -> Result<usize> {
        let last = || process::cpus().last().copied().context("this process may use no CPU");
        self.cpu.map_or_else(last, Ok)
    }

    /// A CPU that is not the dispatcher thread's.
    pub(crate) fn other_cpu(&self) -> Result<usize> {
        let own = self.cpu()?;
        let other = process::cpus().into_iter().find(|&cpu| cpu != own);
        other.context("this scenario needs two CPUs")
    }
}

fn strength(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.05..=0.8).contains(share));
    share.ok_or_else(|| format!("`{text}`: write a share from 0.05 to 0.8"))
}
