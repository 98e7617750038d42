//! Each fault raises its alert and no other.

use std::process::Command;
use std::time::Duration;

use gpucause_fixture::poll::{until, within};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::expected::{COMM, CPU_CONTENTION, DATALOADER, Expected, LOCK};
use super::stack::{SPEED, Stack, until_injected};
use crate::trainer::Trainer;

/// Seconds that the exporter takes to detect a cause, on whatever clock.
const DETECTED_WITHIN: u64 = 5;
/// From the injection to the notification.
const NOTIFY_DEADLINE: Duration = on_this_clock(120);
/// From the end of a fault until its rate over the last minute of the shipped clock is below the alert's threshold.
const CLEAR_DEADLINE: Duration = on_this_clock(75);
/// From then to the notification: a minute for which an alert keeps firing, and one between two notifications of a group.
const RESOLVE_DEADLINE: Duration = on_this_clock(150);
/// Until the shipped clock's minute in which a counter changed last has been recorded.
const AMOUNT_DEADLINE: Duration = Duration::from_secs(150 / SPEED as u64);
/// Healthy time before a fault, after which the exporter knows that the program has warmed up.
const BASELINE_SECONDS: u32 = 10;
/// Longer than any fault is watched.
const FAULT_SECONDS: u32 = 600;

/// An ongoing fault whose alert was received.
struct Notified {
    expected: Expected,
    trainer: Trainer,
    pid: u32,
    injected: Value,
}

/// A time of the shipped clock; detection takes `DETECTED_WITHIN` of it on any clock.
const fn on_this_clock(seconds: u64) -> Duration {
    Duration::from_secs(DETECTED_WITHIN + (seconds - DETECTED_WITHIN) / SPEED as u64)
}

fn unix_now() -> f64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}

/// Gives a trainer and its culprits priority over all others on this host, whose disturbances would rightly be reported, too.
fn favour(trainer: &Trainer) {
    let group = trainer.pid().to_string();
    let output = Command::new("renice").args(["-n", "-20", "-g", &group]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Starts a program in which a fault will be injected.
fn start(stack: &Stack, expected: &Expected) -> Trainer {
    let mut arguments = vec![
        expected.scenario.to_owned(),
        format!("--comm={COMM}"),
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
    if expected.slows_launches {
        within(NOTIFY_DEADLINE, "the alert of the launch p99", || {
            stack.webhook.first(|alert| expected.is_of_launches(alert, pid))
        });
    }
    Notified { expected, trainer, pid, injected }
}

/// The culprits that the program reported.
fn culprits(injected: &Value) -> Vec<Pid> {
    let pids = injected["culprit"]["pids"].as_array().unwrap().iter();
    pids.map(|pid| Pid::from_raw(pid.as_i64().unwrap().try_into().unwrap())).collect()
}

/// Ends the fault and waits until the last minute of the shipped clock has hardly any of it.
fn relieve(stack: &Stack, fault: &Notified) {
    for pid in culprits(&fault.injected) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    let pid = fault.pid;
    // Not by a recording rule, which is up to half a minute late.
    let window = 60_000 / SPEED;
    let lost =
        format!("sum(rate(gpucause_stall_seconds_total{{pid=\"{pid}\"}}[{window}ms])) < 0.1");
    within(CLEAR_DEADLINE, "the program loses no time", || stack.prometheus.value(&lost));
}

/// Asserts that the amounts of minutes add up to what the exporter counted of a process, also by owner, and have the example's price.
fn assert_that_amounts_add_up(stack: &Stack, pid: u32) {
    let amount = |series: &str| format!("sum(sum_over_time({series}[1h]))");
    let of_process = format!("cause:gpucause_lost_seconds:increase1m{{pid=\"{pid}\"}}");
    // Amounts are of the minute before.
    let minute = 60_000 / SPEED;
    let counted = format!("sum(gpucause_stall_seconds_total{{pid=\"{pid}\"}} offset {minute}ms)");
    let all = amount("cause:gpucause_lost_seconds:increase1m");
    let price = amount("owner:gpucause_lost_cost:increase1m{currency=\"USD\"}");
    let pairs = [
        (counted, amount(&of_process)),
        (all.clone(), amount("owner:gpucause_lost_seconds:increase1m")),
        (all, format!("{price} * 3600 / 2.5")),
    ];
    for (one, other) in pairs {
        let equal = format!("{one} > 1 and abs({one} - {other}) < 1e-6");
        let seconds = within(AMOUNT_DEADLINE, &equal, || stack.prometheus.value(&equal));
        println!("{seconds:.3} s are {other}");
    }
}

#[test]
fn each_fault_reaches_its_receiver_as_the_right_alert_and_as_no_other() {
    let stack = Stack::start(SPEED);
    // No amount has what a process lost before these rules were evaluated.
    until("rules of cost", || stack.prometheus.value("instance:gpucause_exporter:counted"));
    let contended = notified(&stack, CPU_CONTENTION, start(&stack, &CPU_CONTENTION));
    relieve(&stack, &contended);
    let ended_at = unix_now();
    let mut all = vec![(contended.expected, contended.pid)];
    drop(contended.trainer);
    // These two do not compete for a CPU.
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
    received.retain(|alert| {
        let is_expected = |(expected, pid): &(Expected, u32)| {
            expected.is(alert, *pid) || expected.is_of_launches(alert, *pid)
        };
        !all.iter().any(is_expected)
    });
    assert!(received.is_empty(), "unexpected alerts: {received:#?}");
    assert_that_amounts_add_up(&stack, pid);
    let expected = all.iter().flat_map(|(expected, pid)| {
        expected.names().map(|name| (name.to_owned(), pid.to_string()))
    });
    stack.assert_that_native_histograms_alone_raise(&expected.collect());
    stack.assert_that_all_is_evaluated();
}
