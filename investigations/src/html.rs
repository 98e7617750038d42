//! Pieces of HTML that the live page and the report of `explain --html` share. Everything that a process can choose goes through
//! [`Text`].

use std::fmt::{self, Write};

use gpucause_engine::chain::{Chain, Severity, Victim};
use gpucause_engine::utc::utc;

use crate::amounts::{amounts, losses, plain};
use crate::untrusted_text::is_control;

/// The style sheet of both.
pub const STYLE: &str = include_str!("html/style.css");

/// Text in HTML, in an element or in a quoted attribute: markup is escaped, and invisible characters are replaced.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if is_control(c) => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The parts of a fix, and whether each is a command, which is between backticks.
pub(crate) fn commands(fix: &str) -> Vec<(&str, bool)> {
    let parts: Vec<&str> = fix.split('`').collect();
    let has_empty = parts.iter().skip(1).step_by(2).any(|part| part.trim().is_empty());
    if parts.len().is_multiple_of(2) || has_empty {
        return vec![(fix, false)];
    }
    parts.into_iter().enumerate().map(|(index, part)| (part, index % 2 == 1)).collect()
}

/// A fix with its commands as code.
struct Fix<'a>(&'a str);

impl fmt::Display for Fix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        commands(self.0).into_iter().try_for_each(|(part, is_command)| match is_command {
            true => write!(f, "<code>{}</code>", Text(part)),
            false => write!(f, "{}", Text(part)),
        })
    }
}

/// Initial state of a chain's path, which a reader can open. A ticket shows it at once, since tickets are printed, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathDetails {
    /// Shown.
    Open,
    /// Hidden until a reader opens it.
    Closed,
}

/// A severity as a label with a colour.
pub const fn badge(severity: Severity) -> &'static str {
    match severity {
        Severity::Low => "<span class=\"badge low\">low</span>",
        Severity::Medium => "<span class=\"badge medium\">medium</span>",
        Severity::High => "<span class=\"badge high\">high</span>",
        Severity::Critical => "<span class=\"badge critical\">critical</span>",
    }
}

/// The period that a shown chain's severity is of, and that of the time that it took.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// Period of the severity.
    pub severity: (f64, f64),
    /// Period of the time.
    pub time: (f64, f64),
}

impl Periods {
    /// The whole of every chain.
    pub const ALWAYS: Self = Self { severity: Chain::ALWAYS, time: Chain::ALWAYS };
}

/// A chain with its culprit, path, evidence and fix, and the time that it took.
///
/// # Errors
/// When `out` fails; a `String` does not.
pub fn chain(
    out: &mut dyn Write,
    chain: &Chain,
    periods: Periods,
    path: PathDetails,
) -> fmt::Result {
    let Chain { cause, effect, victim, .. } = chain;
    let (id, severity) = (Text(&chain.id), chain.severity_in(periods.severity));
    let utc = |at| format!("{} UTC", utc(at, true));
    let severities = chain.severities(periods.severity, utc);
    let others = severities.strip_prefix(severity.label()).unwrap_or_default();
    let others = others.trim_start_matches([',', ' ']);
    let others = if others.is_empty() { String::new() } else { format!(" ({others})") };
    writeln!(
        out,
        "<article class=\"chain {severity}\" id=\"chain-{id}\">\n<h3>{}{others} <span class=\"cause\">{cause}</span> → {effect}: {} \
         <small>PID {}</small></h3>\n<p>{}</p>\n<dl>",
        badge(severity),
        Text(&victim.comm),
        victim.pid,
        Text(&chain.sentence)
    )?;
    for (name, value) in facts(chain, periods.time) {
        writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Text(&value))?;
    }
    writeln!(out, "<dt>Fix</dt><dd class=\"fix\" id=\"fix-{id}\">{}</dd>\n</dl>", Fix(&chain.fix))?;
    writeln!(
        out,
        "<p><button type=\"button\" class=\"copy\" id=\"copy-{id}\" data-copy=\"fix-{id}\" hidden>Copy the fix</button></p>"
    )?;
    details(out, chain, path)?;
    out.write_str("</article>\n")
}

/// Path and evidence. The numbers are for those who doubt the rest: a reader opens them.
fn details(out: &mut dyn Write, chain: &Chain, path: PathDetails) -> fmt::Result {
    let id = Text(&chain.id);
    if !chain.path.is_empty() {
        let open = if path == PathDetails::Open { " open" } else { "" };
        writeln!(out, "<details id=\"path-{id}\"{open}><summary>Path</summary>\n<ol>")?;
        for step in &chain.path {
            let (from, to, mechanism) = (Text(&step.from), Text(&step.to), Text(&step.mechanism));
            writeln!(out, "<li>{from} → {to}: {mechanism}, {:.3} s</li>", step.seconds)?;
        }
        out.write_str("</ol></details>\n")?;
    }
    writeln!(out, "<details id=\"evidence-{id}\"><summary>Evidence</summary>")?;
    out.write_str("<table><thead><tr><th scope=\"col\">Number</th><th scope=\"col\">Value</th></tr></thead><tbody>\n")?;
    for (name, value) in &chain.evidence.0 {
        writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td><data value=\"{value}\">{}</data></td></tr>",
            Text(name),
            plain(*value)
        )?;
    }
    writeln!(out, "</tbody></table>\n<p>Chain <code>{id}</code></p></details>")
}

/// Who, how long and by whom, by name.
pub(crate) fn facts(chain: &Chain, period: (f64, f64)) -> Vec<(&'static str, String)> {
    let Victim { pid, tid, comm, place, .. } = &chain.victim;
    let (share, taken) = amounts(chain, period, |at| format!("{} UTC", utc(at, true)));
    let mut facts = vec![
        ("Culprit", culprit(chain)),
        ("Victim", format!("{comm} ({}), thread {tid}", place.describe(*pid))),
        ("Time", format!("{taken}; {share}")),
    ];
    if !chain.losses.is_empty() {
        facts.push(("Lost to", losses(chain)));
    }
    facts
}

/// Who caused it, with PID and unit or pod.
fn culprit(chain: &Chain) -> String {
    match chain.culprit.as_ref().zip(chain.place_of_culprit()) {
        Some((own, place)) => format!("{} ({place})", own.comm),
        None if chain.cause.is_of_the_program() => "the program itself".to_owned(),
        None => "not known, or none".to_owned(),
    }
}

/// A time with its date for programs, in UTC.
pub fn time(unix_seconds: f64) -> String {
    let text = utc(unix_seconds, true);
    format!("<time datetime=\"{}Z\">{text} UTC</time>", text.replace(' ', "T"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_engine::chain::{
        Cause, Course, Culprit, Effect, Evidence, Loss, Place, Step, Victim,
    };

    fn hostile() -> Chain {
        let name = "<script>\"'&\u{202e}";
        Chain {
            id: name.into(),
            cause: Cause::CpuPreemption,
            effect: Effect::LaunchTail,
            severity: Severity::High,
            victim: Victim { pid: 7, tid: 8, comm: name.into(), ..Victim::default() },
            culprit: Some(Culprit {
                pid: 9,
                comm: name.into(),
                place: Place { unit: name.into(), ..Place::default() },
                ..Culprit::default()
            }),
            explained: 0.5,
            lost_seconds: 1.25,
            losses: Vec::new(),
            evidence: Evidence::default().with("launch_p99_seconds", 0.0042),
            path: vec![Step {
                from: name.into(),
                to: name.into(),
                mechanism: name.into(),
                seconds: 0.5,
            }],
            sentence: name.into(),
            fix: name.into(),
            first_seen: 0.0,
            last_seen: 1.0,
            ongoing: Some(true),
            code: Vec::new(),
            course: Course::default(),
        }
    }

    #[test]
    fn text_has_no_markup_and_no_invisible_characters() {
        let text = Text("<a href=\"x\" b='y'>&amp;\u{202e}\n").to_string();
        assert_eq!(text, "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;??");
    }

    #[test]
    fn nothing_of_a_chain_is_markup() {
        let mut html = String::new();
        chain(&mut html, &hostile(), Periods::ALWAYS, PathDetails::Open).unwrap();
        assert!(!html.contains("<script"), "{html}");
        assert!(!html.contains('\u{202e}'), "{html}");
        // Quotes are those of attributes: an even number in each tag.
        for tag in html.split('<').filter_map(|part| part.split('>').next()) {
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
    }

    #[test]
    fn the_culprit_of_what_a_program_does_itself_is_the_program() {
        let mut chain = Chain { culprit: None, ..hostile() };
        assert_eq!(culprit(&chain), "not known, or none");
        chain.cause = Cause::ImplicitSync;
        assert_eq!(culprit(&chain), "the program itself");
    }

    #[test]
    fn a_chain_has_its_culprit_with_pid_and_unit_its_numbers_and_its_fix() {
        let mut html = String::new();
        let mut plain = hostile();
        plain.id = "c1".into();
        let culprit = plain.culprit.as_mut().unwrap();
        (culprit.comm, culprit.place.unit) = ("fluent-bit".into(), "fluent-bit.service".into());
        plain.losses = vec![Loss { pid: Some(9), comm: "fluent-bit".into(), seconds: 1.25 }];
        plain.fix = "Move it. Run: `taskset -cp 1 9 | cat`.".into();
        chain(&mut html, &plain, Periods::ALWAYS, PathDetails::Closed).unwrap();
        for expected in [
            "<article class=\"chain high\" id=\"chain-c1\">",
            "<dt>Culprit</dt><dd>fluent-bit (PID 9, fluent-bit.service)</dd>",
            "<dt>Lost to</dt><dd>fluent-bit (PID 9) 1.25 s</dd>",
            "<dt>Time</dt><dd>took 1.2 s in all, 1.2 s of it lost; explains 50 % of the slow launches</dd>",
            "<data value=\"0.0042\">0.0042</data>",
            "<details id=\"path-c1\"><summary>Path",
            "<details id=\"evidence-c1\"><summary>Evidence",
            "id=\"fix-c1\">Move it. Run: <code>taskset -cp 1 9 | cat</code>.</dd>",
            "data-copy=\"fix-c1\" hidden>",
        ] {
            assert!(html.contains(expected), "{expected} is not in {html}");
        }
    }

    #[test]
    fn a_time_is_readable_for_people_and_programs() {
        let expected = "<time datetime=\"2023-11-14T22:13:21Z\">2023-11-14 22:13:21 UTC</time>";
        assert_eq!(time(1_700_000_001.0), expected);
    }
}
