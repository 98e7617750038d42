//! Each fault notifies of its alert, and of no other.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::expected::{CPU_CONTENTION, DATALOADER, Expected, LOCK};
use crate::poll::within;
use crate::stack::{Stack, until_injected};
use crate::trainer::Trainer;

/// From the injection to the notification.
const NOTIFY_DEADLINE: Duration = Duration::from_mins(2);
/// From the end of a fault to the notification of that: a minute until the last minute shows none of it, a minute in which an
/// alert goes on so that it does not flap, a minute between two notifications of a group, and the reading of it.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(210);
/// Healthy time before a fault: more than the exporter takes to know that the program has warmed up.
const BASELINE_SECONDS: u32 = 15;
/// Longer than any fault is watched.
const FAULT_SECONDS: u32 = 600;

/// A fault that was told of.
struct Told {
    expected: Expected,
    trainer: Trainer,
    pid: u32,
    injected: Value,
}

fn unix_now() -> f64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}

/// Injects a fault and waits for its alert.
fn inject(stack: &Stack, expected: Expected) -> Told {
    let mut arguments = vec![
        expected.scenario.to_owned(),
        "--comm=demo-trainer".into(),
        format!("--baseline={BASELINE_SECONDS}"),
        format!("--seconds={FAULT_SECONDS}"),
    ];
    if expected.undisturbed {
        arguments.push("--undisturbed".into());
    }
    let mut trainer = stack.trainer(&arguments);
    let pid = trainer.pid();
    let injected = until_injected(&mut trainer);
    let at_unix = injected["at_unix"].as_f64().unwrap();
    let alert = within(NOTIFY_DEADLINE, expected.alert, || {
        stack.webhook.first(|alert| expected.is(alert, pid) && !alert.resolved)
    });
    println!(
        "{}: {} notified {:.1} s after the injection: {}",
        expected.scenario,
        expected.alert,
        alert.at_unix - at_unix,
        alert.annotation("description").replace('\n', " ")
    );
    let complaints = expected.complaints(&alert, pid);
    assert!(complaints.is_empty(), "{complaints:#?}");
    if let Some(inhibited) = expected.inhibited {
        within(NOTIFY_DEADLINE, "what the alert inhibits", || {
            stack.inhibited(pid).iter().any(|name| name == inhibited).then_some(())
        });
    }
    Told { expected, trainer, pid, injected }
}

/// Waits until the end of a fault has been told.
fn resolves(stack: &Stack, expected: Expected, pid: u32, ended_at: f64) {
    let resolved = within(RESOLVE_DEADLINE, "the alert resolves", || {
        stack.webhook.first(|alert| expected.is(alert, pid) && alert.resolved)
    });
    let after = resolved.at_unix - ended_at;
    println!("{}: resolved {after:.1} s after the fault ended", expected.scenario);
}

/// Those who disturb a program, by what it said.
fn culprits(injected: &Value) -> Vec<Pid> {
    let pids = injected["culprit"]["pids"].as_array().unwrap().iter();
    pids.map(|pid| Pid::from_raw(pid.as_i64().unwrap().try_into().unwrap())).collect()
}

#[test]
fn each_fault_reaches_its_receiver_as_the_right_alert_and_as_no_other() {
    let stack = Stack::start();
    let mut ended = Vec::new();
    for expected in [LOCK, DATALOADER] {
        let told = inject(&stack, expected);
        drop(told.trainer);
        ended.push((expected, told.pid, unix_now()));
    }
    // Of this one the fault ends and the program does not.
    let contended = inject(&stack, CPU_CONTENTION);
    for pid in culprits(&contended.injected) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    ended.push((contended.expected, contended.pid, unix_now()));
    for (expected, pid, ended_at) in &ended {
        resolves(&stack, *expected, *pid, *ended_at);
    }
    let wrong: Vec<_> = stack
        .webhook
        .received()
        .into_iter()
        .filter(|alert| !ended.iter().any(|(expected, pid, _)| expected.is(alert, *pid)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    stack.assert_that_all_is_evaluated();
    drop(contended.trainer);
}
