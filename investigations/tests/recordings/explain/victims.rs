//! Chains and losses by victim.

use gpucause_engine::chain::{Cause, Culprit};
use gpucause_engine::observation::Period;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::{Incident, html, markdown, render};

use super::{NOON, asked, chain, observed, report_of};

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
