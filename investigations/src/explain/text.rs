//! The report as text, for people and for assistants.

use std::fmt::Write as _;

use gpucause_engine::chain::Chain;
use gpucause_engine::utc::utc;

use super::Incident;
use crate::amounts::{amounts, losses, plain};
use crate::observation::Outcome;
use crate::untrusted_text::{is_control, line};

/// PIDs listed of a node.
const MOST_PIDS: usize = 20;

/// Numbers of evidence of a chain.
const MOST_EVIDENCE: usize = 3;

/// The report as text; `per_process` adds a table of the victims' losses. Names are untrusted: characters that control a
/// terminal are replaced.
pub fn render(incident: &Incident, per_process: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, incident, per_process);
    printable(&out)
}

fn write(out: &mut String, incident: &Incident, per_process: bool) -> std::fmt::Result {
    let node = line(&incident.node);
    for text in incident.observation.lines() {
        writeln!(out, "{}", line(&text))?;
    }
    if let Some(what) = incident.not_shown() {
        writeln!(out, "NOT SHOWN  {what}")?;
    }
    if incident.root_cause.is_none() {
        return nothing_found(out, &node, incident);
    }
    let count = incident.others.len() + 1;
    let plural = if count == 1 { "" } else { "s" };
    let (from, until) = incident.asked();
    let (begin, end) = (utc(from, true), utc(until, true));
    writeln!(out, "{node}: {count} causal chain{plural} from {begin} to {end} UTC")?;
    let day = date(&end);
    for (heading, of, chains) in incident.sections() {
        writeln!(out, "\n{}{}", heading.to_uppercase(), line(&of))?;
        chains.iter().try_for_each(|own| chain(out, own, incident.period(), day))?;
    }
    writeln!(out, "\nTIMELINE (UTC)")?;
    let mut day = String::new();
    for event in &incident.timeline {
        let at = utc(event.at, true);
        if date(&at) != day {
            day = date(&at).to_owned();
            writeln!(out, "  {day}")?;
        }
        writeln!(out, "  {}  {}", utc(event.at, false), line(&event.what))?;
    }
    if per_process {
        writeln!(
            out,
            "\nPROCESSES\n  {:>8} {:<16} {:>6} {:>10} {:>10} {:<9} WORST",
            "PID", "COMM", "CHAINS", "TAKEN", "LOST", "SEVERITY"
        )?;
        for loss in &incident.processes {
            let (cause, taken) = loss.worst;
            let comm = line(&loss.comm);
            writeln!(
                out,
                "  {:>8} {comm:<16} {:>6} {:>8.1} s {:>8.1} s {:<9} {cause} ({taken:.1} s)",
                loss.pid,
                loss.chains,
                loss.attributed_seconds,
                loss.lost_seconds,
                loss.severity.label()
            )?;
        }
    }
    Ok(())
}

/// There is no chain: reports so only for the observed time.
pub(super) fn nothing_found(out: &mut String, node: &str, incident: &Incident) -> std::fmt::Result {
    let (from, until) = incident.observation.window;
    if let Some(pid) = incident.unobserved_pid {
        writeln!(
            out,
            "{node}: PID {pid} is NOT OBSERVED: it has not called CUDA since gpucause started, started seconds ago, has ended, is excluded by the configuration (`processes`, limits), or there is no such process."
        )?;
        let (known, more) = incident.observed.split_at(incident.observed.len().min(MOST_PIDS));
        let (known, more) = (known.join(", "), more.len());
        return match more {
            _ if known.is_empty() => writeln!(out, "No process is observed."),
            0 => writeln!(out, "Observed PIDs: {known}."),
            more => writeln!(out, "Observed PIDs: {known} and {more} more."),
        };
    }
    match incident.outcome {
        Outcome::NotObserved if incident.observation.is_blind() => writeln!(
            out,
            "{node}: NOT OBSERVED in this time. Whether a GPU was starved is unknown."
        ),
        Outcome::NotObserved => writeln!(
            out,
            "{node}: NOT OBSERVED in full. No cause was found in the observed part; whether a GPU was starved in the rest is unknown."
        ),
        _ if incident.is_of_recorder && incident.left_out > 0 => {
            writeln!(out, "{node}: no causal chain is of the process that was recorded.")
        }
        _ if incident.left_out > 0 => {
            writeln!(out, "{node}: no causal chain matches the filter.")
        }
        Outcome::Found | Outcome::NothingFound => writeln!(
            out,
            "{node}: no causal chain. No host-side cause of GPU starvation was found from {} to {} UTC.",
            utc(from, true),
            utc(until, true)
        ),
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
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_control(c) && c != '\n' { '?' } else { c }).collect()
}
