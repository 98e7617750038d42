//! Colours of the text report on a terminal.

use gpucause_engine::chain::Severity;

const HEADING: &str = "\x1b[1m";
const WARNING: &str = "\x1b[1;33m";
const CULPRIT: &str = "\x1b[1;35m";
const VICTIM: &str = "\x1b[1;36m";
const FIX: &str = "\x1b[1;32m";
const END: &str = "\x1b[0m";

/// Headings about what is missing in the report.
const MISSING: [&str; 5] =
    ["NOT OBSERVED", "PARTLY OBSERVED", "NOT SHOWN", "NO ANSWER", "A SAMPLE"];

/// The report with colours, for a stream that removes them where they are not wanted. It must be printable, as all reports are.
pub(super) fn coloured(report: &str) -> String {
    report
        .split_inclusive('\n')
        .map(|line| coloured_line(line).unwrap_or_else(|| line.into()))
        .collect()
}

/// A line that has something to stand out.
fn coloured_line(line: &str) -> Option<String> {
    if let Some(heading) = heading(line) {
        let colour = if MISSING.contains(&heading) { WARNING } else { HEADING };
        return Some(paint(line, "", heading, colour));
    }
    for (label, colour) in [("    victim: ", VICTIM), ("    culprit: ", CULPRIT)] {
        if let Some(rest) = line.strip_prefix(label) {
            let (name, _) = rest.split_once(" (")?;
            return Some(paint(line, label, name, colour));
        }
    }
    if line.starts_with("    fix: ") {
        return Some(paint(line, "    ", "fix:", FIX));
    }
    // Cause and effect are ours, and only the first severity of a line counts: a name can have one too.
    let (before, rest) = line.split_once("  [")?;
    let (labels, _) = rest.split_once("]  ")?;
    // When that was, or another one, may follow.
    let label = labels.split([',', ' ']).next()?;
    let severity = Severity::ALL.iter().find(|severity| severity.label() == label)?;
    Some(paint(line, &format!("{before}  ["), label, colour_of(*severity)))
}

/// The words in capitals that begin a line.
fn heading(line: &str) -> Option<&str> {
    if line.starts_with("== ") {
        return Some(line.trim_end());
    }
    let end = line.find(|c: char| !c.is_ascii_uppercase() && c != ' ').unwrap_or(line.len());
    let words = line[..end].trim_end();
    let is_whole = line[words.len()..].starts_with([' ', ',', ':', '\n']);
    (is_whole && !line.starts_with(' ') && words.len() > 3).then_some(words)
}

const fn colour_of(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "\x1b[1;31m",
        Severity::High => "\x1b[31m",
        Severity::Medium => "\x1b[33m",
        Severity::Low => "\x1b[36m",
    }
}

/// The line with a colour for what follows its beginning.
fn paint(line: &str, beginning: &str, text: &str, colour: &str) -> String {
    let rest = &line[beginning.len() + text.len()..];
    format!("{beginning}{colour}{text}{END}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_severities_and_names_stand_out_and_the_text_stays() {
        let report = "OBSERVATION  attached since 2023-11-15 11:00:00 UTC: every launch is timed\n\
            NOT SHOWN  causal chains excluded by the filter: 2\n\
            node1: 2 causal chains\n\nROOT CAUSE\n\
            \x20 lock_wait -> launch_gap  [high at 11:00:01, last medium]  c (pid 1, thread 1)  id 2\n\
            \x20 block_io -> launch_tail  [critical]  a  [low]  b (pid 42, thread 43)  id 1\n\
            \x20   victim: a  [low]  b (PID 42, CPUs 2-3)\n\
            \x20   culprit: fluent-bit (PID 9)\n\
            \x20   fix: Pin it.\n\nTIMELINE (UTC)\n  2023-11-15\n";
        let coloured = coloured(report);
        for part in [
            "\x1b[1mOBSERVATION\x1b[0m  attached",
            "\x1b[1;33mNOT SHOWN\x1b[0m  causal",
            "\n\x1b[1mROOT CAUSE\x1b[0m\n",
            "  [\x1b[31mhigh\x1b[0m at 11:00:01, last medium]  c",
            "  [\x1b[1;31mcritical\x1b[0m]  a  [low]  b (pid 42",
            "victim: \x1b[1;36ma  [low]  b\x1b[0m (PID",
            "culprit: \x1b[1;35mfluent-bit\x1b[0m (PID",
            "    \x1b[1;32mfix:\x1b[0m Pin it.",
            "\x1b[1mTIMELINE\x1b[0m (UTC)\n  2023-11-15\n",
        ] {
            assert!(coloured.contains(part), "{part:?} is missing in {coloured:?}");
        }
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), report);
    }

    #[test]
    fn what_only_looks_like_a_heading_or_severity_has_no_colour() {
        for line in [
            "GPU-1: 3 causal chains\n",
            "PID 7\n",
            "Nodes\n",
            "    evidence: a=1  [high]\n",
            "    a sentence  [dire]  of a name\n",
            "    victim: without a place\n",
            "  12:00:00  cpu_preemption -> launch_tail of trainer (42) begins\n",
            "\n",
            "",
        ] {
            assert_eq!(coloured(line), line);
        }
    }
}
