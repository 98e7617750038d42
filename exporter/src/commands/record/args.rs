//! Flags of `gpucause record`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use gpucause_abi::{Nanos, Tgid};
use gpucause_input::duration;
use gpucause_probes::recorder::RecorderSettings;

use crate::flags::ProbeArgs;
use crate::logging;

/// Examples and exit status of `gpucause record`.
pub(crate) const STATUS: &str = "\
Needs root, and ends on Ctrl-C. Record 15 s or more: causes are found once a process has warmed up.

Examples:
  sudo gpucause record --db trace.db --duration 60s
      All processes of this host that use CUDA
  sudo gpucause record --db trace.db --pid 4242
      Single events of this process only, to which reports of the file are then limited
  gpucause explain --db trace.db
      The report of the file; gpucause view trace.db shows it in a browser

Exit status:
  0   The file is complete
  1   Nothing was recorded, or the file could not be completed
  64  Invalid command line";

/// Flags of `gpucause record`.
#[derive(Debug, Clone, Args)]
pub struct RecordArgs {
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub db: PathBuf,
    /// Overwrite it when it exists
    #[arg(long)]
    pub force: bool,
    /// End after this time, such as 120s, rather than on Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_length)]
    pub duration: Option<Duration>,
    /// Record single events of this process only, and until it ends; may be repeated. Accounts are of all processes, as a culprit may be any
    #[arg(long = "pid", value_name = "PID", value_parser = crate::pid_flag::parse)]
    pub pids: Vec<u32>,
    /// Name of this node in the file [default: that of the host]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Record each call that takes at least this long, with its stack, such as 50us or 2ms; 0 for all
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = duration::parse_short)]
    pub calls_from: Duration,
    /// Record each wait off the CPU that takes at least this long
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = duration::parse_short)]
    pub off_cpu_from: Duration,
    /// Record one in this many of the shorter calls, at random; 0 for none
    #[arg(long, value_name = "CALLS", default_value = "0")]
    pub sample: u32,
    /// Also record the waits of threads that make no traced calls
    #[arg(long)]
    pub helper_threads: bool,
    /// Delete the oldest events when the file would be larger, such as 512MB or 4GB
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub size_limit: Bytes,
    /// Flags of the probes.
    #[command(flatten)]
    pub probe: ProbeArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
}

impl RecordArgs {
    /// The recorder's settings.
    #[must_use]
    pub fn settings(&self) -> RecorderSettings {
        let nanos = |time: Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        RecorderSettings {
            calls_from: nanos(self.calls_from),
            sample_rest: self.sample,
            off_cpu_from: nanos(self.off_cpu_from),
            helper_threads: self.helper_threads,
            only: self.pids.iter().copied().map(Tgid).collect(),
            ..RecorderSettings::default()
        }
    }
}

/// A size in the notation of Prometheus, whose units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// The smallest size limit of a file.
const MIN_BYTES: u64 = 1 << 20;

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("KB", 10), ("MB", 20), ("GB", 30), ("TB", 40)];
        let bytes = units.iter().find_map(|(unit, shift)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(1 << shift)
        });
        match bytes {
            Some(bytes) if bytes >= MIN_BYTES => Ok(Self(bytes)),
            _ => Err(format!("invalid size {text:?}; expected 1MB or more, such as 512MB or 4GB")),
        }
    }
}
