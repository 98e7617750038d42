//! The daemon's cost for a program that launches 200,000 kernels a second, with its budget and without one. Without one, the cost that
//! it reports is compared with the time that the program lost.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::workload::{Workload, libraries};
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
/// As long as launches take by themselves, so that one thread makes 200,000 a second.
const SPIN: &str = "--script=cudaLaunchKernel:spin=4700ns";
const LAUNCHES: u64 = 2_000_000;
/// Enough launches to exceed the budget until the daemon acts on it.
const WARM_UP: u64 = 1_600_000;
/// Calls are counted while that costs at most the default of `--probe.counting-limit`.
const LOSS_BOUND: f64 = 0.03;
const AGREEMENT_BOUND: f64 = 0.2;

/// Makes the calls as fast as it can; how long they took.
fn launches(count: u64) -> Duration {
    let calls = format!("--calls={count}");
    let mut workload = Workload::start(&["calls", &calls, SPIN]);
    let begin = Instant::now();
    workload.work();
    let took = begin.elapsed();
    workload.end();
    took
}

struct Watched {
    took: Duration,
    /// Seconds that the call probes report as their cost to the program.
    reported: f64,
    duty: f64,
}

fn watched(budget: &str) -> Watched {
    let exporter = Exporter::start(&[budget]);
    let holder = Workload::start(&["idle"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    launches(WARM_UP);
    let call = |name| exporter.samples().sum(name, &[("probe", "call")]);
    let both = || (call("gpucause_probe_cost_seconds_total"), call("gpucause_probe_hits_total"));
    let before = both();
    let took = launches(LAUNCHES);
    let (cost, hits) = both();
    // Other programs of the host may launch as well.
    let reported = (cost - before.0) * (LAUNCHES as f64 / (hits - before.1)).min(1.0);
    let duty = exporter.samples().sum("gpucause_probe_duty_ratio", &[]);
    drop(holder);
    Watched { took, reported, duty }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn run() {
    let (mut losses, mut noise, mut agreements, mut duties) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let before = launches(LAUNCHES).as_secs_f64();
        let kept = watched("--probe.budget=2%");
        let free = watched("--probe.budget=off");
        let after = launches(LAUNCHES).as_secs_f64();
        let plain = before.min(after);
        losses.push(kept.took.as_secs_f64() / plain - 1.0);
        noise.push((before / after - 1.0).abs());
        agreements.push(free.reported / (free.took.as_secs_f64() - plain));
        duties.push(kept.duty);
        println!(
            "  round: none {before:.2} s and {after:.2} s, budget {:.2} s, no budget {:.2} s, reported {:.2} s",
            kept.took.as_secs_f64(),
            free.took.as_secs_f64(),
            free.reported
        );
    }
    println!(
        "a thread that launches as often as it can, {LAUNCHES} times, {ROUNDS} interleaved rounds"
    );
    println!(
        "  loss at a budget of 2 %  {:5.2} %, duty ratio {:.2}   (must be <= {:.0} % and noise, here {:.2} %)",
        100.0 * median(losses.into_iter()),
        median(duties.into_iter()),
        100.0 * LOSS_BOUND,
        100.0 * median(noise.into_iter())
    );
    println!(
        "  without a budget, reported cost / time lost  {:.2}   (must be within {:.0} %)",
        median(agreements.into_iter()),
        100.0 * AGREEMENT_BOUND
    );
}
