//! The log of daemons: structured lines on standard error. Other commands print messages there.

mod journal;
mod logfmt;
mod message;

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::progress::Aside;

/// Flags of the log.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogArgs {
    /// Only log messages with this severity or above
    #[arg(long = "log.level", value_name = "LEVEL", value_enum, default_value_t = Level::Info)]
    pub level: Level,
    /// Form of the log lines
    #[arg(long = "log.format", value_name = "FORMAT", value_enum, default_value_t = Format::Logfmt)]
    pub format: Format,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Errors that stop the daemon.
    Error,
    /// Problems that the daemon copes with, but somebody should know.
    Warn,
    /// Actions of the daemon.
    Info,
    /// Details of these actions.
    Debug,
    /// Every step.
    Trace,
}

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// key=value pairs
    Logfmt,
    /// One JSON object a line
    Json,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// Prints all further warnings and errors on standard error as messages for a person, in colour on a terminal. A second call has no
/// effect.
pub fn init_messages() {
    let builder = fmt()
        .with_max_level(LevelFilter::WARN)
        .log_internal_errors(false)
        .with_writer(|| Aside(anstream::stderr()))
        .event_format(message::Message { chains: true });
    // An error means that a log is set up already, and one is enough.
    let _ = builder.try_init();
}

/// The log of a recorder: on a terminal messages for a person, without causal chains, which the report of the file has. Elsewhere, and
/// with flags of the log, as [`init`].
pub fn init_recorder(args: LogArgs) {
    let is_default = args.level == Level::Info && args.format == Format::Logfmt;
    if !is_default || !std::io::stderr().is_terminal() {
        return init(args);
    }
    let builder = fmt()
        .with_max_level(LevelFilter::WARN)
        .log_internal_errors(false)
        .with_writer(|| Aside(anstream::stderr()))
        .event_format(message::Message { chains: false });
    // An error means that a log is set up already, and one is enough.
    let _ = builder.try_init();
}

/// Sends all further log lines to standard error. A second call has no effect.
pub fn init(args: LogArgs) {
    let builder = fmt()
        .with_max_level(LevelFilter::from(args.level))
        // It would report a failed write to the same standard error, and panic when that fails too.
        .log_internal_errors(false)
        .with_writer(|| Aside(std::io::stderr()));
    let logfmt = |timed| logfmt::Logfmt { timed };
    let json = fmt::format().json().flatten_event(true);
    let level = args.level;
    match (args.format, journal::is_stderr()) {
        (Format::Logfmt, false) => start(builder.event_format(logfmt(true)).finish(), level),
        (Format::Logfmt, true) => {
            start(builder.event_format(journal::Prioritised(logfmt(false))).finish(), level);
        }
        (Format::Json, false) => {
            start(builder.fmt_fields(JsonFields::new()).event_format(json).finish(), level);
        }
        (Format::Json, true) => {
            let format = journal::Prioritised(json.without_time());
            start(builder.fmt_fields(JsonFields::new()).event_format(format).finish(), level);
        }
    }
}

fn start(log: impl Subscriber + Send + Sync + for<'a> LookupSpan<'a>, level: Level) {
    // An error means that a log is set up already, and one is enough.
    let _ = tracing::subscriber::set_global_default(log.with(quiet(level)));
}

/// Leaves out what the MCP library does, each message in its own form, where only what gpucause does is asked for.
fn quiet(level: Level) -> Targets {
    let all = LevelFilter::from(level);
    let library = if level == Level::Info { LevelFilter::WARN } else { all };
    Targets::new().with_default(all).with_target("rmcp", library)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level as Of;

    #[test]
    fn what_the_mcp_library_does_is_logged_when_every_detail_is_asked_for() {
        let logs = |level, of| quiet(level).would_enable("rmcp::service", &of);
        assert_eq!([Of::WARN, Of::INFO].map(|of| logs(Level::Info, of)), [true, false]);
        assert!(logs(Level::Debug, Of::INFO) && !logs(Level::Error, Of::WARN));
        assert!(quiet(Level::Info).would_enable("gpucause::cli", &Of::INFO));
    }
}
