//! The parts of a report in their order, for the printers of all formats.

use std::fmt;

use gpucause_engine::chain::Chain;
use gpucause_engine::quantity::time;
use gpucause_engine::utc::utc;
use gpucause_trace::recording::OBSERVATION;

use super::report::{NodeReport, Recorded, Report, SessionLine, TraceFile};
use super::tables::{Table, losses, tables};
use super::{Incident, TimelineEntry};
use crate::observation::Outcome;

/// Stacks printed of a node; JSON has more.
const MOST_STACKS: usize = 5;
/// PIDs listed of a node.
const MOST_PIDS: usize = 20;

/// Prints in one format. Texts are untrusted.
pub(super) trait Printer {
    /// Begins a node; one of several has its address.
    fn node(&mut self, incident: &Incident, address: Option<&str>) -> fmt::Result;

    /// Prints a line.
    fn line(&mut self, text: &str) -> fmt::Result;

    /// Prints a line about something that is missing.
    fn missing(&mut self, label: &str, text: &str) -> fmt::Result;

    /// Prints what is said of a node without chains.
    fn verdict(&mut self, sentences: &[String]) -> fmt::Result;

    /// Prints a title, and what follows it in its line.
    fn heading(&mut self, title: &str, about: &str) -> fmt::Result;

    /// Prints a chain with the time that it took in a period.
    fn chain(&mut self, chain: &Chain, period: (f64, f64)) -> fmt::Result;

    /// Prints begin and end of the chains.
    fn timeline(&mut self, timeline: &[TimelineEntry]) -> fmt::Result;

    /// Prints the first rows of a table, and how many there are more.
    fn table(&mut self, table: &Table) -> fmt::Result;

    /// Prints a call stack.
    fn stack(&mut self, about: &str, frames: &[String]) -> fmt::Result;

    /// Prints how many entries are left out, if any are.
    fn more(&mut self, count: usize) -> fmt::Result;
}

/// Prints a report; `per_process` adds a table of the victims' losses.
pub(super) fn report(report: &Report, per_process: bool, to: &mut dyn Printer) -> fmt::Result {
    let (answered, all) = (report.nodes.len(), report.nodes.len() + report.failures.len());
    let are_several = report.file.is_none() && (answered, all) != (1, 1);
    for text in report.file.iter().flat_map(lines_of) {
        to.line(&text)?;
    }
    if are_several {
        to.line(&format!("{answered} of {all} nodes answered"))?;
    }
    for (label, text) in report.notes() {
        to.missing(label, text)?;
    }
    for node in &report.nodes {
        let address = address(node).filter(|_| are_several);
        to.node(&node.incident, address.as_deref())?;
        incident(&node.incident, per_process, to)?;
        if let Some(own) = &node.recorded {
            recorded(own, to)?;
        }
    }
    Ok(())
}

/// Describes the file and the runs of its recorders.
fn lines_of(file: &TraceFile) -> Vec<String> {
    let lost = match file.lost_events {
        Some(lost) => format!(", {lost} lost"),
        None => "; lost events were not counted".into(),
    };
    let mut lines = vec![format!("{}: {}, {} events{lost}", file.path, file.format, file.events)];
    if file.is_sample {
        lines.push("A SAMPLE: not every event was stored. Counts and sums cover all events, percentiles the stored ones.".into());
    }
    lines.extend(file.sessions.iter().map(
        |SessionLine { node, recorder, from, until, details }| {
            let until = until.map(|until| format!("{} UTC", utc(until, true)));
            // Which of the two, a file does not say.
            let until = until.unwrap_or_else(|| "no end: still being recorded, or killed".into());
            let details = details.iter().filter(|(name, _)| name != OBSERVATION);
            let details: Vec<_> = details.map(|(name, value)| format!("{name}={value}")).collect();
            let (from, details) = (utc(*from, true), details.join(", "));
            format!("  session on {node} by {recorder}: {from} - {until} {details}")
        },
    ));
    lines
}

/// The address of a live node, with its clock skew where that was measured.
fn address(node: &NodeReport) -> Option<String> {
    let skew = node.clock.map(|own| {
        format!("  (clock {:+.3} s +- {:.3} s)", own.ahead_seconds, own.uncertainty_seconds)
    });
    Some(format!("{}{}", node.url.as_deref()?, skew.unwrap_or_default()))
}

/// Prints the chains of a node.
pub(super) fn incident(own: &Incident, per_process: bool, to: &mut dyn Printer) -> fmt::Result {
    for text in own.observation.lines() {
        to.line(&text)?;
    }
    if let Some(text) = own.not_shown() {
        to.missing("Not shown", &text)?;
    }
    if own.root_cause.is_none() {
        return to.verdict(&nothing_found(own));
    }
    let count = own.others.len() + 1;
    let plural = if count == 1 { "" } else { "s" };
    let (from, until) = own.asked();
    let (node, from, until) = (&own.node, utc(from, true), utc(until, true));
    to.line(&format!("{node}: {count} causal chain{plural} from {from} to {until} UTC"))?;
    for (title, of, chains) in own.sections() {
        to.heading(title, &of)?;
        chains.iter().try_for_each(|chain| to.chain(chain, own.period()))?;
    }
    to.heading("Timeline (UTC)", "")?;
    to.timeline(&own.timeline)?;
    if per_process { to.table(&losses(&own.processes)) } else { Ok(()) }
}

/// There is no chain: reports so only for the observed time.
fn nothing_found(own: &Incident) -> Vec<String> {
    let (node, (from, until)) = (&own.node, own.observation.window);
    if let Some(pid) = own.unobserved_pid {
        let (known, more) = own.observed.split_at(own.observed.len().min(MOST_PIDS));
        let (known, more) = (known.join(", "), more.len());
        return vec![
            format!(
                "{node}: PID {pid} is NOT OBSERVED: it has not called CUDA since gpucause started, started seconds ago, has ended, is excluded by the configuration (`processes`, limits), or there is no such process."
            ),
            match more {
                _ if known.is_empty() => "No process is observed.".into(),
                0 => format!("Observed PIDs: {known}."),
                more => format!("Observed PIDs: {known} and {more} more."),
            },
        ];
    }
    let what = match own.outcome {
        Outcome::NotObserved if own.observation.is_blind() => {
            "NOT OBSERVED in this time. Whether a GPU was starved is unknown.".into()
        }
        Outcome::NotObserved => "NOT OBSERVED in full. No cause was found in the observed part; whether a GPU was starved in the rest is unknown.".into(),
        _ if own.is_of_recorder && own.left_out > 0 => {
            "no causal chain is of the process that was recorded.".into()
        }
        _ if own.left_out > 0 => "no causal chain matches the filter.".into(),
        Outcome::Found | Outcome::NothingFound => format!(
            "no causal chain. No host-side cause of GPU starvation was found from {} to {} UTC.",
            utc(from, true),
            utc(until, true)
        ),
    };
    vec![format!("{node}: {what}")]
}

/// Prints the contents of a trace file other than chains.
fn recorded(own: &Recorded, to: &mut dyn Printer) -> fmt::Result {
    if let (Some(from), Some(until)) = (own.from, own.until) {
        let (begin, end, span, seconds) =
            (utc(from, true), utc(until, true), until - from, own.seconds);
        let about = format!("  {begin} - {end} UTC, {span:.1} s; {seconds:.1} s were recorded");
        to.heading("Events", &about)?;
    }
    own.notes().try_for_each(|note| to.line(&format!("  {note}")))?;
    tables(own).try_for_each(|table| to.table(&table))?;
    if own.stacks.is_empty() {
        return Ok(());
    }
    to.heading("Call stacks", ", of the stored calls that have one")?;
    for stack in own.stacks.iter().take(MOST_STACKS) {
        let about = format!(
            "{} in {} {}, longest {}: {} of {} ({}){}",
            time(Some(stack.sum_seconds)),
            stack.count,
            if stack.count == 1 { "call" } else { "calls" },
            time(Some(stack.max_seconds)),
            stack.op,
            stack.comm,
            stack.pid,
            own.mark_of(stack.pid)
        );
        to.stack(&about, &stack.frames)?;
    }
    to.more(own.stacks.len().saturating_sub(MOST_STACKS))
}
