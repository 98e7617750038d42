//! Each fault notifies of its alert, and of no other.

use std::process::Command;
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
/// From the end of a fault until the last minute shows less of it than alerts do.
const CLEAR_DEADLINE: Duration = Duration::from_secs(75);
/// From then to the notification: a minute in which an alert goes on, so that it does not flap, and one between two
/// notifications of a group.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(150);
/// Healthy time before a fault: more than the exporter takes to know that the program has warmed up.
const BASELINE_SECONDS: u32 = 15;
/// Longer than any fault is watched.
const FAULT_SECONDS: u32 = 600;

/// A fault whose alert was received, still there.
struct Notified {
    expected: Expected,
    trainer: Trainer,
    pid: u32,
    injected: Value,
}

fn unix_now() -> f64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}

/// Has a trainer, and those that fight with it, come before all others on this host: what these do for minutes would be told
/// too, and rightly so.
fn favour(trainer: &Trainer) {
    let group = trainer.pid().to_string();
    let output = Command::new("renice").args(["-n", "-20", "-g", &group]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Starts a program that a fault will strike.
fn start(stack: &Stack, expected: &Expected) -> Trainer {
    let mut arguments = vec![
        expected.scenario.to_owned(),
        "--comm=demo-trainer".into(),
        format!("--baseline={BASELINE_SECONDS}"),
        format!("--seconds={FAULT_SECONDS}"),
    ];
    if expected.undisturbed {
        arguments.push("--undisturbed".into());
    }
    let trainer = stack.trainer(&arguments);
    if !expected.undisturbed {
        favour(&trainer);
    }
    trainer
}

/// Waits for a fault and its alert.
fn notified(stack: &Stack, expected: Expected, mut trainer: Trainer) -> Notified {
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
    assert!(alert.at_unix - at_unix < NOTIFY_DEADLINE.as_secs_f64());
    let complaints = expected.complaints(&alert, pid);
    assert!(complaints.is_empty(), "{complaints:#?}");
    if let Some(inhibited) = expected.inhibited {
        within(NOTIFY_DEADLINE, "what the alert inhibits", || {
            stack.inhibited(pid).iter().any(|name| name == inhibited).then_some(())
        });
    }
    Notified { expected, trainer, pid, injected }
}

/// Those who disturb a program, by what it said.
fn culprits(injected: &Value) -> Vec<Pid> {
    let pids = injected["culprit"]["pids"].as_array().unwrap().iter();
    pids.map(|pid| Pid::from_raw(pid.as_i64().unwrap().try_into().unwrap())).collect()
}

/// Ends the fault and leaves the program alone, until the last minute shows next to nothing of it.
fn relieve(stack: &Stack, fault: &Notified) {
    for pid in culprits(&fault.injected) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    let pid = fault.pid;
    // Not by a rule, which is up to half a minute behind.
    let lost = format!("sum(rate(gpucause_stall_seconds_total{{pid=\"{pid}\"}}[1m])) < 0.1");
    within(CLEAR_DEADLINE, "the program loses no time", || stack.prometheus.value(&lost));
}

#[test]
fn each_fault_reaches_its_receiver_as_the_right_alert_and_as_no_other() {
    let stack = Stack::start();
    let contended = notified(&stack, CPU_CONTENTION, start(&stack, &CPU_CONTENTION));
    relieve(&stack, &contended);
    let ended_at = unix_now();
    let mut all = vec![(contended.expected, contended.pid)];
    drop(contended.trainer);
    // These two need no CPU that the other has.
    let started = [LOCK, DATALOADER].map(|expected| (expected, start(&stack, &expected)));
    let faults = started.map(|(expected, trainer)| notified(&stack, expected, trainer));
    all.extend(faults.iter().map(|fault| (fault.expected, fault.pid)));
    let (first, pid) = all[0];
    let resolved = within(RESOLVE_DEADLINE, "the first alert resolves", || {
        stack.webhook.first(|alert| first.is(alert, pid) && alert.resolved)
    });
    let after = resolved.at_unix - ended_at;
    println!("{}: resolved {after:.1} s after the last minute was free of it", first.scenario);
    let mut received = stack.webhook.received();
    received.retain(|alert| !all.iter().any(|(expected, pid)| expected.is(alert, *pid)));
    assert!(received.is_empty(), "nothing tells of these: {received:#?}");
    stack.assert_that_all_is_evaluated();
}
