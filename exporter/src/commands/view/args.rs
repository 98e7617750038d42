//! Flags of `gpucause view`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `gpucause view`.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// The trace file
    #[arg(value_name = "FILE")]
    pub db: PathBuf,
    /// Name of the node to show; required if the file has several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Port on the loopback address, or 0 for any that is free
    #[arg(long, value_name = "PORT", default_value = "0")]
    pub port: u16,
}
