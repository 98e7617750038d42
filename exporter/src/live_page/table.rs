//! The table of processes.

use std::fmt::{self, Write};

use gpucause_abi::Nanos;
use gpucause_engine::chain::Chain;
use gpucause_engine::quantity::{duration, percent, rate, ratio};
use gpucause_investigations::html::Text;

use super::processes::{ProcessRow, Processes};
use super::view::{Chosen, Sort, View};
use crate::time_shares::Part;

/// Columns with a name that a reader sees, and the order that their links choose.
const COLUMNS: [(&str, Option<Sort>, bool); 9] = [
    ("PID", Some(Sort::Pid), true),
    ("Name", Some(Sort::Name), false),
    ("Launches/s", Some(Sort::Rate), true),
    ("p50", Some(Sort::P50), true),
    ("p99", Some(Sort::P99), true),
    ("Spread", Some(Sort::Spread), true),
    ("Lost", Some(Sort::Lost), true),
    ("Where dispatcher time goes", None, false),
    ("Cause", None, false),
];
/// Causes of a process in the table.
const MAX_CAUSES: usize = 3;
/// Width of a bar in its own units.
const BAR: f64 = 1000.0;

pub(super) fn write(
    out: &mut dyn Write,
    (processes, chains): (&Processes, &[Chain]),
    is_file: bool,
    view: &View,
) -> fmt::Result {
    let chosen = view.rows(&processes.processes);
    form(out, view)?;
    out.write_str("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table of processes\"><table id=\"process-table\">\n")?;
    caption(out, processes, (&chosen, is_file), view)?;
    out.write_str("<thead><tr>")?;
    for (name, sort, is_number) in COLUMNS {
        head(out, (name, sort, is_number), view)?;
    }
    out.write_str("</tr></thead>\n<tbody>\n")?;
    // The cause beside a bar is of the time of the bar.
    let last = chains.iter().map(|chain| chain.last_seen).fold(f64::NEG_INFINITY, f64::max);
    let window = (last - processes.window_seconds.unwrap_or(f64::INFINITY), f64::INFINITY);
    for row in &chosen.shown {
        process(out, row, chains, window)?;
    }
    out.write_str("</tbody></table></div>\n")?;
    pages(out, &chosen, view)?;
    legend(out)
}

fn form(out: &mut dyn Write, view: &View) -> fmt::Result {
    writeln!(
        out,
        "<form class=\"row\" action=\"/\" role=\"search\"><label for=\"find\">Name or PID</label>\
         <input id=\"find\" name=\"find\" type=\"search\" maxlength=\"64\" value=\"{}\">\
         <input type=\"hidden\" name=\"sort\" value=\"{}\"><button id=\"find-button\">Find</button></form>",
        Text(&view.find),
        view.sort_key()
    )
}

fn caption(
    out: &mut dyn Write,
    processes: &Processes,
    (chosen, is_file): (&Chosen<'_>, bool),
    view: &View,
) -> fmt::Result {
    out.write_str("<caption>")?;
    match processes.window_seconds {
        Some(seconds) if is_file => write!(out, "All of the file, {seconds:.1} s. ")?,
        None if is_file => out.write_str("The file has no numbers of processes. ")?,
        Some(seconds) => write!(out, "The last {seconds:.1} s. ")?,
        None => out.write_str("No numbers yet: they are of the time between two evaluations. ")?,
    }
    if processes.events_only {
        out.write_str("The file has single events and no accounts: launches are only those that were recorded, and lost time is unknown. ")?;
    }
    write!(out, "Processes: {}", chosen.count)?;
    if !view.find.is_empty() {
        write!(out, " of {} match {}", processes.processes.len(), Text(&view.find))?;
    }
    let listed = processes.processes.iter().filter(|row| !row.has_ended).count() as u64;
    if let Some(live) = processes.live.filter(|&live| live > listed) {
        write!(out, "; {} more are aggregated into other, or have made no call", live - listed)?;
    }
    out.write_str(". A dispatcher thread is a thread that calls CUDA to feed the GPU; spread is p99 / p50 of warm launches.</caption>\n")
}

fn head(
    out: &mut dyn Write,
    (name, sort, is_number): (&str, Option<Sort>, bool),
    view: &View,
) -> fmt::Result {
    let class = if is_number { " class=\"number\"" } else { "" };
    let Some(sort) = sort else {
        return write!(out, "<th scope=\"col\"{class}>{name}</th>");
    };
    let ascending = matches!(sort, Sort::Pid | Sort::Name);
    let order = match (sort == view.sort, ascending) {
        (false, _) => "",
        (true, true) => " aria-sort=\"ascending\"",
        (true, false) => " aria-sort=\"descending\"",
    };
    let mark = match (sort == view.sort, ascending) {
        (false, _) => "",
        (true, true) => " <span aria-hidden=\"true\">▲</span>",
        (true, false) => " <span aria-hidden=\"true\">▼</span>",
    };
    let link = View { sort, page: 0, ..view.clone() };
    write!(
        out,
        "<th scope=\"col\"{class}{order}><a id=\"sort-{}\" data-swap href=\"{}\">{name}</a>{mark}</th>",
        link.sort_key(),
        Text(&link.href())
    )
}

fn process(
    out: &mut dyn Write,
    row: &ProcessRow,
    chains: &[Chain],
    window: (f64, f64),
) -> fmt::Result {
    let time =
        |seconds: Option<f64>| seconds.map(|seconds| (seconds, duration(Some(nanos(seconds)))));
    write!(
        out,
        "<tr data-pid=\"{}\"><td class=\"number\">{}</td><th scope=\"row\"><span class=\"name\">{}</span>{}</th>",
        row.pid,
        row.pid,
        Text(&row.comm),
        if row.has_ended { " <small>exited</small>" } else { "" }
    )?;
    number(out, "rate", Some((row.launches_per_second, rate(row.launches_per_second))))?;
    let is_sample = row.timed_share.is_some_and(|share| share < 1.0);
    let of_sample = |(value, mut text): (f64, String)| {
        if is_sample {
            text.push_str(&format!(" <small>of the {} timed</small>", percent(row.timed_share)));
        }
        (value, text)
    };
    number(out, "p50", time(row.p50_seconds).map(of_sample))?;
    number(out, "p99", time(row.p99_seconds).map(of_sample))?;
    let spread = row.spread.map(|spread| (spread, ratio(Some(spread))));
    number(out, "spread", spread.map(of_sample))?;
    let lost = |share| format!("{:.2} s ({})", row.lost_seconds, percent(Some(share)));
    number(out, "lost", row.lost_share.map(|share| (row.lost_seconds, lost(share))))?;
    out.write_str("<td>")?;
    bar(out, row)?;
    out.write_str("</td><td>")?;
    let own = |chain: &&Chain| chain.victim.pid == row.pid && chain.ongoing != Some(false);
    let mut ongoing: Vec<_> = chains.iter().filter(own).collect();
    ongoing.sort_by(|a, b| a.worst_first(b, window));
    for (index, chain) in ongoing.iter().enumerate().take(MAX_CAUSES) {
        let (comma, number) =
            if index == 0 { ("", String::new()) } else { (", ", format!("-{index}")) };
        let (id, pid) = (Text(&chain.id), row.pid);
        write!(
            out,
            "{comma}<a id=\"cause-{pid}{number}\" href=\"#chain-{id}\">{}</a>",
            chain.cause
        )?;
    }
    if ongoing.is_empty() {
        out.write_str("-")?;
    }
    out.write_str("</td></tr>\n")
}

fn number(out: &mut dyn Write, class: &str, value: Option<(f64, String)>) -> fmt::Result {
    match value {
        Some((value, text)) => {
            write!(
                out,
                "<td class=\"number\"><data class=\"{class}\" value=\"{value}\">{text}</data></td>"
            )
        }
        None => out.write_str("<td class=\"number\">-</td>"),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made of nanoseconds")]
fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9).round() as u64)
}

/// Where the time went, as a bar whose description has the same numbers.
fn bar(out: &mut dyn Write, row: &ProcessRow) -> fmt::Result {
    let total = row.dispatcher_seconds;
    if total <= 0.0 {
        return out.write_str("-");
    }
    let used: Vec<_> = row.parts.seconds().filter(|(_, seconds)| *seconds > 0.0).collect();
    let share = |seconds: f64| percent(Some(seconds / total));
    let text: Vec<_> = used
        .iter()
        .map(|&(part, seconds)| format!("{} {}", part.label(), share(seconds)))
        .collect();
    let text = text.join(", ");
    write!(
        out,
        "<svg class=\"bar\" viewBox=\"0 0 {BAR} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{text}\"><title>{text}</title>"
    )?;
    let mut x = 0.0;
    for (part, seconds) in used {
        let width = seconds / total * BAR;
        write!(
            out,
            "<rect class=\"{}\" x=\"{x:.1}\" width=\"{width:.1}\" height=\"10\"/>",
            part.key()
        )?;
        x += width;
    }
    out.write_str("</svg>")
}

fn pages(out: &mut dyn Write, chosen: &Chosen<'_>, view: &View) -> fmt::Result {
    if chosen.pages == 1 {
        return Ok(());
    }
    let link = |out: &mut dyn Write, page: usize, id: &str, name: &str| {
        let href = View { page, ..view.clone() }.href();
        write!(out, "<li><a id=\"{id}\" data-swap href=\"{}\">{name}</a></li>", Text(&href))
    };
    out.write_str("<nav aria-label=\"Pages of the table\"><ul>")?;
    if chosen.page > 0 {
        link(out, 0, "page-first", "First")?;
        link(out, chosen.page - 1, "page-previous", "Previous")?;
    }
    write!(out, "<li aria-current=\"page\">Page {} of {}</li>", chosen.page + 1, chosen.pages)?;
    if chosen.page + 1 < chosen.pages {
        link(out, chosen.page + 1, "page-next", "Next")?;
        link(out, chosen.pages - 1, "page-last", "Last")?;
    }
    out.write_str("</ul></nav>\n")
}

fn legend(out: &mut dyn Write) -> fmt::Result {
    out.write_str("<ul class=\"legend\" aria-label=\"Parts of the bar\">")?;
    for part in Part::ALL {
        let lost = if part.is_lost() { " (lost)" } else { "" };
        write!(
            out,
            "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"10\" height=\"10\"/></svg>{}{lost}</li>",
            part.key(),
            part.label()
        )?;
    }
    out.write_str("</ul>\n")
}
