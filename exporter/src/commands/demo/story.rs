//! The chains of the stand-in as text, as they form, and at the end a comparison with its own account.

use std::collections::HashMap;
use std::fmt::Write as _;

use gpucause_engine::chain::{Chain, Severity};
use gpucause_engine::utc::utc;

use super::stand_in::{Account, Injected};

/// The parts of the story printed so far.
#[derive(Debug, Default)]
pub(super) struct Story {
    begun: bool,
    /// Severity and culprit's name of each chain, as last printed.
    chains: HashMap<String, (Severity, Option<String>)>,
}

impl Story {
    /// Returns the news since the last call: the beginning of the fault, new chains, and chains whose severity or culprit changed.
    pub(super) fn next(&mut self, account: &Account, chains: &[Chain]) -> String {
        let mut text = String::new();
        if let Some(injected) = account.injected.as_ref().filter(|_| !self.begun) {
            self.begun = true;
            text.push_str(&beginning(injected));
        }
        for chain in chains {
            let culprit = chain.culprit.as_ref().map(|own| own.comm.clone());
            let now = (chain.severity, culprit);
            let before = self.chains.insert(chain.id.clone(), now.clone());
            if before.as_ref() != Some(&now) {
                let news = if before.is_none() { "New chain" } else { "The chain changed" };
                let since = account.injected.as_ref().map(|own| chain.last_seen - own.at_unix);
                let when = since.filter(|since| *since > 0.0).map_or_else(String::new, |since| {
                    format!(" {since:.1} s after the fault began")
                });
                let _ = writeln!(text, "\n{news}{when}:");
                text.push_str(&block(chain));
            }
        }
        text
    }
}

fn beginning(injected: &Injected) -> String {
    if injected.cause.is_empty() {
        return "\nNo fault is injected: no chain is expected.\n".into();
    }
    format!("\nThe fault begins: {}{}.\n", injected.cause, by(injected))
}

fn by(injected: &Injected) -> String {
    let Some(culprit) = &injected.culprit else { return String::new() };
    let pids: Vec<String> = culprit.pids.iter().map(ToString::to_string).collect();
    format!(" by {} (PID {})", culprit.comm, pids.join(" or "))
}

fn block(chain: &Chain) -> String {
    let mut text = format!(
        "  {} -> {}  [{}]  {} (PID {})\n  {}\n",
        chain.cause,
        chain.effect,
        chain.severities(Chain::ALWAYS, |at| utc(at, false)),
        chain.victim.comm,
        chain.victim.pid,
        chain.sentence
    );
    for step in &chain.path {
        let _ = writeln!(
            text,
            "    {} --{}, {:.2} s--> {}",
            step.from, step.mechanism, step.seconds, step.to
        );
    }
    let lost = match chain.lost_seconds {
        lost if chain.cause.loses_time() || lost >= 0.005 => {
            format!(", {lost:.2} s of it lost")
        }
        _ => String::new(),
    };
    let _ = writeln!(
        text,
        "  Explains {:.0} % of the {}; took {:.2} s so far{lost}. Id: {}\n  Try: {}",
        100.0 * chain.explained,
        chain.effect.describe(),
        chain.attributed_seconds(),
        chain.id,
        chain.fix
    );
    text
}

/// Compares the chains that were found, the worst first, with the workload's own account.
pub(super) fn comparison(account: &Account, chains: &[Chain]) -> String {
    let Some(injected) = &account.injected else {
        return "\nThe demo ended before the fault began; use a longer --duration.\n".into();
    };
    let mut text = String::from("\nThe workload's own account, by its clocks and the kernel's:\n");
    if injected.cause.is_empty() {
        text.push_str("  nothing was wrong\n");
    } else {
        let lost = account.truths.last().map_or(0.0, |truth| truth.lost_seconds);
        let _ = writeln!(text, "  {}{}: {lost:.2} s", injected.cause, by(injected));
    }
    text.push_str("What gpucause found:\n");
    for chain in chains {
        let culprit = chain.culprit.as_ref();
        let culprit =
            culprit.map_or(String::new(), |own| format!(" by {} (PID {})", own.comm, own.pid));
        let _ = write!(text, "  {}{culprit} [{}]: {}", chain.cause, chain.severity, amount(chain));
        let truth = account.lost_until(chain.last_seen).filter(|truth| *truth > 0.0);
        if let Some(truth) = truth.filter(|_| chain.cause.label() == injected.cause) {
            let error = 100.0 * (chain.attributed_seconds() / truth - 1.0);
            let _ = write!(text, ", where {truth:.2} s were measured until then ({error:+.1} %)");
        }
        text.push('\n');
    }
    if chains.is_empty() {
        text.push_str("  no chain\n");
    } else if !injected.cause.is_empty()
        && !chains.iter().any(|chain| chain.cause.label() == injected.cause)
    {
        let _ = writeln!(text, "  not {}", injected.cause);
    }
    text
}

/// The time that the chain took, and the parts of the culprit and of others where there are others.
fn amount(chain: &Chain) -> String {
    let all = chain.attributed_seconds();
    let culprit = chain.culprit.as_ref();
    let own = chain.losses.iter().find(|loss| culprit.is_some_and(|own| own.comm == loss.comm));
    match own.map(|own| (own.seconds, all - own.seconds)) {
        Some((own, others)) if others >= 0.01 => {
            format!("{own:.2} s, and {others:.2} s by others: {all:.2} s")
        }
        _ => format!("{all:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use gpucause_engine::chain::{Cause, Course, Culprit, Effect, Evidence, Loss, Step, Victim};

    use super::*;
    use crate::commands::demo::stand_in::{TrueCulprit, Truth};

    fn account() -> Account {
        let culprit = TrueCulprit { comm: "fluent-bit".into(), pids: vec![7] };
        Account {
            injected: Some(Injected {
                cause: "cpu_preemption".into(),
                culprit: Some(culprit),
                at_unix: 100.0,
            }),
            truths: vec![Truth { at_unix: 110.0, lost_seconds: 4.0 }],
        }
    }

    fn chain(severity: Severity) -> Chain {
        Chain {
            id: "1-5-cpu_preemption".into(),
            cause: Cause::CpuPreemption,
            effect: Effect::LaunchTail,
            severity,
            victim: Victim { pid: 5, tid: 5, comm: "demo-trainer".into(), ..Victim::default() },
            culprit: Some(Culprit { pid: 7, comm: "fluent-bit".into(), ..Culprit::default() }),
            explained: 0.98,
            lost_seconds: 3.8,
            evidence: Evidence::default(),
            path: vec![Step {
                from: "fluent-bit".into(),
                to: "demo-trainer".into(),
                mechanism: "preempted".into(),
                seconds: 0.9,
            }],
            sentence: "It was preempted.".into(),
            fix: "Pin it.".into(),
            first_seen: 102.0,
            last_seen: 110.0,
            losses: Vec::new(),
            ongoing: None,
            code: Vec::new(),
            course: Course::default(),
        }
    }

    #[test]
    fn a_chain_is_printed_when_it_forms_and_when_it_gets_worse() {
        let mut story = Story::default();
        let first = story.next(&account(), &[chain(Severity::Medium)]);
        for part in [
            "The fault begins: cpu_preemption by fluent-bit (PID 7).",
            "New chain 10.0 s after",
            "It was preempted.",
            "fluent-bit --preempted, 0.90 s--> demo-trainer",
            "Explains 98 % of the slow launches; took 3.80 s so far, 3.80 s of it lost. Id: 1-5-cpu_preemption",
            "Try: Pin it.",
        ] {
            assert!(first.contains(part), "{part}: {first}");
        }
        assert_eq!(story.next(&account(), &[chain(Severity::Medium)]), "");
        let data =
            Chain { cause: Cause::DataloaderStarvation, lost_seconds: 0.0, ..chain(Severity::Low) };
        assert!(!Story::default().next(&account(), &[data]).contains("of it lost"));
        assert!(story.next(&account(), &[chain(Severity::High)]).contains("The chain changed"));
    }

    #[test]
    fn the_end_compares_with_the_workloads_own_account() {
        let text = comparison(&account(), &[chain(Severity::High)]);
        assert!(text.contains("cpu_preemption by fluent-bit (PID 7): 4.00 s\n"), "{text}");
        assert!(text.contains("3.80 s, where 4.00 s were measured until then (-5.0 %)"), "{text}");
        assert!(!text.contains("  not "), "{text}");
        let another = Chain { cause: Cause::LockWait, ..chain(Severity::High) };
        let text = comparison(&account(), &[another]);
        assert!(text.contains("\n  not cpu_preemption\n"), "{text}");
    }

    #[test]
    fn what_others_took_is_not_charged_to_the_culprit() {
        let mut chain = chain(Severity::High);
        let loss = |comm: &str, seconds| Loss { pid: None, comm: comm.into(), seconds };
        chain.losses = vec![loss("fluent-bit", 3.2), loss("cron", 0.6)];
        let text = comparison(&account(), &[chain]);
        let part = "by fluent-bit (PID 7) [high]: 3.20 s, and 0.60 s by others: 3.80 s, where";
        assert!(text.contains(part), "{text}");
    }
}
