//! Flags of the flight recorder.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::flight_recorder::FlightSettings;

/// Flags of the flight recorder.
#[derive(Debug, Clone, Args)]
pub struct FlightArgs {
    /// Keep the newest single events in the kernel, and write them to a trace file in this folder when a chain of high severity appears and on SIGUSR2
    #[arg(long = "flight-recorder.dir", value_name = "DIR")]
    pub flight_dir: Option<PathBuf>,
    /// Seconds that a file goes back; also the least time between two files about the same cause
    #[arg(long = "flight-recorder.seconds", value_name = "SECONDS", default_value = "30", requires = "flight_dir", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub flight_seconds: u32,
    /// Files to keep; the oldest are deleted
    #[arg(long = "flight-recorder.max-files", value_name = "FILES", default_value = "20", requires = "flight_dir", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub flight_max_files: u32,
}

impl FlightArgs {
    /// The flight recorder's settings, if there is to be one.
    #[must_use]
    pub fn settings(&self) -> Option<FlightSettings> {
        let dir = self.flight_dir.clone()?;
        let time = Duration::from_secs(self.flight_seconds.into());
        let max_files = usize::try_from(self.flight_max_files).unwrap_or(usize::MAX);
        Some(FlightSettings { dir, time, max_files })
    }
}
