//! Incident reports of made-up chains.

use std::collections::BTreeMap;

use gpucause_engine::chain::{
    Cause, Chain, Course, Culprit, Effect, Evidence, Loss, Severity, Step, Victim,
};
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_investigations::explain::{
    ChainFilter, Incident, NodeReport, Report, html, markdown, render,
};
use gpucause_investigations::node::Chains;
use gpucause_investigations::observation::{Observed, Outcome};

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
        course: Course::default(),
    }
}

const NOON: f64 = 1_700_049_600.0;

/// In the five minutes before noon.
fn observed(state: impl Into<ObservationState>) -> Observed {
    Observed::of_node(Some(state.into()), NOON - 300.0, NOON)
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
fn losses_of_two_jobs_that_had_one_pid_after_the_other_are_kept_apart() {
    let mut later = chain(Cause::BlockIo, 42, 3.0, (NOON + 90.0, NOON + 95.0));
    later.victim.comm = "python3".into();
    let chains = vec![chain(Cause::CpuPreemption, 42, 8.0, (NOON, NOON + 60.0)), later];
    let losses =
        Incident::of("node1".into(), chains, observed(Period::attached(NOON - 3600.0))).processes;
    let reported: Vec<_> =
        losses.iter().map(|loss| (loss.pid, &*loss.comm, loss.lost_seconds)).collect();
    assert_eq!(reported, [(42, "trainer", 8.0), (42, "python3", 3.0)]);
}

#[test]
fn losses_of_two_processes_of_one_name_and_pid_are_kept_apart_by_their_start() {
    let mut chains = vec![
        chain(Cause::CpuPreemption, 42, 8.0, (NOON, NOON + 60.0)),
        chain(Cause::BlockIo, 42, 3.0, (NOON + 90.0, NOON + 95.0)),
        chain(Cause::LockWait, 42, 1.0, (NOON + 90.0, NOON + 95.0)),
    ];
    for (chain, started) in chains.iter_mut().zip([100.5, 200.5, 200.5]) {
        chain.victim.started = Some(started);
    }
    let losses =
        Incident::of("node1".into(), chains, observed(Period::attached(NOON - 3600.0))).processes;
    let reported: Vec<_> = losses.iter().map(|loss| (loss.started, loss.chains)).collect();
    assert_eq!(reported, [(Some(100.5), 1), (Some(200.5), 2)]);
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
fn victim_and_culprit_are_named_with_unit_and_cpus_and_the_loss_by_who_took_it() {
    let mut chain = chain(Cause::CpuPreemption, 42, 8.0, (NOON, NOON + 60.0));
    chain.victim.place.cpus = "2-3".into();
    let culprit = chain.culprit.as_mut().unwrap();
    (culprit.place.unit, culprit.place.cpus) = ("fluent-bit.service".into(), "0-3".into());
    let loss = |pid, comm: &str, seconds| Loss { pid, comm: comm.into(), seconds };
    chain.losses = vec![loss(Some(9), "fluent-bit", 6.45), loss(None, "kworker", 0.5)];
    chain.losses.extend([loss(None, "bash", 0.03), loss(None, "mkdir", 0.02)]);
    let json = serde_json::to_value(&chain).unwrap();
    assert_eq!(json["culprit"]["unit"], "fluent-bit.service");
    assert_eq!(json["victim"]["cpus"], "2-3");
    assert_eq!(json["losses"][0]["pid"], 9);
    let read: Chain = serde_json::from_value(json).unwrap();
    assert_eq!((&read.culprit, &read.losses), (&chain.culprit, &chain.losses));
    let state = observed(Period::attached(NOON - 3600.0));
    let report = render(&Incident::of("node1".into(), vec![chain], state), false);
    for part in [
        "    victim: trainer (PID 42, allowed on CPUs 2-3)\n",
        "    culprit: fluent-bit (PID 9, fluent-bit.service, allowed on CPUs 0-3)\n",
        "    lost to: fluent-bit (PID 9) 6.45 s, kworker 0.50 s, 2 others 0.05 s, not known 1.00 s\n",
    ] {
        assert!(report.contains(part), "{part:?} is missing in\n{report}");
    }
}

#[test]
fn those_that_took_next_to_nothing_have_a_time_as_well() {
    let mut chain = chain(Cause::LockWait, 42, 245.0, (NOON, NOON + 60.0));
    let loss = |comm: &str, seconds| Loss { pid: None, comm: comm.into(), seconds };
    chain.losses = vec![loss("stats-flusher", 244.7), loss("timer", 0.002)];
    let state = observed(Period::attached(NOON - 3600.0));
    let report = render(&Incident::of("node1".into(), vec![chain], state), false);
    let losses =
        "    lost to: stats-flusher 244.70 s, 1 other less than 0.01 s, not known 0.30 s\n";
    assert!(report.contains(losses), "{report}");
}

#[test]
fn tasks_that_the_probes_could_not_name_are_among_the_others() {
    let mut chain = chain(Cause::CpuPreemption, 42, 15.0, (NOON, NOON + 60.0));
    let loss = |pid, comm: &str, seconds| Loss { pid, comm: comm.into(), seconds };
    chain.losses = vec![loss(Some(9), "fluent-bit", 10.0), loss(None, "other", 4.0)];
    let shown = |chain: &Chain| {
        let state = observed(Period::attached(NOON - 3600.0));
        render(&Incident::of("node1".into(), vec![chain.clone()], state), false)
    };
    let report = shown(&chain);
    let losses = "    lost to: fluent-bit (PID 9) 10.00 s, others 4.00 s, not known 1.00 s\n";
    assert!(report.contains(losses), "{report}");
    chain.losses.extend([loss(None, "bash", 0.04), loss(None, "mkdir", 0.06)]);
    let report = shown(&chain);
    assert!(report.contains("9) 10.00 s, others 4.10 s, not known 0.90 s\n"), "{report}");
}

#[test]
fn what_a_program_does_itself_has_the_program_as_its_culprit() {
    let shown = |cause| {
        let mut chain = chain(cause, 42, 8.0, (NOON, NOON + 60.0));
        chain.culprit = None;
        let state = observed(Period::attached(NOON - 3600.0));
        render(&Incident::of("node1".into(), vec![chain], state), false)
    };
    assert!(shown(Cause::ImplicitSync).contains("    culprit: the program itself\n"));
    assert!(!shown(Cause::BlockIo).contains("    culprit: "));
}

#[test]
fn a_culprit_of_the_victims_own_process_is_named_by_its_thread() {
    let mut chain = chain(Cause::LockWait, 42, 8.0, (NOON, NOON + 60.0));
    let mut shown = |tid| {
        chain.culprit =
            Some(Culprit { pid: 42, comm: "flusher".into(), tid, ..Culprit::default() });
        let state = observed(Period::attached(NOON - 3600.0));
        render(&Incident::of("node1".into(), vec![chain.clone()], state), false)
    };
    let named = "    culprit: flusher (thread 45 of the victim's process)\n";
    assert!(shown(Some(45)).contains(named));
    assert!(shown(None).contains("    culprit: flusher (a thread of the victim's process)\n"));
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

fn asked(chains: Vec<Chain>, filter: &ChainFilter) -> Incident {
    let window = (filter.from.unwrap_or(NOON - 300.0), filter.until.unwrap_or(NOON));
    let state = Some(Period::attached(NOON - 3600.0).into());
    let observed = Observed::of_node(state, window.0, window.1);
    Incident::filtered("node1".into(), chains, observed, filter)
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

#[test]
fn each_victim_has_a_root_cause_and_the_one_with_the_worst_chain_comes_first() {
    let chains = vec![
        chain(Cause::LockWait, 42, 3.0, (NOON - 90.0, NOON)),
        chain(Cause::DataloaderStarvation, 50, 5.0, (NOON - 90.0, NOON)),
        chain(Cause::Unexplained, 42, 4.0, (NOON - 90.0, NOON)),
        chain(Cause::PageFault, 42, 2.0, (NOON - 90.0, NOON)),
    ];
    let incident = asked(chains, &ChainFilter::default());
    let report = render(&incident, false);
    let (before, _) = report.split_once("TIMELINE").unwrap();
    let order: Vec<_> = before
        .lines()
        .filter(|line| line.contains(" -> ") || line.starts_with(['R', 'A']))
        .map(|line| line.split(" -> ").next().unwrap().trim())
        .collect();
    let expected = [
        "ROOT CAUSE of trainer (PID 50)",
        "dataloader_starvation",
        "ROOT CAUSE of trainer (PID 42)",
        "lock_wait",
        "ALSO of trainer (PID 42)",
        "unexplained",
        "page_fault",
    ];
    assert_eq!(order, expected, "{report}");
    let root = incident.root_cause.as_ref().unwrap();
    assert_eq!(root.cause, Cause::DataloaderStarvation, "as JSON has it");
    let md = markdown::of(&report_of(&incident));
    assert!(md.contains("\n### Root cause of trainer (PID 50)\n"), "{md}");
    let html = html::of(&report_of(&incident));
    assert!(html.contains("<h3>Also of trainer (PID 42)</h3>"), "{html}");
}

#[test]
fn what_delays_a_process_comes_before_what_it_delays() {
    let mut other = chain(Cause::CpuPreemption, 50, 99.0, (NOON - 90.0, NOON));
    other.culprit = Some(Culprit { pid: 42, comm: "trainer".into(), ..Culprit::default() });
    let own = chain(Cause::LockWait, 42, 1.0, (NOON - 90.0, NOON));
    let filter = ChainFilter { pids: vec![42], ..ChainFilter::default() };
    let incident = asked(vec![other.clone(), own], &filter);
    assert_eq!(incident.root_cause.as_ref().unwrap().cause, Cause::LockWait);
    assert_eq!(incident.others[0].cause, Cause::CpuPreemption);
    let report = render(&incident, false);
    assert!(report.contains("\n\nROOT CAUSE\n  lock_wait -> "), "{report}");
    assert!(report.contains("\n\nIT DELAYS OTHERS\n  cpu_preemption -> "), "{report}");
    assert!(markdown::of(&report_of(&incident)).contains("\n### It delays others\n"));
    assert!(html::of(&report_of(&incident)).contains("<h3>It delays others</h3>"));
    let incident = asked(vec![other], &filter);
    assert_eq!(incident.root_cause.as_ref().unwrap().cause, Cause::CpuPreemption);
    assert!(!render(&incident, false).contains("ROOT CAUSE"));
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
