//! Selects the part of a recording that is exported.

use std::ops::ControlFlow;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::ExportError;
use crate::untrusted_text::line;
use gpucause_trace::recording::{Filter, NodeChain, ProcessIndex, Recording, RecordingError};

/// The user's selection. Timestamps are nanoseconds since the Unix epoch by the clock of the recorded node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// Earliest end.
    pub from_ns: Option<i64>,
    /// Start before this time.
    pub until_ns: Option<i64>,
    /// Earliest end, counted back from the end of the recording.
    pub last: Option<Duration>,
    /// Processes with this PID only.
    pub pid: Option<u32>,
    /// Shortest duration of events, in nanoseconds.
    pub at_least_ns: u64,
}

/// A selection, resolved for one recording.
pub(super) struct Selected {
    pub(super) filter: Filter,
    /// The selected processes; `None` for all.
    processes: Option<Vec<ProcessIndex>>,
    pid: Option<u32>,
}

impl Selected {
    pub(super) fn resolve(
        selection: &Selection,
        recording: &dyn Recording,
    ) -> Result<Self, ExportError> {
        let processes = selection.pid.map(|pid| of_pid(recording, pid)).transpose()?;
        let mut from_ns = selection.from_ns;
        if let Some(last) = selection.last {
            let last = i64::try_from(last.as_nanos()).unwrap_or(i64::MAX);
            let since = end_ns(recording)?.saturating_sub(last);
            from_ns = Some(from_ns.map_or(since, |from| from.max(since)));
        }
        let only = match processes.as_deref() {
            Some([only]) => Some(*only),
            _ => None,
        };
        let filter = Filter {
            from_ns,
            until_ns: selection.until_ns,
            process: only,
            node: None,
            at_least_ns: selection.at_least_ns,
        };
        Ok(Self { filter, processes, pid: selection.pid })
    }

    /// Returns true if events of this process are selected.
    pub(super) fn has(&self, process: ProcessIndex) -> bool {
        self.processes.as_ref().is_none_or(|selected| selected.contains(&process))
    }

    /// Returns true if no event from the first on is left out.
    pub(super) const fn is_from_the_beginning(&self) -> bool {
        self.filter.from_ns.is_none() && self.filter.at_least_ns == 0
    }

    /// The chains seen in the selected time, of the selected processes.
    pub(super) fn chains(
        &self,
        recording: &dyn Recording,
    ) -> Result<Vec<NodeChain>, RecordingError> {
        let mut chains = recording.chains()?;
        chains.retain(|NodeChain { chain, .. }| {
            self.pid.is_none_or(|pid| chain.victim.pid == pid)
                && self.filter.from_ns.is_none_or(|from| nanos(chain.last_seen) >= from)
                && self.filter.until_ns.is_none_or(|until| nanos(chain.first_seen) < until)
        });
        Ok(chains)
    }
}

/// The processes with this PID: it may have been used again.
///
/// # Errors
/// When there is none.
pub fn of_pid(recording: &dyn Recording, pid: u32) -> Result<Vec<ProcessIndex>, ExportError> {
    let processes = recording.processes();
    let found: Vec<_> = (0..)
        .map(ProcessIndex)
        .zip(processes)
        .filter_map(|(index, process)| (process.pid == pid).then_some(index))
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut known: Vec<_> = processes.iter().map(|own| (own.pid, &*own.comm)).collect();
    known.sort_unstable();
    known.dedup();
    let known = known.into_iter().map(|(pid, comm)| format!("{} ({pid})", line(comm))).collect();
    Err(ExportError::NoSuchProcess { pid, known })
}

/// The end of the recording, in nanoseconds since the Unix epoch; that of the last event where a recorder was killed.
///
/// # Errors
/// When the file is damaged.
pub fn end_ns(recording: &dyn Recording) -> Result<i64, RecordingError> {
    let ends: Option<Vec<i64>> =
        recording.sessions().iter().map(|session| session.ended_ns).collect();
    if let Some(end) = ends.and_then(|ends| ends.into_iter().max()) {
        return Ok(end);
    }
    let mut end = i64::MIN;
    recording.events(&Filter::default(), &mut |event| {
        end = end.max(event.end_ns());
        ControlFlow::Continue(())
    })?;
    Ok(end)
}

/// Seconds as nanoseconds. The fraction is converted separately, which keeps more digits.
#[expect(clippy::cast_possible_truncation, reason = "a time beyond the range becomes its end")]
pub(super) fn nanos(seconds: f64) -> i64 {
    (seconds.trunc() as i64)
        .saturating_mul(1_000_000_000)
        .saturating_add((seconds.fract() * 1e9) as i64)
}

/// Text that is not a timestamp.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid timestamp {0:?}; expected RFC 3339, such as 2026-01-31T07:03:12Z, or seconds since the Unix epoch"
)]
pub struct TimestampError(String);

/// Parses RFC 3339, or seconds since the Unix epoch, as nanoseconds since the Unix epoch.
///
/// # Errors
/// When the text is neither.
pub fn timestamp(text: &str) -> Result<i64, TimestampError> {
    let parsed = if text.contains('-') { rfc3339(text) } else { seconds(text) };
    parsed.ok_or_else(|| TimestampError(text.to_owned()))
}

fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = format!("{:0<9}", fraction.get(..fraction.len().min(9))?);
    digits::<u128>(fraction)?;
    digits::<i64>(whole)?.checked_mul(1_000_000_000)?.checked_add(digits(&nanoseconds)?)
}

fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// RFC 3339 allows a space in place of `T`.
fn rfc3339(text: &str) -> Option<i64> {
    let time = OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339).ok()?;
    i64::try_from(time.unix_timestamp_nanos()).ok()
}

#[cfg(test)]
mod tests;
