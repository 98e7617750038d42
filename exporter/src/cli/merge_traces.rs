//! `gpucause merge`: several trace files become one.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use gpucause_investigations::merge::{self, Input, Merged, Progress};
use gpucause_investigations::recording;

use crate::cli::MergeArgs;

/// Merges and says what came of it.
///
/// # Errors
/// When a file cannot be read, they overlap, or the result cannot be written.
pub fn run(args: &MergeArgs) -> anyhow::Result<()> {
    let open = |path: &PathBuf| -> anyhow::Result<Input> {
        Ok(Input { path: path.clone(), recording: recording::open(path)? })
    };
    let inputs = args.files.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let live = io::stderr().is_terminal();
    let mut show = |progress: Progress| {
        if live {
            show(&inputs, progress);
        }
    };
    let merged = merge::merge(&inputs, &args.output, args.force, &mut show);
    if live {
        // Whatever was shown is over.
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let Merged { path, events, warnings } = merged?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let summary = format!("{events} events of {} files in {}\n", inputs.len(), path.display());
    io::stdout().write_all(summary.as_bytes()).context("cannot write to standard output")
}

fn show(inputs: &[Input], Progress { input, events, of }: Progress) {
    let path = inputs.get(input).map(|input| input.path.display().to_string()).unwrap_or_default();
    let percent = events.saturating_mul(100).checked_div(of).unwrap_or(100);
    let (file, files) = (input + 1, inputs.len());
    // With the terminal gone there is nobody to show it to.
    let _ = write!(io::stderr(), "\r\x1b[K{percent:3} % of {path} ({file} of {files})");
}
