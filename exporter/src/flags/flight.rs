//! Flags of the flight recorder.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::flights::FlightSettings;

/// Flags of the flight recorder.
#[derive(Debug, Clone, Args)]
pub struct FlightArgs {
    /// Keep the newest single events in the kernel, and write them to a trace file in this folder when a chain of high severity appears, on SIGUSR2, and when gpucause flight asks
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::exporter;

    #[test]
    fn the_flight_recorder_needs_a_folder() {
        let settings = |arguments: &[&str]| exporter(arguments).unwrap().flight.settings();
        assert_eq!(settings(&[]), None);
        let dir = "--flight-recorder.dir=/var/lib/gpucause";
        let usual = settings(&[dir]).unwrap();
        assert_eq!((usual.time, usual.max_files), (Duration::from_secs(30), 20));
        let own = settings(&[dir, "--flight-recorder.seconds=5", "--flight-recorder.max-files=2"]);
        let own = own.unwrap();
        assert_eq!((own.time, own.max_files), (Duration::from_secs(5), 2));
        for wrong in [
            &["--flight-recorder.seconds=5"][..],
            &[dir, "--flight-recorder.seconds=0"],
            &[dir, "--flight-recorder.max-files=0"],
        ] {
            assert!(exporter(wrong).is_err(), "{wrong:?}");
        }
    }
}
