//! The scenarios of the stand-in workload.

use std::fmt::Write as _;
use std::time::Duration;

use clap::ValueEnum;

/// A real fault that the stand-in workload injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A log shipper takes the dispatcher thread's CPU: the p99 of launches rises
    Incident,
    /// A busy process shares the dispatcher thread's CPU
    CpuContention,
    /// A CPU limit of the program's cgroup throttles the dispatcher thread
    CpuLimit,
    /// A thread computes while it holds a mutex that the dispatcher thread needs
    Lock,
    /// Data-loader workers do not keep up
    Dataloader,
    /// The dispatcher thread reads a file past the page cache
    Io,
    /// The dispatcher thread touches pages of a file that are not in memory
    PageFault,
    /// Large blocking copies among small ones
    MemcpyBottleneck,
    /// A result is copied to the host after each launch, as `.item()` does
    ImplicitSync,
    /// Device memory is allocated and freed in each step
    AllocChurn,
    /// Device memory is allocated and never freed
    Leak,
    /// A CUDA graph is captured and built in each step
    GraphRecapture,
    /// One of two ranks is late to the collectives
    NcclStraggler,
    /// New kernels are loaded and launched all the time
    ColdStart,
    /// The dispatcher thread computes each batch itself, while the GPU has nothing to do
    HostCode,
    /// A launch does not return
    Hang,
    /// Nothing is wrong, and no chain is found
    Healthy,
}

impl Scenario {
    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Its description.
    pub(crate) fn what(self) -> String {
        let value = self.to_possible_value();
        value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    /// Healthy time before the fault, in a demo of this length. The program must be known to have warmed up.
    pub(super) fn baseline(self, whole: Option<Duration>) -> Duration {
        const USUAL: Duration = Duration::from_secs(12);
        whole.map_or(USUAL, |whole| USUAL.min(whole / 3))
    }

    /// The length without --duration.
    pub(super) fn length(self) -> Duration {
        Duration::from_secs(match self {
            // Growth is evaluated over a minute.
            Self::Leak => 100,
            _ => 45,
        })
    }
}

/// A line for each scenario.
pub(super) fn list() -> String {
    let mut text = String::new();
    for scenario in Scenario::value_variants() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<18} {}", scenario.name(), scenario.what());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_listed_with_what_it_shows() {
        let list = list();
        assert_eq!(list.lines().count(), Scenario::value_variants().len());
        assert!(list.lines().all(|line| line.split_whitespace().count() > 2), "{list}");
        assert_eq!(Scenario::NcclStraggler.name(), "nccl-straggler");
    }

    #[test]
    fn a_short_demo_has_a_short_healthy_phase() {
        let seconds = |whole: Option<u64>| {
            Scenario::Incident.baseline(whole.map(Duration::from_secs)).as_secs()
        };
        assert_eq!([seconds(None), seconds(Some(60)), seconds(Some(9))], [12, 12, 3]);
    }
}
