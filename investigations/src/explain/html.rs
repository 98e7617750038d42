//! The report as one HTML file without anything beside it, for a ticket.

use std::fmt::{self, Write};

use gpucause_engine::quantity;
use gpucause_engine::utc::utc;

use super::text::nothing_found;
use super::{CallLine, Incident, ProcessLoss, Recorded, Report, WaitLine};
pub(super) use crate::html::culprit;
use crate::html::{PathDetails, Periods, STYLE, Text, badge, chain, time};

/// Rows of each table of a trace file; JSON has all.
const MAX_ROWS: usize = 20;
/// Stacks of a trace file.
const MAX_STACKS: usize = 5;
/// The file loads nothing, and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The report.
pub fn of(report: &Report) -> String {
    document(&report.title(), |out| {
        if let Some(file) = &report.file {
            write!(out, "<p>{}, {} events", Text(&file.format), file.events)?;
            match file.lost_events {
                Some(lost) => writeln!(out, ", {lost} lost.</p>")?,
                None => out.write_str(".</p>\n")?,
            }
            if file.is_sample {
                out.write_str(
                    "<p>Some percentiles are of a sample: not every event is stored.</p>\n",
                )?;
            }
        }
        for (what, text) in report.notes() {
            writeln!(out, "<p class=\"problem\">{what}{}</p>", Text(text))?;
        }
        for node in &report.nodes {
            section(out, &node.incident)?;
            if let Some(tables) = &node.recorded {
                recorded(out, tables)?;
            }
        }
        Ok(())
    })
}

fn document(title: &str, body: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut out = String::with_capacity(32 << 10);
    let title = Text(title);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>gpucause: {title}</title>\n<style>\n{STYLE}</style></head>\n\
         <body>\n<header><h1>Why was the GPU not fed? {title}</h1></header>\n<main>\n"
    );
    let _ = body(&mut out);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn section(out: &mut String, incident: &Incident) -> fmt::Result {
    writeln!(out, "<section><h2>{}</h2>", Text(&incident.node))?;
    for text in incident.observation.lines() {
        writeln!(out, "<p>{}</p>", Text(&text))?;
    }
    if let Some(what) = incident.not_shown() {
        writeln!(out, "<p>Not shown: {what}</p>")?;
    }
    if incident.root_cause.is_none() {
        let mut text = String::new();
        nothing_found(&mut text, &incident.node, incident)?;
        return writeln!(out, "<p><strong>{}</strong></p></section>", Text(text.trim_end()));
    }
    let periods = Periods { severity: incident.period(), time: incident.period() };
    for (heading, of, chains) in incident.sections() {
        writeln!(out, "<h3>{heading}{}</h3>", Text(&of))?;
        chains.iter().try_for_each(|own| chain(out, own, periods, PathDetails::Open))?;
    }
    out.write_str("<h3>Timeline</h3>\n<ol>\n")?;
    for event in &incident.timeline {
        writeln!(out, "<li>{} {}</li>", time(event.at), Text(&event.what))?;
    }
    out.write_str("</ol>\n")?;
    table(
        out,
        ("Time that chains took from processes", "PID,Process,Chains,Taken,Lost,Severity,Worst"),
        &incident.processes,
        process,
    )?;
    out.write_str("</section>\n")
}

fn process(out: &mut String, own: &ProcessLoss) -> fmt::Result {
    let (cause, seconds) = own.worst;
    write!(
        out,
        "<td>{}</td><td>{}</td><td>{}</td><td>{:.1} s</td><td>{:.1} s</td><td>{}</td><td>{cause} ({seconds:.1} s)</td>",
        own.pid,
        Text(&own.comm),
        own.chains,
        own.attributed_seconds,
        own.lost_seconds,
        badge(own.severity)
    )
}

/// Writes the contents of a trace file other than chains.
fn recorded(out: &mut String, node: &Recorded) -> fmt::Result {
    out.write_str("<section>\n")?;
    if let (Some(from), Some(until)) = (node.from, node.until) {
        let (from, until, seconds) = (utc(from, true), utc(until, true), node.seconds);
        writeln!(out, "<p>Events from {from} to {until} UTC; {seconds:.1} s were recorded.</p>")?;
    }
    for note in node.notes() {
        writeln!(out, "<p>{note}</p>")?;
    }
    table(out, ("Calls", "PID,Process,Call,Count,Total,p50,p99,Longest"), &node.calls, call)?;
    let waits = ("Waits off the CPU", "PID,Process,Reason,Count,Total,Longest");
    table(out, waits, &node.waits, wait)?;
    for stack in node.stacks.iter().take(MAX_STACKS) {
        writeln!(
            out,
            "<details><summary>{} of {} (PID {}): {} calls from one stack, {}</summary><pre>",
            Text(&stack.op),
            Text(&stack.comm),
            stack.pid,
            stack.count,
            quantity::time(Some(stack.sum_seconds))
        )?;
        stack.frames.iter().try_for_each(|frame| writeln!(out, "{}", Text(frame)))?;
        out.write_str("</pre></details>\n")?;
    }
    out.write_str("</section>\n")
}

fn call(out: &mut String, own: &CallLine) -> fmt::Result {
    write!(
        out,
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        own.pid,
        Text(&own.comm),
        Text(&match own.cold {
            Some(true) => format!("{} (first launches)", own.op),
            _ => own.op.clone(),
        }),
        own.count,
        quantity::time(Some(own.sum_seconds)),
        quantity::time(own.p50_seconds),
        quantity::time(own.p99_seconds),
        quantity::time(Some(own.max_seconds))
    )
}

fn wait(out: &mut String, own: &WaitLine) -> fmt::Result {
    write!(
        out,
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        own.pid,
        Text(&own.comm),
        Text(own.reason),
        own.count,
        quantity::time(Some(own.seconds)),
        quantity::time(Some(own.max_seconds))
    )
}

fn table<T>(
    out: &mut String,
    (title, columns): (&str, &str),
    rows: &[T],
    row: impl Fn(&mut String, &T) -> fmt::Result,
) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    write!(out, "<div class=\"scroll\"><table><caption>{title}</caption><thead><tr>")?;
    for column in columns.split(',') {
        write!(out, "<th scope=\"col\">{column}</th>")?;
    }
    out.write_str("</tr></thead><tbody>\n")?;
    for own in rows.iter().take(MAX_ROWS) {
        out.write_str("<tr>")?;
        row(out, own)?;
        out.write_str("</tr>\n")?;
    }
    out.write_str("</tbody></table></div>\n")?;
    match rows.len().saturating_sub(MAX_ROWS) {
        0 => Ok(()),
        more => {
            writeln!(
                out,
                "<p>{more} more are in the report of <code>explain --format json</code>.</p>"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use gpucause_engine::observation::Period;

    use super::*;
    use crate::explain::NodeReport;
    use crate::observation::Observed;

    fn page(node: &str) -> String {
        let observation = Observed::of_node(Some(Period::attached(0.0).into()), 10.0, 20.0);
        let incident = Incident::of(node.to_owned(), Vec::new(), observation);
        let node = NodeReport { url: None, clock: None, incident, recorded: None };
        of(&Report {
            outcome: node.incident.outcome,
            file: None,
            nodes: vec![node],
            failures: Vec::new(),
            warnings: Vec::new(),
        })
    }

    #[test]
    fn a_report_has_all_in_one_file_and_no_script() {
        let html = page("gpu-1");
        assert!(html.contains("<style>") && html.contains("prefers-color-scheme"), "{html}");
        for forbidden in ["<script", "<link", "src=", "http://", "https://", "@import", "url("] {
            assert!(!html.contains(forbidden), "{forbidden} is in {html}");
        }
        assert!(html.contains("No host-side cause of GPU starvation was found"), "{html}");
    }

    #[test]
    fn the_name_of_a_node_is_text() {
        let html = page("<script>alert(1)</script>");
        assert!(!html.contains("<script"), "{html}");
    }
}
