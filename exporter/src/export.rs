//! `gpucause export`: a trace file for Perfetto, HdrHistogram or OpenTelemetry.

mod destination;
mod progress;

use std::io;

use anyhow::Context as _;
use gpucause_investigations::export::{Format, Written, export};
use gpucause_investigations::recording;

use crate::cli::ExportArgs;
use destination::Destination;
use progress::Progress;

/// Writes what was asked for, and says on standard error what that was and what reads it.
///
/// # Errors
/// When the file cannot be read, or the output cannot be or should not be written.
pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let recording = recording::open(&args.db)?;
    let format = Format::from(args.format);
    let mut destination = Destination::open(&args.output, &args.db, args.force)?;
    let mut progress = Progress::new(recording.event_count()?);
    let written =
        export(&*recording, format, &args.selection(), destination.sink(), &mut |events| {
            progress.show(events);
        });
    progress.clear();
    if written.is_err() {
        destination.abandon();
    }
    let written = written.with_context(|| format!("exporting {}", args.db.display()))?;
    if !destination.is_standard_output() {
        say(&told(written, format, &args.output.display().to_string()));
    }
    Ok(())
}

/// What was written, and what to do with it.
fn told(Written { events, chains }: Written, format: Format, output: &str) -> String {
    let next = match format {
        Format::Perfetto => "open it at https://ui.perfetto.dev",
        Format::Hlog => "HdrHistogram's tools read it",
        Format::OtlpJson => "the OpenTelemetry collector's otlpjsonfile receiver reads it",
        Format::OtlpProtobuf => {
            "POST it to /v1/traces of an OTLP receiver, as application/x-protobuf"
        }
    };
    let chains = match (format, chains) {
        (Format::Hlog, _) => String::new(),
        (_, 1) => " and 1 causal chain".to_owned(),
        (_, chains) => format!(" and {chains} causal chains"),
    };
    let events = if events == 1 { "1 event".to_owned() } else { format!("{events} events") };
    format!("wrote {events}{chains} to {output}; {next}\n")
}

/// With standard error gone there is nobody to tell.
fn say(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_told_with_what_reads_it() {
        let written = Written { events: 12, chains: 1 };
        assert_eq!(
            told(written, Format::Perfetto, "trace.pftrace"),
            "wrote 12 events and 1 causal chain to trace.pftrace; open it at https://ui.perfetto.dev\n"
        );
        let written = Written { events: 1, chains: 0 };
        assert_eq!(
            told(written, Format::Hlog, "a.hlog"),
            "wrote 1 event to a.hlog; HdrHistogram's tools read it\n"
        );
    }
}
