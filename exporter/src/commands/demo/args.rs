//! Flags of `gpucause demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpucause_input::duration;

use super::scenario::Scenario;
use crate::flags::WebArgs;
use crate::logging;

/// Flags of `gpucause demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// The fault of the stand-in workload; each chain is printed as it forms [default: incident, where no CUDA process runs]
    #[arg(value_enum)]
    pub scenario: Option<Scenario>,
    /// List the scenarios and end
    #[arg(long)]
    pub list: bool,
    /// Flags of the HTTP server.
    #[command(flatten)]
    pub web: WebArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: logging::LogArgs,
    /// Start the stand-in workload even if CUDA processes run here
    #[arg(long)]
    pub stand_in: bool,
    /// Folder of the stand-in libraries and gpucause-workload [default: that of this program]
    #[arg(long, value_name = "DIR")]
    pub stand_in_dir: Option<PathBuf>,
    /// End after this time, such as 30s, rather than on Ctrl-C or when the scenario is over
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_length)]
    pub duration: Option<Duration>,
}
