//! A report says which time and which processes were not observed.

use std::collections::BTreeMap;

use gpucause_engine::chain::Cause;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::{Incident, render};
use gpucause_investigations::node::Chains;
use gpucause_investigations::observation::Outcome;

use super::{NOON, chain, observed};

fn report_of_nothing(state: impl Into<ObservationState>) -> (Outcome, String) {
    let incident = Incident::of("node1".into(), Vec::new(), observed(state));
    (incident.outcome, render(&incident, true))
}

#[test]
fn a_healthy_node_says_so_of_the_time_that_it_observed() {
    let (outcome, report) = report_of_nothing(Period::attached(NOON - 300.0));
    assert_eq!(outcome, Outcome::NothingFound);
    assert_eq!(
        report,
        "OBSERVATION  attached since 2023-11-15 11:55:00 UTC: every launch is timed\n\
         node1: no causal chain. No host-side cause of GPU starvation was found from 2023-11-15 11:55:00 to 2023-11-15 12:00:00 UTC.\n"
    );
}

#[test]
fn a_process_that_the_node_does_not_observe_is_not_called_healthy() {
    let answer = |processes| Chains {
        node: "node1".into(),
        now: Some(NOON),
        watched_since: None,
        observation: Some(Period::attached(NOON - 900.0).into()),
        processes,
        names: BTreeMap::new(),
        chains: Vec::new(),
    };
    let names = Chains { names: [(43, "serve".to_owned())].into(), ..answer(Some(vec![41, 43])) };
    let of_pid = ChainFilter { pids: vec![42], ..ChainFilter::default() };
    let report = render(&Incident::of_answer(names, 300.0, NOON, &of_pid), false);
    assert!(
        report.ends_with(", or there is no such process.\nObserved PIDs: 43 (serve).\n"),
        "{report}"
    );
    let of = |processes, pid: Option<u32>| {
        let filter = ChainFilter { pids: pid.into_iter().collect(), ..ChainFilter::default() };
        let incident = Incident::of_answer(answer(processes), 300.0, NOON, &filter);
        (incident.outcome, render(&incident, true))
    };
    let (outcome, report) = of(Some(vec![41, 43]), Some(42));
    assert_eq!(outcome, Outcome::NotObserved);
    assert!(
        report.contains("node1: PID 42 is NOT OBSERVED: ") && !report.contains("no causal chain"),
        "{report}"
    );
    assert!(report.contains("\nObserved PIDs: 41, 43.\n"), "{report}");
    assert!(of(Some(Vec::new()), Some(42)).1.contains("\nNo process is observed.\n"));
    for (processes, pid) in [(Some(vec![42]), Some(42)), (Some(vec![]), None), (None, Some(42))] {
        assert_eq!(of(processes, pid).0, Outcome::NothingFound);
    }
}

#[test]
fn a_node_that_observed_nothing_or_only_a_part_says_so_and_not_that_nothing_was_found() {
    let (outcome, report) = report_of_nothing(Period::disabled(NOON - 900.0, "SIGUSR1"));
    assert_eq!(outcome, Outcome::NotObserved);
    assert_eq!(
        report,
        "OBSERVATION  disabled since 2023-11-15 11:45:00 UTC: nothing is observed (SIGUSR1)\n\
         NOT OBSERVED  2023-11-15 11:55:00 - 2023-11-15 12:00:00 UTC: nothing is observed (SIGUSR1)\n\
         node1: NOT OBSERVED in this time. Whether a GPU was starved is unknown.\n"
    );
    let (outcome, report) = report_of_nothing(Period::attached(NOON - 60.0));
    assert_eq!(outcome, Outcome::NotObserved);
    let before = "NOT OBSERVED  2023-11-15 11:55:00 - 2023-11-15 11:59:00 UTC: nothing is observed (observation had not begun)\n";
    assert!(report.contains(before) && report.contains("NOT OBSERVED in full"), "{report}");
    for (_, report) in [(outcome, report), report_of_nothing(Period::disabled(0.0, "x"))] {
        assert!(!report.contains("no causal chain"), "{report}");
    }
}

#[test]
fn the_state_stands_before_the_chains_that_were_found() {
    let chains = vec![chain(Cause::LockWait, 42, 1.0, (NOON - 40.0, NOON - 30.0))];
    let state = observed(Period::disabled(NOON - 20.0, "SIGUSR1"));
    let incident = Incident::filtered("node1".into(), chains, state, &ChainFilter::default());
    assert_eq!(incident.outcome, Outcome::Found);
    let report = render(&incident, false);
    let lines: Vec<_> = report.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(lines[..3], ["OBSERVATION", "NOT OBSERVED", "NOT OBSERVED"], "{report}");
    assert!(lines[3].starts_with("node1: 1 causal chain from "), "{report}");
    let json = serde_json::to_value(&incident).unwrap();
    assert_eq!(
        (&json["outcome"], &json["observation"]["state"]),
        (&"found".into(), &"disabled".into())
    );
}
