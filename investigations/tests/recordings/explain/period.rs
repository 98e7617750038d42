//! Times and severity in the asked period.

use gpucause_engine::chain::{Cause, Chain, Course, Evidence, Severity};
use gpucause_engine::observation::Period;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::{Incident, html, render};

use super::{NOON, asked, chain, observed, report_of};

/// Since 100 s before noon: 50 s in the first 10 s of them, then a tenth of the time.
fn spike() -> Chain {
    let mut chain = chain(Cause::RunqueueWait, 42, 14.0, (NOON - 100.0, NOON));
    chain.severity = Severity::Critical;
    chain.sentence = format!("It waited. {}", chain.when());
    chain.course = Course {
        severity_at: Some(NOON - 90.0),
        last_severity: Some(Severity::Medium),
        measured_at: None,
        taken_by: vec![[0.0, 0.0, 0.0], [10.0, 5.0, 5.0], [100.0, 14.0, 14.0]],
    };
    chain
}

#[test]
fn time_and_severity_are_those_of_the_asked_period() {
    let all = ChainFilter::default();
    let shown = |filter: &ChainFilter| {
        let incident = asked(vec![spike()], filter);
        (incident.severity(), render(&incident, true))
    };
    let (severity, report) = shown(&all);
    assert_eq!(severity, Some(Severity::Critical));
    for part in [
        "runqueue_wait -> launch_tail  [critical at 11:58:30, last medium]  trainer (pid 42",
        "    It waited. Last seen at 12:00:00; first seen at 11:58:20.\n",
        "    explains 93 % of the slow launches; took 14.0 s in all, 14.0 s of it lost\n",
        "  11:58:30  runqueue_wait -> launch_tail of trainer (42) is critical for the last time\n",
        "  12:00:00  runqueue_wait -> launch_tail of trainer (42) seen last, medium\n",
    ] {
        assert!(report.contains(part), "{part:?} is missing in\n{report}");
    }
    let (severity, report) = shown(&ChainFilter { from: Some(NOON - 45.0), ..all.clone() });
    assert_eq!(severity, Some(Severity::Medium), "the spike is over");
    assert!(report.contains("  [medium, critical at 11:58:30]  trainer (pid 42"), "{report}");
    let taken = "; took 4.5 s in this period, 4.5 s of it lost; 14.0 s since 11:58:20\n";
    assert!(report.contains(taken) && report.contains("      4.5 s medium  "), "{report}");
    let (_, report) = shown(&ChainFilter { until: Some(NOON - 95.0), ..all.clone() });
    let then =
        "    explains 93 % of the slow launches at 12:00:00, outside this period; took 2.5 s in";
    assert!(report.contains(then), "{report}");
    let page = html::of(&report_of(&asked(vec![spike()], &all)));
    let badge = "badge critical\">critical</span> (at 2023-11-15 11:58:30 UTC, last medium) <";
    assert!(page.contains(badge), "{page}");
    let least = ChainFilter { severity: Some(Severity::High), from: Some(NOON - 45.0), ..all };
    let incident = asked(vec![spike()], &least);
    assert_eq!((incident.root_cause, incident.left_out), (None, 1));
}

#[test]
fn a_cause_that_seldom_loses_time_is_not_said_to_have_lost_none() {
    let said = |cause, lost, filter: &ChainFilter| {
        let mut own = chain(cause, 42, lost, (NOON - 100.0, NOON));
        own.evidence = Evidence::default().with("attributed_seconds", 12.0);
        own.course.taken_by = vec![[0.0; 3], [100.0, 12.0, lost as f32]];
        let report = render(&asked(vec![own], filter), false);
        let (_, taken) = report.split_once("; took ").unwrap();
        taken.lines().next().unwrap().to_owned()
    };
    let all = ChainFilter::default();
    assert_eq!(said(Cause::DataloaderStarvation, 0.0, &all), "12.0 s in all");
    assert_eq!(said(Cause::ImplicitSync, 0.0, &all), "12.0 s in all");
    assert_eq!(said(Cause::DataloaderStarvation, 3.0, &all), "12.0 s in all, 3.0 s of it lost");
    assert_eq!(said(Cause::LockWait, 0.0, &all), "12.0 s in all, 0.0 s of it lost");
    let later = ChainFilter { from: Some(NOON - 50.0), ..all };
    let taken = said(Cause::DataloaderStarvation, 0.0, &later);
    assert_eq!(taken, "6.0 s in this period; 12.0 s since 11:58:20");
}

#[test]
fn a_chain_of_the_first_evaluation_may_have_begun_before() {
    let begins = |since| {
        let own = chain(Cause::LockWait, 42, 1.0, (NOON - 100.0, NOON));
        let observed = observed(Period::attached(since));
        let incident = Incident::of("node1".into(), vec![own], observed);
        incident.timeline[0].what.contains(" begins, or before: first evaluated then")
    };
    assert!(begins(NOON - 106.0) && !begins(NOON - 120.0) && !begins(NOON - 50.0));
}

#[test]
fn an_old_chain_is_given_as_a_whole() {
    let filter = ChainFilter { from: Some(NOON - 45.0), ..ChainFilter::default() };
    let mut old = spike();
    old.course = Course::default();
    let report = render(&asked(vec![old], &filter), false);
    let taken = "took 14.0 s since 11:58:20, 14.0 s of it lost: times are of the whole chain\n";
    assert!(report.contains(taken) && report.contains("  [critical]  "), "{report}");
}

#[test]
fn the_root_cause_is_what_took_most_in_the_asked_period_and_not_what_was_severe_once() {
    let mut steady = chain(Cause::LockWait, 42, 12.0, (NOON - 100.0, NOON));
    steady.severity = Severity::Medium;
    steady.course.taken_by = vec![[0.0, 0.0, 0.0], [100.0, 12.0, 12.0]];
    let root = |from| {
        let filter = ChainFilter { from: Some(from), ..ChainFilter::default() };
        asked(vec![spike(), steady.clone()], &filter).root_cause.unwrap().cause
    };
    assert_eq!(root(NOON - 300.0), Cause::RunqueueWait);
    assert_eq!(root(NOON - 45.0), Cause::LockWait);
}
