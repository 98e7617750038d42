//! The report of live nodes or of a trace file as text.

use std::fmt::Write as _;

use gpucause_engine::quantity::{percent_with_tenths, time};
use gpucause_engine::utc::utc;
use gpucause_trace::recording::OBSERVATION;

use super::report::{Recorded, Report, TraceFile};
use super::text::{printable, render};
use crate::untrusted_text::line;

/// Rows printed of a table; JSON has all.
const MOST_ROWS: usize = 40;
/// Stacks printed; JSON has more.
const MOST_STACKS: usize = 5;

/// The report as text; `per_process` adds a table of the victims' losses. Characters that control a terminal are replaced.
pub fn render_report(report: &Report, per_process: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, report, per_process);
    printable(&out)
}

fn write(out: &mut String, report: &Report, per_process: bool) -> std::fmt::Result {
    let all = report.nodes.len() + report.failures.len();
    let are_several = report.file.is_none() && (report.nodes.len() != 1 || all != 1);
    if let Some(file) = &report.file {
        head(out, file)?;
    }
    if are_several {
        writeln!(out, "{} of {all} nodes answered", report.nodes.len())?;
    }
    for failure in &report.failures {
        writeln!(out, "NO ANSWER  {}", line(&failure.reason))?;
    }
    for warning in &report.warnings {
        writeln!(out, "CLOCK  {}", line(warning))?;
    }
    for node in &report.nodes {
        if report.file.is_some() {
            writeln!(out)?;
        }
        if let Some(url) = node.url.as_deref().filter(|_| are_several) {
            write!(out, "\n== {}", line(url))?;
            if let Some(clock) = node.clock {
                let (ahead, error) = (clock.ahead_seconds, clock.uncertainty_seconds);
                write!(out, "  (clock {ahead:+.3} s +- {error:.3} s)")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "{}", render(&node.incident, per_process).trim_end())?;
        if let Some(recorded) = &node.recorded {
            tables(out, recorded)?;
        }
    }
    Ok(())
}

/// The file and the runs of its recorders.
fn head(out: &mut String, file: &TraceFile) -> std::fmt::Result {
    write!(out, "{}: {}, {} events", line(&file.path), line(&file.format), file.events)?;
    match file.lost_events {
        Some(lost) => writeln!(out, ", {lost} lost")?,
        None => writeln!(out, "; lost events were not counted")?,
    }
    if file.is_sample {
        writeln!(
            out,
            "A SAMPLE: not every event was stored. Counts and sums cover all events, percentiles the stored ones."
        )?;
    }
    for session in &file.sessions {
        let until = session.until.map(|until| format!("{} UTC", utc(until, true)));
        // Which of the two, a file does not say.
        let until = until.unwrap_or_else(|| "no end: still being recorded, or killed".into());
        let details = session.details.iter().filter(|(name, _)| name != OBSERVATION);
        let details = details.map(|(name, value)| format!("{name}={value}"));
        writeln!(
            out,
            "  session on {} by {}: {} - {until} {}",
            line(&session.node),
            line(&session.recorder),
            utc(session.from, true),
            line(&details.collect::<Vec<_>>().join(", "))
        )?;
    }
    Ok(())
}

fn tables(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if let (Some(from), Some(until)) = (node.from, node.until) {
        let (begin, end) = (utc(from, true), utc(until, true));
        let (span, seconds) = (until - from, node.seconds);
        writeln!(out, "\nEVENTS  {begin} - {end} UTC, {span:.1} s; {seconds:.1} s were recorded")?;
    }
    for note in node.notes() {
        writeln!(out, "  {note}")?;
    }
    calls(out, node)?;
    waits(out, node)?;
    between_calls(out, node)?;
    threads(out, node)?;
    stacks(out, node)
}

/// Notes how many rows are not printed.
fn more(out: &mut String, rows: usize, printed: usize) -> std::fmt::Result {
    match rows.saturating_sub(printed) {
        0 => Ok(()),
        rest => writeln!(out, "  ... and {rest} more, see --format json"),
    }
}

fn calls(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if node.calls.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nCALLS, and how many are events of the file; percentiles are of {}\n  {:>8} {:<16} {:<26} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10}",
        if node.calls.iter().all(|own| own.stored.is_none()) { "all calls" } else { "events" },
        "PID",
        "COMM",
        "FUNCTION",
        "COUNT",
        "EVENTS",
        "P50",
        "P99",
        "MAX",
        "SUM"
    )?;
    for call in node.calls.iter().take(MOST_ROWS) {
        let cold = if call.cold == Some(true) { " (cold)" } else { "" };
        writeln!(
            out,
            "  {:>8} {:<16} {:<26} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10}{}",
            call.pid,
            line(&call.comm),
            line(&format!("{}{cold}", call.op)),
            call.count,
            call.events,
            time(call.p50_seconds),
            time(call.p99_seconds),
            time(Some(call.max_seconds)),
            time(Some(call.sum_seconds)),
            culprit(node, call.pid)
        )?;
    }
    more(out, node.calls.len(), MOST_ROWS)?;
    if node.calls.iter().take(MOST_ROWS).any(|own| own.events > own.count) {
        writeln!(
            out,
            "  EVENTS may be more than COUNT where a recorder was cut off: counts are of its last snapshot, and events were stored after it."
        )?;
    }
    Ok(())
}

fn waits(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if node.waits.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nOFF THE CPU, share of the time for which the process was recorded{}\n  {:>8} {:<16} {:<12} {:>10} {:>12} {:>8} {:>10}",
        if node.waits.iter().any(|own| own.is_sample) {
            " (* some were counted but not stored)"
        } else {
            ""
        },
        "PID",
        "COMM",
        "REASON",
        "COUNT",
        "SUM",
        "SHARE",
        "MAX"
    )?;
    for wait in node.waits.iter().take(MOST_ROWS) {
        writeln!(
            out,
            "  {:>8} {:<16} {:<12} {:>9}{} {:>12} {:>8} {:>10}{}",
            wait.pid,
            line(&wait.comm),
            wait.reason,
            wait.count,
            if wait.is_sample { "*" } else { " " },
            time(Some(wait.seconds)),
            percent_with_tenths(wait.share_of_recorded),
            time(Some(wait.max_seconds)),
            culprit(node, wait.pid)
        )?;
    }
    more(out, node.waits.len(), MOST_ROWS)
}

/// The end of a row of a process that is only there as a culprit.
fn culprit(node: &Recorded, pid: u32) -> &'static str {
    if node.is_culprit(pid) { "  culprit" } else { "" }
}

/// A time and its share of another.
fn part(seconds: f64, whole: f64) -> String {
    let share = if whole > 0.0 { seconds / whole } else { 0.0 };
    format!("{} ({})", time(Some(seconds)), percent_with_tenths(share))
}

fn between_calls(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if node.between_calls.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nBETWEEN CALLS, of dispatcher threads\n  {:>8} {:<16} {:>15} {:>20} {:>20}",
        "PID", "COMM", "DISPATCHER TIME", "BETWEEN", "OFF THE CPU THERE"
    )?;
    for own in node.between_calls.iter().take(MOST_ROWS) {
        writeln!(
            out,
            "  {:>8} {:<16} {:>15} {:>20} {:>20}{}",
            own.pid,
            line(&own.comm),
            time(Some(own.dispatcher_seconds)),
            part(own.between_seconds, own.dispatcher_seconds),
            part(own.off_cpu_seconds, own.between_seconds),
            culprit(node, own.pid)
        )?;
    }
    more(out, node.between_calls.len(), MOST_ROWS)
}

fn threads(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if node.threads.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nBETWEEN CALLS, by thread, of the stored events\n  {:>8} {:>8} {:<16} {:>9} {:>10} {:>10} {:>7} {:>10} {:>20}",
        "PID",
        "THREAD",
        "COMM",
        "CALLS",
        "SPAN",
        "BETWEEN",
        "SHARE",
        "LONGEST",
        "OFF THE CPU THERE"
    )?;
    for thread in node.threads.iter().take(MOST_ROWS) {
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let off = thread
            .off_cpu_in_gaps_seconds
            .map_or_else(|| "not recorded".into(), |off| part(off, thread.host_gap_seconds));
        writeln!(
            out,
            "  {:>8} {:>8} {:<16} {:>9} {:>10} {:>10} {:>7} {:>10} {off:>20}{}",
            thread.pid,
            thread.tid,
            line(&thread.comm),
            thread.calls,
            time(Some(thread.span_seconds)),
            time(Some(thread.host_gap_seconds)),
            percent_with_tenths(of(thread.host_gap_seconds, thread.span_seconds)),
            time(Some(thread.longest_gap_seconds)),
            culprit(node, thread.pid)
        )?;
    }
    more(out, node.threads.len(), MOST_ROWS)
}

fn stacks(out: &mut String, node: &Recorded) -> std::fmt::Result {
    if node.stacks.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nCALL STACKS, of the stored calls that have one")?;
    for stack in node.stacks.iter().take(MOST_STACKS) {
        writeln!(
            out,
            "  {} in {} {}, longest {}: {} of {} ({}){}",
            time(Some(stack.sum_seconds)),
            stack.count,
            if stack.count == 1 { "call" } else { "calls" },
            time(Some(stack.max_seconds)),
            line(&stack.op),
            line(&stack.comm),
            stack.pid,
            culprit(node, stack.pid)
        )?;
        for frame in &stack.frames {
            writeln!(out, "      {}", line(frame))?;
        }
    }
    more(out, node.stacks.len(), MOST_STACKS)
}
