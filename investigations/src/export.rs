//! Exports recordings in other formats.
//!
//! Events are streamed, so that a file of millions takes no more memory than a small one.

mod detail;
mod nesting;
mod parquet;
mod perfetto;
mod selection;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use std::io;

use gpucause_trace::recording::{
    EventId, NodeChain, Process, ProcessIndex, Recording, RecordingError,
};
use selection::Selected;
use stream::Aligned;

pub use detail::{Detail, Details, of_chain as chain_attributes};
pub use parquet::ParquetFolder;
pub use selection::{Selection, TimestampError, end_ns, of_pid, timestamp};

/// Number of items written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Selected events.
    pub events: u64,
    /// Selected causal chains.
    pub chains: u64,
}

/// Why the export is missing or incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
    /// There is no process of this PID.
    #[error("the recording has no process with PID {pid} - name one that it has: {}", listed(.known))]
    NoSuchProcess {
        /// The PID.
        pid: u32,
        /// Names and PIDs of those in the recording.
        known: Vec<String>,
    },
    /// The file is inconsistent.
    #[error("event {} of node {} is of an unknown process or node; the recording is damaged", .0.sequence, .0.node.0)]
    UnknownProcess(EventId),
}

impl ExportError {
    /// Returns true if the recording is damaged: the output then has the events before the damage.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::UnknownProcess(_) | Self::Recording(RecordingError::Damaged(..)))
    }
}

/// PIDs listed in a message.
const KNOWN_PIDS: usize = 20;

fn listed(processes: &[String]) -> String {
    let first = || processes[..processes.len().min(KNOWN_PIDS)].join(", ");
    match processes.len() {
        0 => "none".into(),
        1..=KNOWN_PIDS => first(),
        _ => first() + " and others",
    }
}

/// Receives the selected events in the order of their starts on each node.
trait Output {
    /// The next event.
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()>;

    /// There are no more events.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes the selected part of a recording to `sink`, as a protobuf trace that ui.perfetto.dev opens. `progress` is called with the
/// number of events read.
///
/// # Errors
/// When the recording cannot be read or the output cannot be written. Events before damage have been written, as a complete file.
pub fn perfetto(
    recording: &dyn Recording,
    selection: &Selection,
    sink: &mut dyn io::Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Written, ExportError> {
    let selected = Selected::resolve(selection, recording)?;
    let chains = selected.chains(recording)?;
    let mut output = perfetto::Perfetto::new(recording, &selected, &chains, sink)?;
    let read = stream::each(recording, &selected, &mut output, progress);
    if !matches!(read, Err(ExportError::Write(_))) {
        output.finish()?;
    }
    drop(output);
    sink.flush()?;
    Ok(Written { events: read?, chains: chains.len() as u64 })
}

/// The process of a chain's victim, where the recording has it.
fn victim(found: &NodeChain, recording: &dyn Recording) -> Option<ProcessIndex> {
    let NodeChain { node, chain } = found;
    let is_it = |process: &Process| process.node == *node && process.pid == chain.victim.pid;
    let lives = || (0..).map(ProcessIndex).zip(recording.processes()).filter(|(_, p)| is_it(p));
    let of_name = lives().find(|(_, process)| process.comm == chain.victim.comm);
    of_name.or_else(|| lives().next()).map(|(index, _)| index)
}
