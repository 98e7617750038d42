//! Healthy workloads fire no alert.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpucause_fixture::poll::until;

use super::expected::COMM;
use super::stack::{SPEED, Stack};
use crate::trainer::Trainer;

/// Two run at a time, each dispatcher thread on a CPU of its own.
const SCENARIOS: [[&str; 2]; 2] = [["healthy", "healthy-idle"], ["healthy-noise", "healthy-sync"]];

/// Length of each, in seconds, and how fast the clock is.
fn length() -> (u64, u32) {
    let total = std::env::var("GPUCAUSE_HEALTHY_SECONDS").ok();
    let each = total.map(|all| all.parse::<u64>().expect("a number of seconds") / 2);
    each.map_or((9, SPEED), |seconds| (seconds, 1))
}

/// Starts a program; `cpu` is that of its dispatcher thread.
fn start(stack: &Stack, scenario: &str, cpu: usize, seconds: u64) -> Trainer {
    stack.trainer(&[
        scenario.to_owned(),
        format!("--comm={COMM}"),
        format!("--cpu={cpu}"),
        "--baseline=0".into(),
        format!("--seconds={seconds}"),
        "--undisturbed".into(),
    ])
}

/// Alerts in a state at any time of the run, each with its labels.
fn alerts(stack: &Stack, state: &str) -> Vec<String> {
    let expression = format!("max_over_time(ALERTS{{alertstate=\"{state}\"}}[1h])");
    let series = stack.prometheus.series(&expression).into_iter();
    series.map(|series| series["metric"].to_string()).collect()
}

#[test]
fn healthy_programs_fire_no_alert() {
    let (seconds, speed) = length();
    let stack = Stack::start(speed);
    let begun = Instant::now();
    for pair in SCENARIOS {
        let trainers = [1, 0].map(|cpu| start(&stack, pair[1 - cpu], cpu, seconds));
        for (scenario, mut trainer) in pair.into_iter().zip(trainers) {
            let pid = trainer.pid();
            let end = Instant::now() + Duration::from_secs(seconds + 30);
            assert!(!trainer.listen_until(end), "{scenario} does not end");
            // Without observed launches, silence proves nothing.
            let launches =
                format!("max_over_time(process:gpucause_launches:rate1m{{pid=\"{pid}\"}}[1h])");
            let launches = until("launches", || stack.prometheus.value(&launches));
            assert!(launches > 10.0, "{scenario}: {launches} launches a second");
            println!("{scenario}: {seconds} s, {launches:.0} launches a second");
        }
    }
    println!("pending for a time: {:#?}", alerts(&stack, "pending"));
    let (fired, received) = (alerts(&stack, "firing"), stack.webhook.received());
    assert!(fired.is_empty() && received.is_empty(), "{fired:#?}\n{received:#?}");
    stack.assert_that_native_histograms_alone_raise(&BTreeSet::new());
    stack.assert_that_all_is_evaluated();
    println!("no alert in {:.0} s", begun.elapsed().as_secs_f64());
}
