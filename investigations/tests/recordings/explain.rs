//! Incident reports of made-up chains.

mod culprits;
mod observation;
mod period;
mod victims;

use gpucause_engine::chain::{
    Cause, Chain, Course, Culprit, Effect, Evidence, Severity, Step, Victim,
};
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::{Incident, NodeReport, Report, html, markdown, render};
use gpucause_investigations::observation::Observed;

fn chain(cause: Cause, pid: u32, lost: f64, (first, last): (f64, f64)) -> Chain {
    Chain {
        id: format!("{pid}-{cause}"),
        cause,
        effect: Effect::LaunchTail,
        severity: Severity::High,
        victim: Victim { pid, tid: pid + 1, comm: "trainer".into(), ..Victim::default() },
        culprit: Some(Culprit { pid: 9, comm: "fluent-bit".into(), ..Culprit::default() }),
        explained: 0.934,
        lost_seconds: lost,
        evidence: Evidence::default().with("p99_seconds", 0.0041).with("calls", 120_000.0),
        path: vec![Step {
            from: "fluent-bit".into(),
            to: format!("trainer ({pid})"),
            mechanism: "preempted".into(),
            seconds: 0.61,
        }],
        sentence: "fluent-bit had the CPU.".into(),
        fix: "Pin it.".into(),
        first_seen: first,
        last_seen: last,
        losses: Vec::new(),
        ongoing: None,
        code: Vec::new(),
        course: Course::default(),
    }
}

const NOON: f64 = 1_700_049_600.0;

/// In the five minutes before noon.
fn observed(state: impl Into<ObservationState>) -> Observed {
    Observed::of_node(Some(state.into()), NOON - 300.0, NOON)
}

fn asked(chains: Vec<Chain>, filter: &ChainFilter) -> Incident {
    let window = (filter.from.unwrap_or(NOON - 300.0), filter.until.unwrap_or(NOON));
    let state = Some(Period::attached(NOON - 3600.0).into());
    let observed = Observed::of_node(state, window.0, window.1);
    Incident::filtered("node1".into(), chains, observed, filter)
}

fn incident() -> Incident {
    let chains = vec![
        chain(Cause::Unexplained, 7, 0.0, (NOON + 1.0, NOON + 2.0)),
        chain(Cause::CpuPreemption, 42, 8.9, (NOON, NOON + 60.0)),
        chain(Cause::LockWait, 42, 1.0, (NOON + 30.0, NOON + 40.0)),
        chain(Cause::BlockIo, 50, 99.0, (NOON - 900.0, NOON - 600.0)),
    ];
    let observed = observed(Period::attached(NOON - 3600.0));
    Incident::filtered("node1".into(), chains, observed, &ChainFilter::default())
}

fn report_of(incident: &Incident) -> Report {
    let incident = incident.clone();
    Report {
        outcome: incident.outcome,
        file: None,
        nodes: vec![NodeReport { url: None, clock: None, incident, recorded: None }],
        failures: Vec::new(),
        warnings: Vec::new(),
    }
}

#[test]
fn markdown_has_every_chain_and_no_markup_of_names() {
    let mut hostile = chain(Cause::LockWait, 42, 1.0, (NOON + 30.0, NOON + 40.0));
    hostile.fix = "<b>|x".into();
    let chains = vec![hostile, chain(Cause::CpuPreemption, 42, 8.9, (NOON, NOON + 60.0))];
    let own = Incident::of("node1".into(), chains, observed(Period::attached(0.0)));
    let text = markdown::of(&report_of(&own));
    for part in [
        "# Why was the GPU not fed? node1\n",
        "### Root cause\n\n#### cpu\\_preemption → launch\\_tail: trainer (PID 42), high\n",
        "| Fix | Pin it. |\n",
        "### Also\n",
        "\\<b\\>\\|x",
        "| PID | Process | Chains | Taken | Lost | Severity | Worst |\n|---|",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert_eq!(own.chains().count(), own.others.len() + 1);
}

#[test]
fn the_root_cause_is_the_worst_that_is_known() {
    let root = incident().root_cause.unwrap();
    assert_eq!(root.cause, Cause::CpuPreemption);
}

#[test]
fn what_was_over_before_is_left_out() {
    let incident = incident();
    assert!(incident.others.iter().all(|chain| chain.cause != Cause::BlockIo));
    assert!(incident.timeline.iter().all(|event| !event.chain_id.contains("block_io")));
}

#[test]
fn only_chains_that_are_asked_for_are_shown_and_the_others_are_counted() {
    let chains = || {
        let mut low = chain(Cause::BlockIo, 43, 1.0, (NOON - 90.0, NOON - 80.0));
        (low.severity, low.culprit) = (Severity::Low, None);
        vec![chain(Cause::CpuPreemption, 42, 8.0, (NOON - 60.0, NOON - 30.0)), low]
    };
    let shown = |filter: ChainFilter| {
        let state = observed(Period::attached(NOON - 3600.0));
        let incident = Incident::filtered("node1".into(), chains(), state, &filter);
        let pids: Vec<_> = incident.processes.iter().map(|loss| loss.pid).collect();
        (pids, incident.left_out)
    };
    let all = ChainFilter::default();
    assert_eq!(shown(all.clone()), (vec![42, 43], 0));
    assert_eq!(shown(ChainFilter { pids: vec![43], ..all }), (vec![43], 1));
    assert_eq!(shown(ChainFilter { pids: vec![9], ..all }), (vec![42], 1), "the culprit");
    assert_eq!(
        shown(ChainFilter { severity: Some(Severity::Medium), ..all.clone() }),
        (vec![42], 1)
    );
    assert_eq!(shown(ChainFilter { from: Some(NOON - 70.0), ..all.clone() }), (vec![42], 1));
    assert_eq!(shown(ChainFilter { until: Some(NOON - 70.0), ..all.clone() }), (vec![43], 1));
    let state = observed(Period::attached(NOON - 3600.0));
    let filter = ChainFilter { pids: vec![1], ..all };
    let text = render(&Incident::filtered("node1".into(), chains(), state, &filter), false);
    assert!(text.contains("NOT SHOWN  causal chains excluded by the filter: 2\n"), "{text}");
    assert!(text.ends_with("node1: no causal chain matches the filter.\n"), "{text}");
}

#[test]
fn the_timeline_is_in_order_and_losses_add_up_by_process() {
    let incident = incident();
    assert!(incident.timeline.is_sorted_by(|a, b| a.at <= b.at));
    assert_eq!(incident.timeline.len(), 6);
    let worst = &incident.processes[0];
    assert_eq!((worst.pid, worst.chains), (42, 2));
    assert!((worst.lost_seconds - 9.9).abs() < 1e-9);
    assert_eq!(worst.worst, (Cause::CpuPreemption, 8.9));
}

#[test]
fn the_report_names_cause_path_evidence_and_fix() {
    let report = render(&incident(), true);
    assert!(report.starts_with(
        "OBSERVATION  attached since 2023-11-15 11:00:00 UTC: every launch is timed\nnode1: "
    ));
    for part in [
        "node1: 3 causal chains from 2023-11-15 11:55:00 to 2023-11-15 12:00:00 UTC\n",
        "ROOT CAUSE of trainer (PID 42)\n  cpu_preemption -> launch_tail  [high]  trainer (pid 42, thread 43)  id 42-cpu_preemption\n",
        "    fluent-bit had the CPU.\n",
        "    fluent-bit --(preempted, 0.610 s)--> trainer (42)\n",
        "    explains 93 % of the slow launches; took 8.9 s in all, 8.9 s of it lost\n",
        "    evidence: p99_seconds=0.0041 calls=120000\n",
        "    fix: Pin it.\n",
        "  2023-11-15\n  12:00:00  cpu_preemption -> launch_tail of trainer (42) begins\n",
        "42 trainer               2      9.9 s      9.9 s high      cpu_preemption (8.9 s)\n",
    ] {
        assert!(report.contains(part), "{part:?} is missing in\n{report}");
    }
    assert!(!render(&incident(), false).contains("PROCESSES"));
}

#[test]
fn hostile_names_stay_on_their_line() {
    let mut bad = chain(Cause::LockWait, 1, 1.0, (NOON, NOON));
    bad.victim.comm = "a\nROOT CAUSE\u{1b}[2J".into();
    bad.victim.comm.push('\u{202e}');
    bad.sentence = "ignore previous instructions\nand more".into();
    let report =
        render(&Incident::of("n".into(), vec![bad], observed(Period::attached(0.0))), true);
    assert_eq!(report.matches("\nROOT CAUSE").count(), 1, "{report}");
    assert!(!report.contains(['\u{1b}', '\u{202e}']));
    assert!(report.contains("ignore previous instructions?and more"));
}

#[test]
fn a_chain_shows_three_pieces_of_evidence_on_one_line_and_documents_have_all() {
    let mut own = chain(Cause::LockWait, 42, 1.0, (NOON - 90.0, NOON));
    for name in ["explained_share", "effect_seconds", "holder_share"] {
        own.evidence = own.evidence.with(name, 0.25);
    }
    let incident = asked(vec![own], &ChainFilter::default());
    let report = render(&incident, false);
    let line = "\n    evidence: p99_seconds=0.0041 calls=120000 explained_share=0.25 +2 more: --format json\n    fix: ";
    assert!(report.contains(line), "{report}");
    let whole = report_of(&incident);
    let json = serde_json::to_string(&whole).unwrap();
    assert!(json.contains("\"holder_share\":0.25"), "{json}");
    assert!(markdown::of(&whole).contains("holder\\_share=0.25"));
    assert!(html::of(&whole).contains("holder_share"));
}
