//! The report as Markdown, for a ticket, a wiki or a chat.

use std::fmt::{self, Write as _};

use gpucause_engine::chain::Chain;
use gpucause_engine::utc::utc;

use super::print::{self, Printer};
use super::tables::{MOST_ROWS, Table};
use super::{Incident, Report, TimelineEntry};
use crate::amounts::plain;
use crate::html::{commands, facts};
use crate::untrusted_text::is_control;

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
    let mut page = Page(format!("# Why was the GPU not fed? {}\n\n", Text(&report.title())));
    // Writing to a String cannot fail.
    let _ = print::report(report, true, &mut page);
    page.0
}

/// One chain.
pub fn chain(chain: &Chain) -> String {
    let mut page = Page(String::new());
    // Writing to a String cannot fail.
    let _ = page.chain(chain, Chain::ALWAYS);
    page.0
}

struct Page(String);

impl Printer for Page {
    fn node(&mut self, incident: &Incident, _address: Option<&str>) -> fmt::Result {
        writeln!(self.0, "\n## {}\n", Text(&incident.node))
    }

    fn line(&mut self, text: &str) -> fmt::Result {
        writeln!(self.0, "- {}", Text(text.trim_start()))
    }

    fn missing(&mut self, label: &str, text: &str) -> fmt::Result {
        writeln!(self.0, "- **{label}:** {}", Text(text))
    }

    fn verdict(&mut self, sentences: &[String]) -> fmt::Result {
        writeln!(self.0, "\n**{}**", Text(&sentences.join(" ")))
    }

    fn heading(&mut self, title: &str, about: &str) -> fmt::Result {
        writeln!(self.0, "\n### {title}{}", Text(about))
    }

    fn chain(&mut self, chain: &Chain, period: (f64, f64)) -> fmt::Result {
        let Chain { cause, effect, victim, .. } = chain;
        let severities = chain.severities(period, |at| format!("{} UTC", utc(at, true)));
        let (cause, effect) = (cause.to_string(), effect.to_string());
        writeln!(
            self.0,
            "\n#### {} → {}: {} (PID {}), {severities}\n\n{}\n\n| | |\n|---|---|",
            Text(&cause),
            Text(&effect),
            Text(&victim.comm),
            victim.pid,
            Text(&chain.sentence)
        )?;
        let numbers =
            chain.evidence.0.iter().map(|(name, value)| format!("{name}={}", plain(*value)));
        let path = chain.path.iter().map(|step| {
            format!("{} → {} ({}, {:.3} s)", step.from, step.to, step.mechanism, step.seconds)
        });
        for (name, value) in facts(chain, period) {
            writeln!(self.0, "| {name} | {} |", Text(&value))?;
        }
        writeln!(self.0, "| Fix | {} |", Commands(&chain.fix))?;
        for (name, value) in [
            ("Path", path.collect::<Vec<_>>().join("; ")),
            ("Evidence", numbers.collect::<Vec<_>>().join(" ")),
            ("Chain", chain.id.clone()),
        ] {
            writeln!(self.0, "| {name} | {} |", Text(&value))?;
        }
        Ok(())
    }

    fn timeline(&mut self, timeline: &[TimelineEntry]) -> fmt::Result {
        self.0.push('\n');
        for event in timeline {
            writeln!(self.0, "- {} {}", utc(event.at, true), Text(&event.what))?;
        }
        Ok(())
    }

    fn table(&mut self, table: &Table) -> fmt::Result {
        self.heading(table.title, &table.about)?;
        let names: Vec<_> = table.columns.iter().map(|(name, _)| *name).collect();
        writeln!(self.0, "\n| {} |\n|{}", names.join(" | "), "---|".repeat(names.len()))?;
        for (cells, _) in table.rows.iter().take(MOST_ROWS) {
            let cells: Vec<_> = cells.iter().map(|own| Text(own.trim_end()).to_string()).collect();
            writeln!(self.0, "| {} |", cells.join(" | "))?;
        }
        self.more(table.rows.len().saturating_sub(MOST_ROWS))?;
        table.footnote.map_or(Ok(()), |footnote| writeln!(self.0, "\n{footnote}"))
    }

    fn stack(&mut self, about: &str, frames: &[String]) -> fmt::Result {
        writeln!(self.0, "\n{}\n", Text(about))?;
        frames.iter().try_for_each(|frame| writeln!(self.0, "- {}", Text(frame)))
    }

    fn more(&mut self, count: usize) -> fmt::Result {
        match count {
            0 => Ok(()),
            count => {
                writeln!(self.0, "\n{count} more are in the report of `explain --format json`.")
            }
        }
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
