//! Log lines as key=value pairs.

use std::fmt::{self, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The format `time=... level=... msg=... key=value`.
pub(super) struct Logfmt {
    /// True if lines have a time: a log that keeps the times of lines itself needs none.
    pub(super) timed: bool,
}

impl<S, N> FormatEvent<S, N> for Logfmt
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
        let mut pairs = Pairs::default();
        event.record(&mut pairs);
        if self.timed {
            writer.write_str("time=")?;
            SystemTime.format_time(&mut writer)?;
            writer.write_char(' ')?;
        }
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        let target = event.metadata().target();
        writeln!(
            writer,
            "level={level} target={target} msg={}{}",
            quoted(&pairs.message),
            pairs.rest
        )
    }
}

#[derive(Default)]
struct Pairs {
    message: String,
    rest: String,
}

impl Pairs {
    fn add(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            // Writing to a String cannot fail.
            let _ = write!(self.rest, " {}={}", field.name(), quoted(&value));
        }
    }
}

impl Visit for Pairs {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// The value, in quotes where it would not read back as one word on one line.
fn quoted(value: &str) -> String {
    let plain = |c: char| !(c.is_whitespace() || c.is_control() || matches!(c, '"' | '=' | '\\'));
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("{value:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_of_pairs() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Logfmt { timed: true })
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(path = %"/a b", count = 3, text = "x\ny", "it is \"so\"");
        });
        let line = String::from_utf8(sink.0.lock().clone()).unwrap();
        assert!(line.starts_with("time=20"), "{line}");
        assert!(
            line.ends_with(" msg=\"it is \\\"so\\\"\" path=\"/a b\" count=3 text=\"x\\ny\"\n"),
            "{line}"
        );
        assert!(line.contains(" level=warn target=gpucause::"), "{line}");
    }

    #[test]
    fn values_are_quoted_only_where_needed() {
        for (value, text) in [
            ("plain", "plain"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a=b", "\"a=b\""),
            ("/p:1", "/p:1"),
        ] {
            assert_eq!(quoted(value), text);
        }
    }
}
