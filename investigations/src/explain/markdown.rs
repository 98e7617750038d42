//! The report as Markdown, for a ticket, a wiki or a chat.

use std::fmt::{self, Write};

use gpucause_engine::chain::Chain;
use gpucause_engine::quantity;
use gpucause_engine::utc::utc;

use super::html::culprit;
use super::text::nothing_found;
use super::{Incident, Recorded, Report};
use crate::amounts::{amounts, plain};
use crate::html::commands;
use crate::untrusted_text::is_control;

/// Rows of each table of a trace file; JSON has all.
const MAX_ROWS: usize = 20;

/// Text without markup: what has a meaning in Markdown or HTML is escaped, and invisible characters are replaced. A cell of a
/// table stays one.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '#' | '|' | '&'
                | '~' | '!' | '$' | '@' => write!(f, "\\{c}")?,
                c if is_control(c) => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Text of a fix, whose commands stay code in a cell of a table.
struct Commands<'a>(&'a str);

impl fmt::Display for Commands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, is_command) in commands(self.0) {
            if !is_command {
                write!(f, "{}", Text(part))?;
                continue;
            }
            let shown: String = part.chars().map(|c| if is_control(c) { '?' } else { c }).collect();
            write!(f, "`{}`", shown.replace('|', "\\|"))?;
        }
        Ok(())
    }
}

/// The report.
pub fn of(report: &Report) -> String {
    document(&report.title(), |out| {
        if let Some(file) = &report.file {
            write!(out, "{}, {} events", Text(&file.format), file.events)?;
            match file.lost_events {
                Some(lost) => writeln!(out, ", {lost} lost.")?,
                None => out.write_str(".\n")?,
            }
        }
        for (what, text) in report.notes() {
            writeln!(out, "- **{what}**{}", Text(text))?;
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
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# Why was the GPU not fed? {}\n", Text(title));
    let _ = body(&mut out);
    out
}

fn section(out: &mut String, incident: &Incident) -> fmt::Result {
    writeln!(out, "\n## {}\n", Text(&incident.node))?;
    for text in incident.observation.lines() {
        writeln!(out, "- {}", Text(&text))?;
    }
    if let Some(what) = incident.not_shown() {
        writeln!(out, "- Not shown: {what}")?;
    }
    if incident.root_cause.is_none() {
        let mut text = String::new();
        nothing_found(&mut text, &incident.node, incident)?;
        return writeln!(out, "\n**{}**", Text(text.trim_end()));
    }
    for (heading, of, chains) in incident.sections() {
        writeln!(out, "\n### {heading}{}", Text(&of))?;
        chains.iter().try_for_each(|own| write_chain(out, own, incident.period()))?;
    }
    out.write_str("\n### Timeline (UTC)\n\n")?;
    for event in &incident.timeline {
        writeln!(out, "- {} {}", utc(event.at, true), Text(&event.what))?;
    }
    let rows = incident.processes.iter().map(|own| {
        let (cause, taken) = own.worst;
        vec![
            own.pid.to_string(),
            own.comm.clone(),
            own.chains.to_string(),
            format!("{:.1} s", own.attributed_seconds),
            format!("{:.1} s", own.lost_seconds),
            own.severity.label().to_owned(),
            format!("{cause} ({taken:.1} s)"),
        ]
    });
    table(
        out,
        "Time that chains took from processes",
        "PID,Process,Chains,Taken,Lost,Severity,Worst",
        rows,
    )
}

/// One chain.
pub fn chain(chain: &Chain) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_chain(&mut out, chain, Chain::ALWAYS);
    out
}

fn write_chain(out: &mut String, chain: &Chain, period: (f64, f64)) -> fmt::Result {
    let Chain { cause, effect, victim, .. } = chain;
    let utc = |at| format!("{} UTC", utc(at, true));
    let severities = chain.severities(period, utc);
    let (share, taken) = amounts(chain, period, utc);
    let (cause, effect) = (cause.to_string(), effect.to_string());
    writeln!(
        out,
        "\n#### {} → {}: {} (PID {}), {severities}\n\n{}\n\n| | |\n|---|---|",
        Text(&cause),
        Text(&effect),
        Text(&victim.comm),
        victim.pid,
        Text(&chain.sentence)
    )?;
    let numbers = chain.evidence.0.iter().map(|(name, value)| format!("{name}={}", plain(*value)));
    let path = chain.path.iter().map(|step| {
        format!("{} → {} ({}, {:.3} s)", step.from, step.to, step.mechanism, step.seconds)
    });
    let place = victim.place.describe(victim.pid);
    for (name, value) in [
        ("Culprit", culprit(chain)),
        ("Victim", format!("{} ({place}), thread {}", victim.comm, victim.tid)),
        ("Time", format!("{taken}; {share}")),
        ("Fix", chain.fix.clone()),
        ("Path", path.collect::<Vec<_>>().join("; ")),
        ("Evidence", numbers.collect::<Vec<_>>().join(" ")),
        ("Chain", chain.id.clone()),
    ] {
        match name {
            "Fix" => writeln!(out, "| {name} | {} |", Commands(&value))?,
            _ => writeln!(out, "| {name} | {} |", Text(&value))?,
        }
    }
    Ok(())
}

/// Writes the contents of a trace file other than chains.
fn recorded(out: &mut String, node: &Recorded) -> fmt::Result {
    for note in node.notes() {
        writeln!(out, "\n{}", Text(&note))?;
    }
    let calls = node.calls.iter().map(|own| {
        let first = if own.cold == Some(true) { " (first launches)" } else { "" };
        vec![
            own.pid.to_string(),
            own.comm.clone(),
            format!("{}{first}", own.op),
            own.count.to_string(),
            quantity::time(Some(own.sum_seconds)),
            quantity::time(own.p50_seconds),
            quantity::time(own.p99_seconds),
            quantity::time(Some(own.max_seconds)),
        ]
    });
    table(out, "Calls", "PID,Process,Call,Count,Total,p50,p99,Longest", calls)?;
    let waits = node.waits.iter().map(|own| {
        vec![
            own.pid.to_string(),
            own.comm.clone(),
            own.reason.to_owned(),
            own.count.to_string(),
            quantity::time(Some(own.seconds)),
            quantity::time(Some(own.max_seconds)),
        ]
    });
    table(out, "Waits off the CPU", "PID,Process,Reason,Count,Total,Longest", waits)
}

fn table(
    out: &mut String,
    title: &str,
    columns: &str,
    rows: impl ExactSizeIterator<Item = Vec<String>>,
) -> fmt::Result {
    let more = rows.len().saturating_sub(MAX_ROWS);
    if rows.len() == 0 {
        return Ok(());
    }
    let columns: Vec<_> = columns.split(',').collect();
    writeln!(out, "\n### {title}\n\n| {} |", columns.join(" | "))?;
    writeln!(out, "|{}", "---|".repeat(columns.len()))?;
    for row in rows.take(MAX_ROWS) {
        let cells: Vec<_> = row.iter().map(|cell| Text(cell).to_string()).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
    }
    match more {
        0 => Ok(()),
        more => writeln!(out, "\n{more} more are in the report of `explain --format json`."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_fix_are_code_and_the_rest_is_text() {
        let fix = Commands("Move *it*. Run: `ps | head`, `a\u{202e}b`.").to_string();
        assert_eq!(fix, "Move \\*it\\*. Run: `ps \\| head`, `a?b`.");
        assert_eq!(Commands("a `b").to_string(), "a \\`b", "an odd one is no code");
        assert_eq!(Commands("a `` b").to_string(), "a \\`\\` b", "nor is an empty one");
    }

    #[test]
    fn a_name_is_text_on_one_line() {
        let text = Text("a|b\n# [x](y) <b> `c` \u{202e}").to_string();
        assert_eq!(text, "a\\|b?\\# \\[x\\](y) \\<b\\> \\`c\\` ?");
    }
}
