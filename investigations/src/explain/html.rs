//! The report as one HTML file without anything beside it, for a ticket.

use std::fmt::{self, Write as _};

use gpucause_engine::chain::Chain;

use super::print::{self, Printer};
use super::tables::{MOST_ROWS, Table};
use super::{Incident, Report, TimelineEntry};
use crate::html::{self, PathDetails, Periods, STYLE, Text, time};

/// The file loads nothing, and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The report.
pub fn of(report: &Report) -> String {
    let mut page = Page(String::with_capacity(32 << 10));
    // Writing to a String cannot fail.
    let _ = page.write(report);
    page.0
}

struct Page(String);

impl Page {
    fn write(&mut self, report: &Report) -> fmt::Result {
        let title = report.title();
        let title = Text(&title);
        write!(
            self.0,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>gpucause: {title}</title>\n<style>\n{STYLE}</style></head>\n\
             <body>\n<header><h1>Why was the GPU not fed? {title}</h1></header>\n<main>\n"
        )?;
        print::report(report, true, self)?;
        self.0.write_str("</main>\n</body>\n</html>\n")
    }
}

impl Printer for Page {
    fn node(&mut self, incident: &Incident, _address: Option<&str>) -> fmt::Result {
        writeln!(self.0, "<h2>{}</h2>", Text(&incident.node))
    }

    fn line(&mut self, text: &str) -> fmt::Result {
        writeln!(self.0, "<p>{}</p>", Text(text.trim_start()))
    }

    fn missing(&mut self, label: &str, text: &str) -> fmt::Result {
        writeln!(self.0, "<p class=\"problem\">{label}: {}</p>", Text(text))
    }

    fn verdict(&mut self, sentences: &[String]) -> fmt::Result {
        writeln!(self.0, "<p><strong>{}</strong></p>", Text(&sentences.join(" ")))
    }

    fn heading(&mut self, title: &str, about: &str) -> fmt::Result {
        writeln!(self.0, "<h3>{title}{}</h3>", Text(about))
    }

    fn chain(&mut self, chain: &Chain, period: (f64, f64)) -> fmt::Result {
        let periods = Periods { severity: period, time: period };
        html::chain(&mut self.0, chain, periods, PathDetails::Open)
    }

    fn timeline(&mut self, timeline: &[TimelineEntry]) -> fmt::Result {
        self.0.write_str("<ol>\n")?;
        for event in timeline {
            writeln!(self.0, "<li>{} {}</li>", time(event.at), Text(&event.what))?;
        }
        self.0.write_str("</ol>\n")
    }

    fn table(&mut self, table: &Table) -> fmt::Result {
        let (title, about) = (table.title, Text(&table.about));
        write!(
            self.0,
            "<div class=\"scroll\"><table><caption>{title}{about}</caption><thead><tr>"
        )?;
        for (name, _) in table.columns {
            write!(self.0, "<th scope=\"col\">{name}</th>")?;
        }
        self.0.write_str("</tr></thead><tbody>\n")?;
        for (cells, _) in table.rows.iter().take(MOST_ROWS) {
            self.0.write_str("<tr>")?;
            cells
                .iter()
                .try_for_each(|cell| write!(self.0, "<td>{}</td>", Text(cell.trim_end())))?;
            self.0.write_str("</tr>\n")?;
        }
        self.0.write_str("</tbody></table></div>\n")?;
        self.more(table.rows.len().saturating_sub(MOST_ROWS))?;
        table.footnote.map_or(Ok(()), |footnote| self.line(footnote))
    }

    fn stack(&mut self, about: &str, frames: &[String]) -> fmt::Result {
        writeln!(self.0, "<details><summary>{}</summary><pre>", Text(about))?;
        frames.iter().try_for_each(|frame| writeln!(self.0, "{}", Text(frame)))?;
        self.0.write_str("</pre></details>\n")
    }

    fn more(&mut self, count: usize) -> fmt::Result {
        match count {
            0 => Ok(()),
            count => writeln!(
                self.0,
                "<p>{count} more are in the report of <code>explain --format json</code>.</p>"
            ),
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
