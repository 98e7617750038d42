//! Whom a report names as the culprit, and what each took.

use gpucause_engine::chain::{Cause, Chain, Culprit, Loss};
use gpucause_engine::observation::Period;
use gpucause_investigations::explain::{Incident, render};

use super::{NOON, chain, observed};

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
