//! The tables of a report.

use gpucause_engine::quantity::{percent_with_tenths, time};

use super::ProcessLoss;
use super::report::{Recorded, ThreadLine, WaitLine};

/// Rows printed of a table in a document; JSON has all.
pub(super) const MOST_ROWS: usize = 20;

/// A table of a report.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    /// Follows the title in its line.
    pub(super) about: String,
    /// Name and width in text of each column, whose cells stand at the left where the width is negative.
    pub(super) columns: &'static [(&'static str, isize)],
    /// Cells, and the mark of a process that is only there as a culprit.
    pub(super) rows: Vec<(Vec<String>, &'static str)>,
    /// Explains numbers that look wrong.
    pub(super) footnote: Option<&'static str>,
}

/// The time that chains took from processes.
pub(super) fn losses(processes: &[ProcessLoss]) -> Table {
    let row = |own: &ProcessLoss| {
        let (cause, taken) = own.worst;
        let cells = vec![
            own.pid.to_string(),
            own.comm.clone(),
            own.chains.to_string(),
            format!("{:.1} s", own.attributed_seconds),
            format!("{:.1} s", own.lost_seconds),
            own.severity.label().to_owned(),
            format!("{cause} ({taken:.1} s)"),
        ];
        (cells, "")
    };
    Table {
        title: "Processes",
        about: String::new(),
        columns: &[
            ("PID", 8),
            ("Process", -16),
            ("Chains", 6),
            ("Taken", 10),
            ("Lost", 10),
            ("Severity", -9),
            ("Worst", 0),
        ],
        rows: processes.iter().map(row).collect(),
        footnote: None,
    }
}

/// The tables of a trace file that have rows.
pub(super) fn tables(node: &Recorded) -> impl Iterator<Item = Table> {
    let all = [calls(node), waits(node), between_calls(node), threads(node)];
    all.into_iter().filter(|table| !table.rows.is_empty())
}

/// Rows of processes, without their PIDs.
fn rows<T>(
    node: &Recorded,
    lines: &[T],
    cells: impl Fn(&T) -> (u32, Vec<String>),
) -> Vec<(Vec<String>, &'static str)> {
    let row = |line: &T| {
        let (pid, mut cells) = cells(line);
        cells.insert(0, pid.to_string());
        (cells, node.mark_of(pid))
    };
    lines.iter().map(row).collect()
}

fn calls(node: &Recorded) -> Table {
    let are_whole = node.calls.iter().all(|own| own.stored.is_none());
    let of = if are_whole { "all calls" } else { "events" };
    let has_more = node.calls.iter().any(|own| own.events > own.count);
    Table {
        title: "Calls",
        about: format!(", and how many are events of the file; percentiles are of {of}"),
        columns: &[
            ("PID", 8),
            ("Process", -16),
            ("Function", -26),
            ("Count", 9),
            ("Events", 9),
            ("p50", 10),
            ("p99", 10),
            ("Max", 10),
            ("Sum", 10),
        ],
        rows: rows(node, &node.calls, |own| {
            let cold = if own.cold == Some(true) { " (cold)" } else { "" };
            let cells = vec![
                own.comm.clone(),
                format!("{}{cold}", own.op),
                own.count.to_string(),
                own.events.to_string(),
                time(own.p50_seconds),
                time(own.p99_seconds),
                time(Some(own.max_seconds)),
                time(Some(own.sum_seconds)),
            ];
            (own.pid, cells)
        }),
        footnote: has_more.then_some(
            "EVENTS may be more than COUNT where a recorder was cut off: counts are of its last snapshot, and events were stored after it.",
        ),
    }
}

fn waits(node: &Recorded) -> Table {
    let is_sample = node.waits.iter().any(|own| own.is_sample);
    let sample = if is_sample { " (* some were counted but not stored)" } else { "" };
    let cells = |own: &WaitLine| {
        let cells = vec![
            own.comm.clone(),
            own.reason.to_owned(),
            // Digits stand below each other.
            format!("{}{}", own.count, if own.is_sample { "*" } else { " " }),
            time(Some(own.seconds)),
            percent_with_tenths(own.share_of_recorded),
            time(Some(own.max_seconds)),
        ];
        (own.pid, cells)
    };
    Table {
        title: "Off the CPU",
        about: format!(", share of the time for which the process was recorded{sample}"),
        columns: &[
            ("PID", 8),
            ("Process", -16),
            ("Reason", -12),
            ("Count", 10),
            ("Sum", 12),
            ("Share", 8),
            ("Max", 10),
        ],
        rows: rows(node, &node.waits, cells),
        footnote: None,
    }
}

/// A share of a time.
fn share(part: f64, whole: f64) -> String {
    percent_with_tenths(if whole > 0.0 { part / whole } else { 0.0 })
}

/// A time and its share of another.
fn part(seconds: f64, whole: f64) -> String {
    format!("{} ({})", time(Some(seconds)), share(seconds, whole))
}

fn between_calls(node: &Recorded) -> Table {
    Table {
        title: "Between calls",
        about: ", of dispatcher threads".into(),
        columns: &[
            ("PID", 8),
            ("Process", -16),
            ("Dispatcher time", 15),
            ("Between", 20),
            ("Off the CPU there", 20),
        ],
        rows: rows(node, &node.between_calls, |own| {
            let cells = vec![
                own.comm.clone(),
                time(Some(own.dispatcher_seconds)),
                part(own.between_seconds, own.dispatcher_seconds),
                part(own.off_cpu_seconds, own.between_seconds),
            ];
            (own.pid, cells)
        }),
        footnote: None,
    }
}

fn threads(node: &Recorded) -> Table {
    let cells = |own: &ThreadLine| {
        let off = own.off_cpu_in_gaps_seconds.map(|off| part(off, own.host_gap_seconds));
        let cells = vec![
            own.tid.to_string(),
            own.comm.clone(),
            own.calls.to_string(),
            time(Some(own.span_seconds)),
            time(Some(own.host_gap_seconds)),
            share(own.host_gap_seconds, own.span_seconds),
            time(Some(own.longest_gap_seconds)),
            off.unwrap_or_else(|| "not recorded".into()),
        ];
        (own.pid, cells)
    };
    Table {
        title: "Between calls",
        about: ", by thread, of the stored events".into(),
        columns: &[
            ("PID", 8),
            ("Thread", 8),
            ("Name", -16),
            ("Calls", 9),
            ("Span", 10),
            ("Between", 10),
            ("Share", 7),
            ("Longest", 10),
            ("Off the CPU there", 20),
        ],
        rows: rows(node, &node.threads, cells),
        footnote: None,
    }
}
