//! Writes what was recorded in formats that other programs read.
//!
//! Events pass through one by one, so that a file of millions takes no more memory than a small one.

mod detail;
mod interval_log;
mod nesting;
mod otlp;
mod perfetto;
mod selection;
mod stream;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::io;

use crate::recording::{EventId, NodeChain, Process, ProcessIndex, Recording, RecordingError};
use selection::Selected;
use stream::Aligned;

pub use selection::{Selection, TimestampError, timestamp};

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A protobuf trace that ui.perfetto.dev opens.
    Perfetto,
    /// An interval log of HdrHistogram, version 1.3: durations of calls in nanoseconds, a histogram a second.
    Hlog,
    /// Lines of OTLP/JSON, an `ExportTraceServiceRequest` each, as the OpenTelemetry collector's `otlpjsonfile` reads them.
    OtlpJson,
    /// One `ExportTraceServiceRequest` in protobuf, as OTLP/HTTP takes it.
    OtlpProtobuf,
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Events that were chosen.
    pub events: u64,
    /// Causal chains that were chosen; an interval log has none.
    pub chains: u64,
}

/// Why nothing, or not all, was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
    /// There is no process of this PID.
    #[error("the recording has no process with PID {pid}; it has {}", Known(.known))]
    NoSuchProcess {
        /// The PID.
        pid: u32,
        /// Those that it has.
        known: Vec<u32>,
    },
    /// The file contradicts itself.
    #[error("event {} of node {} is of a process or node that the recording does not name; it is damaged", .0.sequence, .0.node.0)]
    UnknownProcess(EventId),
}

/// PIDs that a message lists at most.
const KNOWN_PIDS: usize = 20;

struct Known<'a>(&'a [u32]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else { return f.write_str("none") };
        write!(f, "{first}")?;
        for pid in rest.iter().take(KNOWN_PIDS - 1) {
            write!(f, ", {pid}")?;
        }
        if self.0.len() > KNOWN_PIDS { f.write_str(" and others") } else { Ok(()) }
    }
}

/// Takes what was chosen, in the order of starts on each node.
trait Output {
    /// The next event.
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()>;

    /// There are no more.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes what `selection` chooses of `recording` to `sink`. `progress` is told how many events were looked at, now and then.
///
/// # Errors
/// When the recording cannot be read or the output cannot be written. What was read before damage has been written, as a
/// whole file of its format.
pub fn export(
    recording: &dyn Recording,
    format: Format,
    selection: &Selection,
    sink: &mut dyn io::Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Written, ExportError> {
    let selected = Selected::resolve(selection, recording)?;
    let chains = match format {
        Format::Hlog => Vec::new(),
        _ => selected.chains(recording)?,
    };
    let mut output = output(recording, format, &selected, &chains, sink)?;
    let read = stream::each(recording, &selected, &mut *output, progress);
    if !matches!(read, Err(ExportError::Write(_))) {
        output.finish()?;
    }
    drop(output);
    sink.flush()?;
    Ok(Written { events: read?, chains: chains.len() as u64 })
}

fn output<'a>(
    recording: &'a dyn Recording,
    format: Format,
    selected: &Selected,
    chains: &'a [NodeChain],
    sink: &'a mut dyn io::Write,
) -> Result<Box<dyn Output + 'a>, ExportError> {
    Ok(match format {
        Format::Perfetto => Box::new(perfetto::Perfetto::new(recording, selected, chains, sink)?),
        Format::Hlog => Box::new(interval_log::IntervalLog::new(recording, selected, sink)?),
        Format::OtlpJson => {
            Box::new(otlp::Otlp::new(recording, chains, otlp::Encoding::JsonLines, sink))
        }
        Format::OtlpProtobuf => {
            Box::new(otlp::Otlp::new(recording, chains, otlp::Encoding::Protobuf, sink))
        }
    })
}

/// The process that a chain's victim is, where the recording names it.
fn victim(found: &NodeChain, recording: &dyn Recording) -> Option<ProcessIndex> {
    let NodeChain { node, chain } = found;
    let is_it = |process: &Process| process.node == *node && process.pid == chain.victim.pid;
    let lives = || (0..).map(ProcessIndex).zip(recording.processes()).filter(|(_, p)| is_it(p));
    let of_name = lives().find(|(_, process)| process.comm == chain.victim.comm);
    of_name.or_else(|| lives().next()).map(|(index, _)| index)
}
