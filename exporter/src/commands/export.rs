//! `gpucause export`: a trace file, or the chains of several nodes, for Perfetto, or for engines that read Parquet.

mod args;
mod destination;

use std::path::Path;

use anyhow::{Context as _, ensure};
use gpucause_investigations::any_format;
use gpucause_investigations::export::{self, ExportError, ParquetFolder, Written};
use gpucause_investigations::fleet;
use gpucause_trace::recording::Recording;

use crate::interrupt;
use crate::nodes::{block_on, report};
use crate::progress::Progress;
use destination::{Destination, STANDARD_OUTPUT};

pub use args::{ExportArgs, ExportFormat};

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
    args.nodes.require()?;
    let clients = args.nodes.several()?;
    let gathered = block_on(fleet::gather(&clients, fleet::Limits::default()))??;
    let failed = report(&gathered.answer);
    if !gathered.answer.answers.is_empty() {
        write(&gathered.recording()?, None, args)?;
    }
    failed
}

fn write(recording: &dyn Recording, path: Option<&Path>, args: &ExportArgs) -> anyhow::Result<()> {
    let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
    if args.format == ExportFormat::Parquet {
        return write_folder(recording, args, events);
    }
    let mut destination = Destination::open(&args.output, path, args.force)?;
    let progress = Progress::of(events, "events");
    let selection = args.selection();
    let written = export::perfetto(recording, &selection, destination.sink(), &mut |events| {
        progress.at(events);
    });
    drop(progress);
    let is_standard_output = destination.is_standard_output();
    let is_begun = destination.is_begun();
    let written = complete(written, is_begun, args, || Ok(destination.finish()?))?;
    if !is_standard_output {
        say(&summary(written, args.format, &args.output, 1));
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
        ExportFormat::Parquet => {
            "Spark, DuckDB, ClickHouse and pandas read its folders events and chains as tables"
        }
    };
    let output = output.display();
    let output = match format {
        ExportFormat::Perfetto => output.to_string(),
        ExportFormat::Parquet => format!("{files} files below {output}"),
    };
    let chains = match chains {
        1 => "1 causal chain".to_owned(),
        chains => format!("{chains} causal chains"),
    };
    let events = if events == 1 { "1 event".to_owned() } else { format!("{events} events") };
    format!("wrote {events} and {chains} to {output}; {next}\n")
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
        let folder = summary(written, ExportFormat::Parquet, Path::new("lake"), 2);
        let expected = "wrote 1 event and 0 causal chains to 2 files below lake; ";
        assert!(folder.starts_with(expected), "{folder}");
    }
}
