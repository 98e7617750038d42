//! Messages of a command for the person who runs it: `warning: what`, without time and level.

use std::fmt;

use gpucause_investigations::untrusted_text::is_control;
use gpucause_observe::chains::LOG_TARGET;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The field that holds an error, which is shown behind the message.
const ERROR: &str = "error";

/// The format `warning: message: error (key=value)`.
pub(super) struct Message {
    /// True if causal chains that appear are messages, too.
    pub(super) chains: bool,
}

impl<S, N> FormatEvent<S, N> for Message
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !self.chains && event.metadata().target() == LOG_TARGET {
            return Ok(());
        }
        let mut parts = Parts::default();
        event.record(&mut parts);
        let (colour, label) = match *event.metadata().level() {
            Level::ERROR => ("\x1b[1;31m", "error:"),
            Level::WARN => ("\x1b[1;33m", "warning:"),
            _ => ("\x1b[1m", "note:"),
        };
        writeln!(writer, "{colour}{label}\x1b[0m {}", parts.text())
    }
}

#[derive(Default)]
struct Parts {
    message: String,
    error: Option<String>,
    others: Vec<String>,
}

impl Parts {
    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            ERROR => self.error = Some(value),
            name => self.others.push(format!("{name}={value}")),
        }
    }

    /// On one line, without what controls a terminal.
    fn text(&self) -> String {
        let mut text = self.message.clone();
        if let Some(error) = &self.error {
            text.push_str(": ");
            text.push_str(error);
        }
        if !self.others.is_empty() {
            text.push_str(&format!(" ({})", self.others.join(", ")));
        }
        text.chars().map(|c| if is_control(c) { '?' } else { c }).collect()
    }
}

impl Visit for Parts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_shows_messages_but_no_chains() {
        let text = |chains| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let out = std::sync::Mutex::new(file.reopen().unwrap());
            let builder = tracing_subscriber::fmt().with_writer(out);
            tracing::subscriber::with_default(
                builder.event_format(Message { chains }).finish(),
                || {
                    tracing::warn!(target: LOG_TARGET, "a chain");
                    tracing::warn!("no frames");
                },
            );
            std::fs::read_to_string(file.path()).unwrap()
        };
        assert!(!text(false).contains("a chain") && text(false).contains("no frames"));
        assert!(text(true).contains("a chain"));
    }

    #[test]
    fn a_message_is_one_line_with_its_error_and_values() {
        let parts = Parts {
            message: "cannot read\nan interval".into(),
            error: Some("busy".into()),
            others: vec!["pid=3".into(), "path=/a\u{1b}[2J".into()],
        };
        assert_eq!(parts.text(), "cannot read?an interval: busy (pid=3, path=/a?[2J)");
        let plain = Parts { message: "clocks differ".into(), ..Parts::default() };
        assert_eq!(plain.text(), "clocks differ");
    }
}
