//! Programs with one thing wrong, of kinds whose alerts wait for minutes: each fires its alert and no other.

use std::collections::BTreeSet;
use std::time::Duration;

use gpucause_fixture::poll::within;
use gpucause_fixture::workload::Workload;

use super::expected::COMM;
use super::stack::{SPEED, Stack, firing};
use crate::trainer::Trainer;

/// A program with a scenario, on a CPU, and its alert.
type Scenario = (&'static str, usize, &'static str);

/// These take a CPU each: more of them at a time would starve each other.
const BUSY: [Scenario; 2] =
    [("host-code", 0, "GpucauseHostCode"), ("implicit-sync", 1, "GpucauseInefficientProgram")];
/// The first of these waits without a CPU. The alert of the second needs a quarter of an hour, as caches fill too, and five minutes more.
const SLOW: [Scenario; 2] = [("hang", 0, "GpucauseCallHung"), ("leak", 1, "GpucauseMemoryLeak")];
const DEADLINE: Duration = Duration::from_secs(30 * 60 / SPEED as u64);

/// Alerts, each with the PID of its process.
type Alerts = BTreeSet<(String, String)>;

fn start(stack: &Stack, &(scenario, cpu, alert): &Scenario) -> (Trainer, (String, String)) {
    let trainer = stack.trainer(&[
        scenario.to_owned(),
        format!("--comm={COMM}"),
        format!("--cpu={cpu}"),
        "--baseline=10".into(),
        format!("--seconds={}", DEADLINE.as_secs() * 2),
        "--undisturbed".into(),
    ]);
    let alert = (alert.to_owned(), trainer.pid().to_string());
    (trainer, alert)
}

/// A program some of whose launches fail.
fn failing() -> Workload {
    let seconds = format!("--seconds={}", DEADLINE.as_secs() * 2);
    let script = "--script=cudaLaunchKernel:ret=700@5";
    let mut program =
        Workload::start(&["rate", "--per-second=20", &seconds, script, "--comm", COMM]);
    program.go();
    program
}

fn until_fired(stack: &Stack, alerts: &Alerts) {
    let mut last = Alerts::new();
    within(DEADLINE, "each alert", || {
        let now = firing(&stack.prometheus);
        if now != last {
            println!("{now:?}");
            last.clone_from(&now);
        }
        std::thread::sleep(Duration::from_millis(500));
        now.is_superset(alerts).then_some(())
    });
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn each_fault_of_a_program_fires_its_alert_and_no_other() {
    let stack = Stack::start(SPEED);
    let (busy, mut alerts): (Vec<_>, Alerts) = BUSY.iter().map(|own| start(&stack, own)).unzip();
    until_fired(&stack, &alerts);
    drop(busy);
    let failing = failing();
    alerts.insert(("GpucauseCudaErrors".to_owned(), failing.pid()));
    let (_slow, of_slow): (Vec<_>, Alerts) = SLOW.iter().map(|own| start(&stack, own)).unzip();
    alerts.extend(of_slow);
    until_fired(&stack, &alerts);
    assert_eq!(firing(&stack.prometheus), alerts);
    stack.assert_that_all_is_evaluated();
}
