//! HTML of the page: its head, and a section for each subject.

use std::fmt::{self, Write};

use gpucause_engine::chain::Chain;
use gpucause_engine::quantity::bytes;
use gpucause_investigations::html::{self, PathDetails, Periods, Text, badge, time};
use gpucause_investigations::observation::sentence;

use super::{Body, FLIGHTS, Head, Hidden, View, table, timeline};
use crate::flights::FlightFile;
use crate::version;

/// Chains that are shown in full, ongoing ones first; the API has all.
const MAX_CHAINS: usize = 20;

pub(super) fn write(
    out: &mut dyn Write,
    head: &Head<'_>,
    body: Result<&Body, Hidden<'_>>,
    view: &View,
) -> fmt::Result {
    let node = Text(head.node);
    // A file does not change, and what is not shown needs no newer one.
    let mode = match (head.file, body) {
        (Some(_), _) | (_, Err(Hidden::NoCredentials(_))) => "static",
        (None, Err(Hidden::OtherSite)) => "again",
        (None, Ok(_)) => "live",
    };
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>gpucause: {node}</title><link rel=\"stylesheet\" href=\"/live.css\">\
         <script src=\"/live.js\" defer></script></head>\n<body data-mode=\"{mode}\">\n<a class=\"skip\" href=\"#main\">To the content</a>\n<header>\n"
    )?;
    writeln!(
        out,
        "<h1>gpucause on {node}</h1>\n<p class=\"dim\">Shows why a GPU is not being fed. Version {}.</p>",
        Text(version::LONG)
    )?;
    if let Some(file) = head.file {
        writeln!(out, "<p>Trace file <code>{}</code></p>", Text(file))?;
    }
    status(out, head, body.ok())?;
    out.write_str("</header>\n<main id=\"main\">\n")?;
    match body {
        Ok(body) => sections(out, head, body, view)?,
        Err(hidden) => refusal(out, hidden, head.file.is_some())?,
    }
    out.write_str("</main>\n<footer>\n")?;
    links(out, head)?;
    out.write_str("</footer>\n</body>\n</html>\n")
}

fn status(out: &mut dyn Write, head: &Head<'_>, body: Option<&Body>) -> fmt::Result {
    let current = &head.observation.current;
    writeln!(
        out,
        "<div id=\"status\" data-live>\n<p class=\"state {}\">Observation: <strong>{}</strong></p>",
        current.state,
        Text(&sentence(current))
    )?;
    let Some(body) = body else { return out.write_str("</div>\n") };
    match &body.problem {
        Some(problem) => writeln!(
            out,
            "<p class=\"problem\">Last error, {}: {}</p>",
            time(problem.at),
            Text(&problem.what)
        )?,
        None if head.file.is_some() => {}
        None => out.write_str("<p class=\"dim\">No error of evaluations, configuration or flight records since start.</p>\n")?,
    }
    out.write_str("</div>\n")?;
    if head.file.is_none() {
        out.write_str(
            "<p class=\"row\"><button type=\"button\" id=\"pause\" aria-pressed=\"false\" hidden>Pause updates</button>\
             <span id=\"connection\" role=\"status\"></span></p>\n",
        )?;
    }
    Ok(())
}

fn sections(out: &mut dyn Write, head: &Head<'_>, body: &Body, view: &View) -> fmt::Result {
    out.write_str("<section id=\"chains\" data-live aria-labelledby=\"chains-title\">\n")?;
    chains(out, &body.chains, head.file.is_some())?;
    out.write_str("</section>\n<section id=\"processes\" data-live aria-labelledby=\"processes-title\">\n<h2 id=\"processes-title\">Processes</h2>\n")?;
    table::write(out, (&body.processes, &body.chains), head.file.is_some(), view)?;
    let title = if head.file.is_some() { "Timeline" } else { "Last 15 minutes" };
    writeln!(
        out,
        "</section>\n<section id=\"timeline\" data-live aria-labelledby=\"timeline-title\">\n<h2 id=\"timeline-title\">{title}</h2>"
    )?;
    timeline::write(out, body, head.file.is_some())?;
    out.write_str("</section>\n")?;
    if head.file.is_some() {
        return Ok(());
    }
    out.write_str("<section id=\"flights\" data-live aria-labelledby=\"flights-title\">\n<h2 id=\"flights-title\">Flight records</h2>\n")?;
    flights(out, body.flights.as_deref())?;
    out.write_str("</section>\n")
}

fn chains(out: &mut dyn Write, all: &[Chain], is_file: bool) -> fmt::Result {
    let ongoing_title = if is_file { "Ongoing at the end" } else { "Ongoing" };
    let (ended, ongoing): (Vec<&Chain>, Vec<&Chain>) =
        all.iter().partition(|chain| chain.ongoing == Some(false));
    // Live, an ongoing chain is as severe as it is now.
    let now = |chain: &Chain| match is_file {
        true => Periods::ALWAYS,
        false => Periods { severity: (chain.last_seen, f64::INFINITY), ..Periods::ALWAYS },
    };
    let worst = ongoing.iter().map(|chain| chain.severity_in(now(chain).severity)).max();
    out.write_str("<h2 id=\"chains-title\">Causal chains</h2>\n")?;
    match (worst, ended.is_empty()) {
        (Some(worst), _) => {
            writeln!(
                out,
                "<p id=\"summary\">{ongoing_title}: {}, worst {}</p>",
                ongoing.len(),
                badge(worst)
            )?;
        }
        (None, true) => out
            .write_str("<p id=\"summary\">No causal chain was found in the observed time.</p>\n")?,
        (None, false) => out.write_str("<p id=\"summary\">No causal chain is ongoing.</p>\n")?,
    }
    for chain in ongoing.iter().take(MAX_CHAINS) {
        html::chain(out, chain, now(chain), PathDetails::Closed)?;
    }
    rest(out, ongoing.len())?;
    if ended.is_empty() {
        return Ok(());
    }
    writeln!(out, "<details id=\"ended\"><summary>Ended: {}</summary>", ended.len())?;
    for chain in ended.iter().take(MAX_CHAINS) {
        html::chain(out, chain, Periods::ALWAYS, PathDetails::Closed)?;
    }
    rest(out, ended.len())?;
    out.write_str("</details>\n")
}

fn rest(out: &mut dyn Write, count: usize) -> fmt::Result {
    match count.saturating_sub(MAX_CHAINS) {
        0 => Ok(()),
        more => {
            writeln!(
                out,
                "<p>{more} more are in <a href=\"/api/v1/chains\">/api/v1/chains</a>.</p>"
            )
        }
    }
}

fn flights(out: &mut dyn Write, files: Option<&[FlightFile]>) -> fmt::Result {
    let Some(files) = files else {
        return out.write_str(
            "<p>There is no flight recorder: <code>--flight-recorder.dir</code> is not set.</p>\n",
        );
    };
    if files.is_empty() {
        return out.write_str("<p>None yet: one is written when a chain of high severity begins, and on SIGUSR2.</p>\n");
    }
    out.write_str("<ul>\n")?;
    for file in files {
        let name = Text(&file.name);
        writeln!(
            out,
            "<li><a href=\"{FLIGHTS}{name}\" download>{name}</a>, {}, {}</li>",
            bytes(file.bytes as f64),
            time(file.written)
        )?;
    }
    out.write_str(
        "</ul>\n<p class=\"dim\">Read one with <code>gpucause explain --db FILE</code>.</p>\n",
    )
}

fn refusal(out: &mut dyn Write, hidden: Hidden<'_>, is_file: bool) -> fmt::Result {
    let token = match hidden {
        Hidden::OtherSite => {
            return out.write_str(
                "<p>Another site led here. <a href=\"/\">Show processes and causal chains</a></p>\n",
            );
        }
        Hidden::NoCredentials(token) => token,
    };
    out.write_str(
        "<h2>Log in</h2>\n<p>Processes, causal chains and flight records are shown after a login, as for <code>/api/v1/chains</code>.</p>\n\
         <p><a href=\"/login\">Log in</a>",
    )?;
    if is_file {
        return out.write_str(
            " with any user name and the password that <code>gpucause view</code> printed.</p>\n",
        );
    }
    if let Some(path) = token {
        write!(
            out,
            " with any user name and the token of this host as the password: <code>sudo cat {}</code>",
            Text(path)
        )?;
    }
    out.write_str(
        ".</p>\n<p>From other hosts, use a password or a verified client certificate (<code>--web.config.file</code>).</p>\n",
    )
}

fn links(out: &mut dyn Write, head: &Head<'_>) -> fmt::Result {
    let path = Text(head.telemetry_path);
    let metrics = format!("<li><a href=\"{path}\">Metrics</a></li>");
    let credentials = "(with credentials)";
    writeln!(
        out,
        "<nav aria-label=\"Other pages\"><ul>{}<li><a href=\"/api/v1/chains\">Causal chains</a> {credentials}</li>\
         <li><a href=\"/api/v1/processes\">Processes</a> {credentials}</li>\
         <li><a href=\"/api/v1/timeline\">Timeline</a> {credentials}</li>\
         <li><a href=\"/-/healthy\">Health</a></li><li><a href=\"/-/ready\">Readiness</a></li></ul></nav>",
        if head.file.is_some() { "" } else { &metrics }
    )
}
