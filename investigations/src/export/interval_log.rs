//! Interval logs of HdrHistogram: durations of calls by node, process and op, a histogram per second.

mod histogram;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;

use super::selection::Selected;
use super::stream::{Aligned, Clocks};
use super::{ExportError, Output};
use crate::recording::{Completeness, Kind, ProcessIndex, Recording};
use gpucause_engine::utc::utc;
use histogram::SparseHistogram;

/// Length of an interval, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Maxima are in milliseconds, as the format's own tools write them.
const NS_PER_MS: f64 = 1e6;
const LEGEND: &str =
    r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

/// Writes an interval log.
pub(super) struct IntervalLog<'a> {
    recording: &'a dyn Recording,
    sink: &'a mut dyn io::Write,
    tags: HashMap<(ProcessIndex, Rc<str>, bool), Rc<str>>,
    /// By the interval's number since the epoch, and the tag.
    intervals: BTreeMap<(u64, Rc<str>), SparseHistogram>,
    clocks: Clocks,
    has_begun: bool,
}

impl<'a> IntervalLog<'a> {
    pub(super) fn new(
        recording: &'a dyn Recording,
        selected: &Selected,
        sink: &'a mut dyn io::Write,
    ) -> Result<Self, ExportError> {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(sink, "#[Histogram log format version 1.3]")?;
        writeln!(sink, "#Written by gpucause {version} from a {}", line(&recording.format()))?;
        writeln!(sink, "#Durations of calls in nanoseconds, by the second in which they began")?;
        if selected.filter.at_least_ns > 0 {
            let least = selected.filter.at_least_ns;
            writeln!(sink, "#Only calls of {least} ns or longer")?;
        }
        let mut log = Self {
            recording,
            sink,
            tags: HashMap::new(),
            intervals: BTreeMap::new(),
            clocks: Clocks::of(recording),
            has_begun: false,
        };
        log.note_samples(selected)?;
        Ok(log)
    }

    /// Notes which calls were stored in part only: their histograms are biased.
    fn note_samples(&mut self, selected: &Selected) -> Result<(), ExportError> {
        for calls in self.recording.calls()? {
            let Completeness::Sample { stored } = calls.durations.completeness else { continue };
            if selected.has(calls.process) {
                let tag = self.tag(calls.process, &calls.op, calls.cold == Some(true));
                let count = calls.durations.count;
                writeln!(
                    self.sink,
                    "#{tag} is no fair sample: the recording kept {stored} of {count} calls"
                )?;
            }
        }
        Ok(())
    }

    fn tag(&mut self, process: ProcessIndex, op: &str, cold: bool) -> Rc<str> {
        let key = (process, Rc::from(op), cold);
        if let Some(known) = self.tags.get(&key) {
            return Rc::clone(known);
        }
        let tag: Rc<str> = match self.recording.process_at(process) {
            Some(known) => {
                let node = word(self.recording.node_name(known.node));
                let cold = if cold { "/cold" } else { "" };
                format!("{node}/{}[{}]/{}{cold}", word(&known.comm), known.pid, word(op)).into()
            }
            None => "?".into(),
        };
        self.tags.insert(key, Rc::clone(&tag));
        tag
    }

    fn begin(&mut self, interval: u64) -> io::Result<()> {
        self.has_begun = true;
        let start = seconds(interval);
        writeln!(self.sink, "#[BaseTime: 0.000 (seconds since epoch)]")?;
        let utc = utc(interval as f64, true);
        writeln!(self.sink, "#[StartTime: {start} (seconds since epoch), {utc} UTC]")?;
        writeln!(self.sink, "{LEGEND}")
    }

    /// Writes the intervals before this one.
    fn write_before(&mut self, interval: u64) -> io::Result<()> {
        while let Some(first) = self.intervals.first_entry() {
            if first.key().0 >= interval {
                break;
            }
            let ((number, tag), histogram) = first.remove_entry();
            if !self.has_begun {
                self.begin(number)?;
            }
            let (start, length) = (seconds(number), seconds(1));
            let max = histogram.max() as f64 / NS_PER_MS;
            let encoded = histogram.encode()?;
            writeln!(self.sink, "Tag={tag},{start},{length},{max:.3},{encoded}")?;
        }
        Ok(())
    }
}

impl Output for IntervalLog<'_> {
    fn event(&mut self, aligned: &Aligned<'_>) -> io::Result<()> {
        // No later event begins before this on any node's clock.
        let settled =
            u64::try_from(aligned.event.start_ns.saturating_sub(self.clocks.furthest_ahead()));
        self.write_before(settled.unwrap_or(0) / INTERVAL_NS)?;
        if let Kind::Call(call) = &aligned.event.kind {
            let tag = self.tag(aligned.event.process, &call.op, call.cold == Some(true));
            let histogram = self.intervals.entry((aligned.start / INTERVAL_NS, tag)).or_default();
            histogram.record(aligned.event.duration_ns);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write_before(u64::MAX)?;
        if self.has_begun { Ok(()) } else { writeln!(self.sink, "{LEGEND}") }
    }
}

/// The start of an interval, in seconds.
fn seconds(intervals: u64) -> String {
    format!("{intervals}.000")
}

/// Replaces characters that end a tag or a line.
fn word(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, ',' | '"') { c } else { '_' };
    text.chars().map(plain).collect()
}

/// Replaces characters that end a line.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
