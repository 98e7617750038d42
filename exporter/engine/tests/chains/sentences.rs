//! Every number in a sentence is one of the evidence.

use std::collections::HashSet;

use gpucause_engine::chain::{Cause, Chain};

use crate::host::Host;
use crate::scenarios;

/// All formats of a number.
fn forms(value: f64) -> Vec<String> {
    // A number that rounds to ten has no tenths.
    let digits = |v: f64| if v >= 9.95 { format!("{v:.0}") } else { format!("{v:.1}") };
    let units = [1.0, 1e3, 1e6, 1e9].map(|by| digits(value * by));
    let bytes = (0..7).map(|power| digits(value / 1024f64.powi(power)));
    let mut forms: Vec<_> = units.into_iter().chain(bytes).collect();
    forms.extend([digits(value * 100.0), format!("{value:.0}")]);
    forms
}

fn numbers(text: &str) -> Vec<String> {
    let mut numbers = vec![String::new()];
    for (index, c) in text.char_indices() {
        let inside = c == '.' && text[index + 1..].starts_with(|next: char| next.is_ascii_digit());
        match numbers.last_mut() {
            Some(last) if c.is_ascii_digit() || (inside && !last.is_empty()) => last.push(c),
            _ => numbers.push(String::new()),
        }
    }
    numbers.retain(|number| !number.is_empty());
    numbers
}

/// The sentence without the names of tasks and calls.
fn nameless(chain: &Chain) -> String {
    let culprit = chain.culprit.iter().map(|culprit| culprit.comm.clone());
    let path = chain.path.iter().flat_map(|step| [step.from.clone(), step.to.clone()]);
    // A hang names the call: "cuMemcpy2D does not return".
    let calls = chain.path.iter().filter_map(|step| step.mechanism.split(' ').next());
    let calls = calls.filter(|name| name.starts_with("cu") || name.starts_with("nccl"));
    let sentence =
        chain.sentence.replace(&chain.when(), "").replace("p50 ", "").replace("p99 ", "");
    let names =
        culprit.chain(path).chain(calls.map(str::to_owned)).chain([chain.victim.comm.clone()]);
    let mut names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    // A name may be the beginning of another.
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.into_iter().fold(sentence, |sentence, n| sentence.replace(&n, ""))
}

pub(crate) fn numbers_are_evidence(chain: &Chain) {
    let known: HashSet<String> =
        chain.evidence.0.iter().flat_map(|&(_, value)| forms(value)).collect();
    for number in numbers(&nameless(chain)) {
        assert!(known.contains(&number), "{number} in {} of {:?}", chain.sentence, chain.evidence);
    }
}

#[test]
fn no_sentence_has_a_number_that_is_not_in_its_evidence() {
    let mut causes = HashSet::new();
    for scenario in scenarios::ALL {
        let host = scenario();
        assert!(!host.chains().is_empty());
        for chain in host.chains() {
            numbers_are_evidence(chain);
            causes.insert(chain.cause);
            assert!(
                chain.sentence.ends_with('.') && chain.fix.ends_with('.'),
                "{}",
                chain.sentence
            );
            assert!(!numbers(&nameless(chain)).is_empty(), "{}", chain.sentence);
            assert!(chain.sentence.is_ascii() && !chain.sentence.contains(['{', '}', '[', ']']));
        }
    }
    assert_eq!(causes, Cause::ALL.iter().copied().collect());
}

#[test]
fn times_that_are_of_slow_calls_only_are_said_to_be() {
    let place = |host: &Host| {
        let chain = host.chains()[0];
        let path: Vec<_> = chain.path.iter().map(|step| step.mechanism.clone()).collect();
        (chain.sentence.clone(), path)
    };
    // 120 of 600 ms are in launches.
    let (sentence, path) = place(&scenarios::preempted());
    assert!(sentence.contains("Top CPU competitor: hog, 120 ms in launches."), "{sentence}");
    assert_eq!(path, ["preempted in launches", "off the CPU in slow launches"]);
    let (sentence, path) = place(&scenarios::locked_in_launches());
    assert!(sentence.contains(" of the waits in launches."), "{sentence}");
    assert_eq!(path, ["held a lock in slow launches", "blocked in futex in slow launches"]);
    let (sentence, path) = place(&scenarios::queued());
    assert!(sentence.contains("Top CPU competitor: hog, 600 ms."), "{sentence}");
    assert_eq!(path, ["kept waiting for a CPU", "off the CPU"]);
}

#[test]
fn numbers_are_found_in_sentences() {
    assert_eq!(numbers("lost 12 % of 3.5 s. In 7."), ["12", "3.5", "7"]);
}
