//! `gpucause export`: a trace file, or the chains of several nodes, for Perfetto, HdrHistogram, OpenTelemetry or engines that read
//! Parquet.

mod destination;

use std::path::Path;

use anyhow::{Context as _, ensure};
use gpucause_investigations::any_format;
use gpucause_investigations::export::{ExportError, Format, ParquetFolder, Written, export};
use gpucause_investigations::fleet::{self, LiveChains};
use gpucause_investigations::recording::Recording;

use crate::cli::{ExportArgs, ExportFormat, interrupt};
use crate::nodes::{block_on, report};
use crate::progress::Progress;
use destination::{Destination, STANDARD_OUTPUT};

/// Writes the export, and reports on standard error what was written and which tool reads it.
///
/// # Errors
/// When the file cannot be read, a node does not answer, or the output cannot be or should not be written. The
/// chains of the other nodes have been written then.
pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    interrupt::remove_unfinished_files()?;
    match &args.db {
        Some(path) => of_file(path, args),
        None => of_nodes(args),
    }
}

fn of_file(path: &Path, args: &ExportArgs) -> anyhow::Result<()> {
    let recording = any_format::open(path)?;
    write(&*recording, Some(path), args).with_context(|| format!("exporting {}", path.display()))
}

fn of_nodes(args: &ExportArgs) -> anyhow::Result<()> {
    ensure!(
        args.format != ExportFormat::Hlog,
        "an interval log needs single calls, which nodes do not report - record on each node, and export the files"
    );
    args.nodes.require()?;
    let clients = args.nodes.several()?;
    let answer = block_on(fleet::chains(&clients, fleet::Limits::default()))?;
    let failed = report(&answer);
    if !answer.answers.is_empty() {
        write(&LiveChains::of(&answer), None, args)?;
    }
    failed
}

fn write(recording: &dyn Recording, path: Option<&Path>, args: &ExportArgs) -> anyhow::Result<()> {
    let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
    let Some(format) = args.format.of_stream() else {
        return write_folder(recording, args, events);
    };
    let open = match format {
        Format::OtlpProtobuf => Destination::open_for_requests,
        _ => Destination::open,
    };
    let mut destination = open(&args.output, path, args.force)?;
    let progress = Progress::of(events, "events");
    let written = export(recording, format, &args.selection(), destination.sink(), &mut |events| {
        progress.at(events);
    });
    drop(progress);
    let (is_standard_output, files) = (destination.is_standard_output(), destination.files());
    let is_begun = destination.is_begun();
    let written = complete(written, is_begun, args, || Ok(destination.finish()?))?;
    if !is_standard_output {
        say(&summary(written, args.format, &args.output, files));
    }
    Ok(())
}

fn write_folder(recording: &dyn Recording, args: &ExportArgs, events: u64) -> anyhow::Result<()> {
    ensure!(
        args.output.as_os_str() != STANDARD_OUTPUT,
        "Parquet files are written below a folder - name it with -o"
    );
    let mut folder = ParquetFolder::new(args.output.clone(), args.force);
    let progress = Progress::of(events, "events");
    let written = folder.write(recording, &args.selection(), &mut |events| progress.at(events));
    drop(progress);
    let files = folder.files();
    let publish = || folder.publish().with_context(|| args.output.display().to_string());
    let written = complete(written, files > 0, args, publish)?;
    say(&summary(written, args.format, &args.output, files));
    Ok(())
}

/// Has the output take its name, where it is complete or all that there is.
fn complete(
    written: Result<Written, ExportError>,
    is_begun: bool,
    args: &ExportArgs,
    finish: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Written> {
    match written {
        Ok(written) => finish().map(|()| written),
        // The events before the damage are all that there are, and no previous file is lost.
        Err(error) if error.is_damage() && !args.force && is_begun => {
            finish()?;
            let output = args.output.display();
            Err(error).context(format!("{output} has the events before the damage"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Says what was written, and which tool reads it.
fn summary(
    Written { events, chains }: Written,
    format: ExportFormat,
    output: &Path,
    files: usize,
) -> String {
    let next = match format {
        ExportFormat::Perfetto => "open it at https://ui.perfetto.dev",
        ExportFormat::Hlog => "HdrHistogram's tools read it",
        ExportFormat::Otlp => "the OpenTelemetry collector's otlpjsonfile receiver reads it",
        ExportFormat::OtlpProtobuf => {
            "POST each file to /v1/traces of an OTLP receiver, as application/x-protobuf"
        }
        ExportFormat::Parquet => {
            "Spark, DuckDB, ClickHouse and pandas read its folders events and chains as tables"
        }
    };
    let output = output.display();
    let output = match files {
        _ if format == ExportFormat::Parquet => format!("{files} files below {output}"),
        1 => output.to_string(),
        _ => format!("{output} and {output}.2 to {output}.{files}"),
    };
    let chains = match (format, chains) {
        (ExportFormat::Hlog, _) => String::new(),
        (_, 1) => " and 1 causal chain".to_owned(),
        (_, chains) => format!(" and {chains} causal chains"),
    };
    let events = if events == 1 { "1 event".to_owned() } else { format!("{events} events") };
    format!("wrote {events}{chains} to {output}; {next}\n")
}

/// Ignores that standard error is gone.
fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_what_was_written_and_what_reads_it() {
        let written = Written { events: 12, chains: 1 };
        assert_eq!(
            summary(written, ExportFormat::Perfetto, Path::new("trace.pftrace"), 1),
            "wrote 12 events and 1 causal chain to trace.pftrace; open it at https://ui.perfetto.dev\n"
        );
        let written = Written { events: 1, chains: 0 };
        assert_eq!(
            summary(written, ExportFormat::Hlog, Path::new("a.hlog"), 1),
            "wrote 1 event to a.hlog; HdrHistogram's tools read it\n"
        );
        let several = summary(written, ExportFormat::OtlpProtobuf, Path::new("a.otlp"), 3);
        assert!(
            several.starts_with(
                "wrote 1 event and 0 causal chains to a.otlp and a.otlp.2 to a.otlp.3; "
            )
        );
        let folder = summary(written, ExportFormat::Parquet, Path::new("lake"), 2);
        assert!(folder.contains(" to 2 files below lake; "), "{folder}");
    }
}
