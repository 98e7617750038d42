//! The causal chain in a file, and the same chain when the file is replayed.

use gpucause_engine::chain::Chain;
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::poll::until;
use gpucause_investigations::any_format;
use gpucause_investigations::explain::Report;

use super::{Case, cases};

/// Returns the seconds that the workload had lost at a time, by the two nearest lines of its own.
fn lost_at(case: &Case, unix: f64) -> f64 {
    let lost = &case.expected.lost_seconds;
    let after = lost.iter().position(|(at, _)| *at >= unix).unwrap_or(lost.len() - 1);
    let ((from, before), (to, after)) = (lost[after.saturating_sub(1)], lost[after]);
    let part = if to > from { ((unix - from) / (to - from)).clamp(0.0, 1.0) } else { 1.0 };
    before + part * (after - before)
}

/// Returns what is wrong with the first-ranked chain. `lost` is what the workload had lost when the chain was seen last.
fn complaints(case: &Case, chain: &Chain, lost: f64) -> Vec<String> {
    let expected = &case.expected;
    let compared = [
        ("cause", Some(chain.cause.label()), Some(&*expected.cause)),
        ("effect", Some(chain.effect.label()), Some(&*expected.effect)),
        ("victim", Some(&*chain.victim.comm), Some(&*expected.victim)),
        ("culprit", chain.culprit.as_ref().map(|own| &*own.comm), expected.culprit.as_deref()),
    ];
    let mut complaints: Vec<String> = compared
        .iter()
        .filter(|(_, found, expected)| found != expected)
        .map(|(what, found, expected)| format!("the {what} is {found:?}, not {expected:?}"))
        .collect();
    let error = chain.attributed_seconds() / lost - 1.0;
    if error.abs() > expected.tolerance {
        complaints.push(format!("{:.3} s were taken, not {lost:.3} s", chain.attributed_seconds()));
    }
    complaints
}

#[test]
fn explain_ranks_first_what_the_workload_suffered_from() {
    for case in cases() {
        let recording = any_format::open(&case.db()).unwrap();
        let report = Report::of(&case.db(), &*recording).unwrap();
        let [node] = &report.nodes[..] else { panic!("{}: one node", case.name) };
        let root = node.incident.root_cause.as_ref().expect("a chain");
        let complaints = complaints(&case, root, lost_at(&case, root.last_seen));
        assert!(complaints.is_empty(), "{}: {complaints:#?} {root:#?}", case.name);
        // Time that a program spends on itself, or waits for a late rank, is not lost on its host.
        assert!(root.cause.loses_time() || root.lost_seconds == 0.0, "{}", case.name);
    }
}

#[test]
fn a_replay_finds_the_same_cause_again() {
    for case in cases() {
        let recording = any_format::open(&case.db()).unwrap();
        let report = Report::of(&case.db(), &*recording).unwrap();
        let recorded = report.nodes[0].incident.root_cause.as_ref().unwrap();
        let arguments = ["replay", "--web.listen-address=127.0.0.1:0", "--speed=1000", "--db"];
        let replay = Exporter::of(gpucause(&arguments).arg(case.db()));
        let found = until("the chain at its end", || {
            let answer = replay.chains();
            let answer: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
            let chains: Vec<Chain> =
                serde_json::from_value(answer["data"]["chains"].clone()).unwrap();
            let known = chains.into_iter().find(|chain| chain.cause.label() != "unexplained")?;
            let missing = recorded.attributed_seconds() - known.attributed_seconds();
            (missing.abs() <= 0.01 * recorded.attributed_seconds()).then_some(known)
        });
        let lost = lost_at(&case, recorded.last_seen);
        let complaints = complaints(&case, &found, lost);
        assert!(complaints.is_empty(), "{}: {complaints:#?} {found:#?}", case.name);
    }
}
