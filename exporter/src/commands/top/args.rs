//! Flags of the live view.

use std::time::Duration;

use clap::Args;
use gpucause_abi::Tgid;
use gpucause_input::duration;

use crate::commands::top::ViewOptions;
use crate::flags::ProbeArgs;

/// The shortest interval of `top`: shorter ones have few calls and cost much.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Flags of `gpucause top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Length of an interval, such as 500ms or 2s
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// Print one interval as plain text and end
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Print a table per interval as plain text; the default where standard output is no terminal
    #[arg(short, long)]
    pub batch: bool,
    /// End after this many intervals
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Show this process only
    #[arg(short, long, value_name = "PID", value_parser = crate::pid_flag::parse)]
    pub pid: Option<u32>,
    /// Flags of the probes.
    #[command(flatten)]
    pub probe: ProbeArgs,
}

impl TopArgs {
    /// Options of the view.
    #[must_use]
    pub fn view_options(&self) -> ViewOptions {
        ViewOptions {
            interval: self.interval,
            count: if self.once { Some(1) } else { self.count },
            only: self.pid.map(Tgid),
            plain: self.batch || self.once,
            heading: Vec::new(),
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if interval < MIN_INTERVAL {
        return Err(format!("invalid interval {text:?}; expected {MIN_INTERVAL:?} or more"));
    }
    Ok(interval)
}
