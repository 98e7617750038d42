//! The report as text, for people and for assistants.

use std::fmt::{self, Write as _};

use gpucause_engine::chain::Chain;
use gpucause_engine::utc::utc;

use super::print::{self, Printer};
use super::tables::Table;
use super::{Incident, Report, TimelineEntry};
use crate::amounts::{amounts, losses, plain};
use crate::untrusted_text::{is_control, line};

/// Rows printed of a table; JSON has all.
const MOST_ROWS: usize = 40;
/// Numbers of evidence of a chain.
const MOST_EVIDENCE: usize = 3;

/// Lines for a terminal.
#[derive(Debug, Default)]
struct Lines {
    out: String,
    is_file: bool,
    /// The date in the heading of the chains.
    day: String,
}

/// The report as text; `per_process` adds a table of the victims' losses. Characters that control a terminal are replaced.
pub fn render_report(report: &Report, per_process: bool) -> String {
    let mut lines = Lines { is_file: report.file.is_some(), ..Lines::default() };
    // Writing to a String cannot fail.
    let _ = print::report(report, per_process, &mut lines);
    printable(&lines.out)
}

/// The chains of a node as text; `per_process` adds a table of the victims' losses. Names are untrusted: characters that control a
/// terminal are replaced.
pub fn render(incident: &Incident, per_process: bool) -> String {
    let mut lines = Lines::default();
    // Writing to a String cannot fail.
    let _ = lines.node(incident, None);
    let _ = print::incident(incident, per_process, &mut lines);
    printable(&lines.out)
}

impl Printer for Lines {
    fn node(&mut self, incident: &Incident, address: Option<&str>) -> fmt::Result {
        date(&utc(incident.asked().1, true)).clone_into(&mut self.day);
        if self.is_file {
            writeln!(self.out)?;
        }
        address.map_or(Ok(()), |address| writeln!(self.out, "\n== {}", line(address)))
    }

    fn line(&mut self, text: &str) -> fmt::Result {
        writeln!(self.out, "{}", line(text))
    }

    fn missing(&mut self, label: &str, text: &str) -> fmt::Result {
        writeln!(self.out, "{}  {}", label.to_uppercase(), line(text))
    }

    fn verdict(&mut self, sentences: &[String]) -> fmt::Result {
        sentences.iter().try_for_each(|sentence| self.line(sentence))
    }

    fn heading(&mut self, title: &str, about: &str) -> fmt::Result {
        writeln!(self.out, "\n{}{}", title.to_uppercase(), line(about))
    }

    fn chain(&mut self, own: &Chain, period: (f64, f64)) -> fmt::Result {
        chain(&mut self.out, own, period, &self.day)
    }

    fn timeline(&mut self, timeline: &[TimelineEntry]) -> fmt::Result {
        let mut day = String::new();
        for event in timeline {
            let at = utc(event.at, true);
            if date(&at) != day {
                date(&at).clone_into(&mut day);
                writeln!(self.out, "  {day}")?;
            }
            writeln!(self.out, "  {}  {}", utc(event.at, false), line(&event.what))?;
        }
        Ok(())
    }

    fn table(&mut self, table: &Table) -> fmt::Result {
        self.heading(table.title, &table.about)?;
        let names: Vec<_> = table.columns.iter().map(|(name, _)| name.to_uppercase()).collect();
        self.row(table, &names, "")?;
        for (cells, mark) in table.rows.iter().take(MOST_ROWS) {
            self.row(table, cells, mark)?;
        }
        self.more(table.rows.len().saturating_sub(MOST_ROWS))?;
        table.footnote.map_or(Ok(()), |footnote| writeln!(self.out, "  {footnote}"))
    }

    fn stack(&mut self, about: &str, frames: &[String]) -> fmt::Result {
        writeln!(self.out, "  {}", line(about))?;
        frames.iter().try_for_each(|frame| writeln!(self.out, "      {}", line(frame)))
    }

    fn more(&mut self, count: usize) -> fmt::Result {
        match count {
            0 => Ok(()),
            count => writeln!(self.out, "  ... and {count} more, see --format json"),
        }
    }
}

impl Lines {
    fn row(&mut self, table: &Table, cells: &[String], mark: &str) -> fmt::Result {
        self.out.push(' ');
        for (&(_, width), cell) in table.columns.iter().zip(cells) {
            let (cell, cells) = (line(cell), width.unsigned_abs());
            match width < 0 {
                true => write!(self.out, " {cell:<cells$}")?,
                false => write!(self.out, " {cell:>cells$}")?,
            }
        }
        writeln!(self.out, "{mark}")
    }
}

/// One chain as text.
pub fn render_chain(own: &Chain) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = chain(&mut out, own, Chain::ALWAYS, date(&utc(own.last_seen, true)));
    printable(&out)
}

/// The date of a time.
fn date(time: &str) -> &str {
    time.split(' ').next().unwrap_or_default()
}

/// A chain with the time that it took in a period. The report has the `day`: times of other days have their date.
fn chain(out: &mut String, chain: &Chain, period: (f64, f64), day: &str) -> std::fmt::Result {
    let Chain { cause, effect, victim, .. } = chain;
    let id = line(&chain.id);
    let time = |at| {
        let time = utc(at, true);
        time.strip_prefix(day).map_or(&*time, str::trim_start).to_owned()
    };
    let (severities, (share, taken)) =
        (chain.severities(period, time), amounts(chain, period, time));
    let sentence = match chain.sentence.strip_suffix(&*chain.when()) {
        Some(sentence) => format!("{sentence}{}", chain.when_by(time)),
        None => chain.sentence.clone(),
    };
    writeln!(
        out,
        "  {cause} -> {effect}  [{severities}]  {} (pid {}, thread {})  id {id}",
        line(&victim.comm),
        victim.pid,
        victim.tid
    )?;
    writeln!(out, "    {}", line(&sentence))?;
    writeln!(
        out,
        "    victim: {} ({})",
        line(&victim.comm),
        line(&victim.place.describe(victim.pid))
    )?;
    if let Some((own, place)) = chain.culprit.as_ref().zip(chain.place_of_culprit()) {
        writeln!(out, "    culprit: {} ({})", line(&own.comm), line(&place))?;
    } else if cause.is_of_the_program() {
        writeln!(out, "    culprit: the program itself")?;
    }
    if !chain.losses.is_empty() {
        writeln!(out, "    lost to: {}", line(&losses(chain)))?;
    }
    for step in &chain.path {
        let (from, to, mechanism) = (line(&step.from), line(&step.to), line(&step.mechanism));
        writeln!(out, "    {from} --({mechanism}, {:.3} s)--> {to}", step.seconds)?;
    }
    writeln!(out, "    {share}; {taken}")?;
    evidence(out, chain)?;
    writeln!(out, "    fix: {}", line(&chain.fix))
}

/// The first numbers, which a rule sets by what they prove; JSON has all.
fn evidence(out: &mut String, chain: &Chain) -> std::fmt::Result {
    let all = &chain.evidence.0;
    let shown = all.iter().take(MOST_EVIDENCE);
    let shown = shown.map(|(name, value)| format!("{}={}", line(name), plain(*value)));
    write!(out, "    evidence: {}", shown.collect::<Vec<_>>().join(" "))?;
    match all.len().saturating_sub(MOST_EVIDENCE) {
        0 => writeln!(out),
        more => writeln!(out, " +{more} more: --format json"),
    }
}

/// Replaces characters that control a terminal, except line ends.
fn printable(text: &str) -> String {
    text.chars().map(|c| if is_control(c) && c != '\n' { '?' } else { c }).collect()
}
