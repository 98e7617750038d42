//! Which part of a recording is exported.

use std::ops::ControlFlow;
use std::time::Duration;

use time::{Date, Month, PrimitiveDateTime, Time};

use super::ExportError;
use crate::recording::{Filter, NodeChain, ProcessIndex, Recording, RecordingError};

/// What the user asked for. Moments are nanoseconds since the Unix epoch by the clock of the node that recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// What ended before this moment is left out.
    pub from_ns: Option<i64>,
    /// What began at or after this moment is left out.
    pub until_ns: Option<i64>,
    /// What ended longer than this before the end of the recording is left out.
    pub last: Option<Duration>,
    /// What is of other processes is left out.
    pub pid: Option<u32>,
    /// Events that are shorter are left out.
    pub at_least_ns: u64,
}

/// What a selection means for a recording.
pub(super) struct Selected {
    /// To ask the recording with.
    pub(super) filter: Filter,
    /// Those of its processes that were chosen; `None` for all.
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
            at_least_ns: selection.at_least_ns,
        };
        Ok(Self { filter, processes, pid: selection.pid })
    }

    /// Whether events of this process were chosen.
    pub(super) fn has(&self, process: ProcessIndex) -> bool {
        self.processes.as_ref().is_none_or(|chosen| chosen.contains(&process))
    }

    /// Whether all events are there to be seen, from the first on.
    pub(super) const fn is_from_the_beginning(&self) -> bool {
        self.filter.from_ns.is_none() && self.filter.at_least_ns == 0
    }

    /// The chains that were chosen: those that were seen in the time, of the processes.
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

fn of_pid(recording: &dyn Recording, pid: u32) -> Result<Vec<ProcessIndex>, ExportError> {
    let processes = recording.processes();
    let found: Vec<_> = (0..)
        .map(ProcessIndex)
        .zip(processes)
        .filter_map(|(index, process)| (process.pid == pid).then_some(index))
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut known: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    known.sort_unstable();
    known.dedup();
    Err(ExportError::NoSuchProcess { pid, known })
}

/// When the recording ends: a recorder that was killed did not say, so its events do.
fn end_ns(recording: &dyn Recording) -> Result<i64, RecordingError> {
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

/// Nanoseconds of seconds. The fraction is taken by itself: the product would lose some of it.
#[expect(clippy::cast_possible_truncation, reason = "a moment beyond the range becomes its end")]
pub(super) fn nanos(seconds: f64) -> i64 {
    (seconds.trunc() as i64)
        .saturating_mul(1_000_000_000)
        .saturating_add((seconds.fract() * 1e9) as i64)
}

/// Why text is no moment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no moment; write it as RFC 3339 does, such as 2026-01-31T07:03:12Z, or in seconds since the Unix epoch"
)]
pub struct MomentError(String);

/// A moment in nanoseconds since the Unix epoch, of text as RFC 3339 has it or of seconds since then.
///
/// # Errors
/// When it is none; the message says what is accepted.
pub fn moment(text: &str) -> Result<i64, MomentError> {
    let parsed = if text.contains('-') { rfc3339(text) } else { seconds(text) };
    parsed.ok_or_else(|| MomentError(text.to_owned()))
}

fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(w, f)| (w, Some(f)));
    digits::<i64>(whole)?.checked_mul(1_000_000_000)?.checked_add(fraction_ns(fraction)?)
}

/// Nanoseconds of the digits behind a decimal point.
fn fraction_ns(digits_of: Option<&str>) -> Option<i64> {
    let Some(text) = digits_of else { return Some(0) };
    let kept = text.get(..text.len().min(9))?;
    digits::<u128>(text)?;
    let scale = 10_i64.pow(9 - u32::try_from(kept.len()).ok()?);
    Some(digits::<i64>(kept)? * scale)
}

fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (clock, rest) = rest.split_at_checked(8)?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone_at);
    let fraction = match fraction.strip_prefix('.') {
        Some(behind) => Some(behind),
        None if fraction.is_empty() => None,
        None => return None,
    };
    let [year, month, day] = split(date, '-')?;
    let [hour, minute, second] = split(clock, ':')?;
    let narrow = |number: i32| u8::try_from(number).ok();
    let month = Month::try_from(narrow(month)?).ok()?;
    let date = Date::from_calendar_date(year, month, narrow(day)?).ok()?;
    let clock = Time::from_hms(narrow(hour)?, narrow(minute)?, narrow(second)?).ok()?;
    let utc = PrimitiveDateTime::new(date, clock).assume_utc().unix_timestamp();
    utc.checked_sub(offset_seconds(zone)?)?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction_ns(fraction)?)
}

fn offset_seconds(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits::<i64>(hours)?, digits::<i64>(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn split<const N: usize>(text: &str, at: char) -> Option<[i32; N]> {
    let numbers: Option<Vec<i32>> = text.split(at).map(digits).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests;
