//! Healthy workloads have no chain.

use gpucause_observe::chains::EVALUATE_EVERY;

use super::run::{Outcome, Plan, rounds, run, tries};

/// Length of each of the four healthy scenarios, in seconds.
fn seconds() -> f64 {
    let total = std::env::var("GPUCAUSE_HEALTHY_SECONDS").ok();
    total.map_or(5.0, |all| all.parse::<f64>().expect("a number of seconds") / 4.0)
}

fn check(name: &'static str) {
    for round in 1..=rounds() {
        // More often, evaluations would themselves take a share of the CPUs that is worth a chain.
        let evaluate_every = EVALUATE_EVERY / 3;
        let plan = Plan { baseline: 0.0, seconds: seconds(), evaluate_every, ..Plan::of(name) };
        let is_silent =
            |outcome: &Outcome| outcome.evaluations.iter().all(|own| own.chains.is_empty());
        let mut outcome = run(&plan);
        for _ in 1..tries() {
            if !is_silent(&outcome) {
                println!("{name} once more after {}", outcome.report());
                outcome = run(&plan);
            }
        }
        let evaluations = outcome.evaluations.len();
        let found = outcome.evaluations.iter().flat_map(|own| &own.chains).next();
        println!(
            "{name} {round}/{}: {evaluations} evaluations, {:?}",
            rounds(),
            found.map(|chain| chain.cause)
        );
        assert!(
            evaluations >= 8,
            "{name}: {evaluations} evaluations are too few: {}",
            outcome.report()
        );
        assert!(found.is_none(), "{name}: {}", outcome.report());
    }
}

#[test]
fn a_steady_loop_beside_restless_helpers_is_healthy() {
    check("healthy");
}

#[test]
fn a_server_that_waits_for_requests_is_healthy() {
    check("healthy-idle");
}

#[test]
fn a_loop_that_waits_for_the_gpu_is_healthy() {
    check("healthy-sync");
}

#[test]
fn a_loop_beside_a_busy_cpu_is_healthy() {
    check("healthy-noise");
}
