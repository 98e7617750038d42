//! Lines for the journal of systemd, which has a time and a priority for each line of its own.

use std::io;

use nix::sys::stat::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Returns true if standard error goes to the journal.
pub(super) fn is_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr()).is_ok_and(|file| names(&stream, file.st_dev, file.st_ino))
}

/// Returns true if a value of `JOURNAL_STREAM` names this file. Where output was redirected, it names another.
fn names(stream: &str, device: u64, inode: u64) -> bool {
    let numbers = stream.split_once(':');
    numbers.is_some_and(|(d, i)| d.parse() == Ok(device) && i.parse() == Ok(inode))
}

/// Another format behind the priority, as `<3>`: the journal takes it off, and `journalctl -p err` finds the line.
pub(super) struct Prioritised<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        writer.write_str(priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Returns the prefix for the priority, in the format of syslog.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_named_by_device_and_inode() {
        assert!(names("8:1234", 8, 1234));
        for other in ["", "8", "8:", "8:1235", "9:1234", "8:1234:", "x:y"] {
            assert!(!names(other, 8, 1234), "{other}");
        }
    }
}
