//! `gpucause merge`: several trace files become one.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use gpucause_investigations::any_format;
use gpucause_trace::merge::{self, Input, MergeError, Merged, Progress};

use crate::interrupt;
use crate::progress as bar;

/// Flags of `gpucause merge`.
#[derive(Debug, Clone, Args)]
pub struct MergeArgs {
    /// File to write
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Overwrite it when it exists
    #[arg(long)]
    pub force: bool,
    /// Trace files: those of gpucause, and Ingero's
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Merges and says what came of it.
///
/// # Errors
/// When a file cannot be read, they overlap, or the result cannot be written.
pub fn run(args: &MergeArgs) -> anyhow::Result<()> {
    interrupt::remove_unfinished_files()?;
    let open = |path: &PathBuf| -> anyhow::Result<Input> {
        Ok(Input::of(path.clone(), any_format::open(path)?))
    };
    let inputs = args.files.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let Merged { path, events, files, warnings } = merged(&inputs, &args.output, args.force)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let plural = if files == 1 { "" } else { "s" };
    let summary = format!("{events} events of {files} file{plural} in {}\n", path.display());
    io::stdout().write_all(summary.as_bytes()).context("cannot write to standard output")
}

/// Merges with its progress on a terminal.
pub(super) fn merged(
    inputs: &[Input],
    output: &Path,
    overwrite: bool,
) -> Result<Merged, MergeError> {
    let bar = bar::Progress::of(0, "events");
    let mut shown = None;
    let mut show = |Progress { input, events, of }| {
        if shown.replace(input) != Some(input) {
            bar.part(part(inputs, input), of);
        }
        bar.at(events);
        if events >= of && input + 1 == inputs.len() {
            bar.say(", writing the index".into());
        }
    };
    merge::merge(inputs, output, overwrite, &mut show)
}

/// Which file is copied.
fn part(inputs: &[Input], input: usize) -> String {
    let path = inputs.get(input).map(|input| input.path.display().to_string()).unwrap_or_default();
    format!("{path} ({} of {}) ", input + 1, inputs.len())
}
