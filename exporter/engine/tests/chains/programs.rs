//! Causes within the program itself.

use gpucause_abi::op::CopyKind;
use gpucause_abi::state::{Phase, Reason};
use gpucause_engine::chain::{Cause, Effect, Severity};

use crate::host::{Host, takes};
use crate::process::{MIB, MS, Process, US};
use crate::scenarios::{self, FAULT_WINDOWS, steady, trained};

#[test]
fn a_wait_after_every_launch_is_a_storm() {
    let host = scenarios::syncing();
    let chain = host.only(Cause::ImplicitSync);
    // All but 4,000 waits of 302 us; the time in launches is idle time of the GPU too.
    assert_eq!((chain.effect, chain.severity), (Effect::SyncStorm, Severity::High));
    takes(chain, u64::from(FAULT_WINDOWS) * (2_000 * MS - 4_000 * 302 * US));
}

#[test]
fn a_blocking_copy_after_most_launches_is_one_too() {
    let host = scenarios::copying_results();
    let chain = host.only(Cause::ImplicitSync);
    assert_eq!(chain.evidence.get("blocking_copies_to_host"), Some(3_000.0));
    takes(chain, u64::from(FAULT_WINDOWS) * (2_000 * MS - 3_000 * 400 * US));
}

#[test]
fn waits_and_the_time_between_them_are_numbers_of_their_own() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(4_000, 5 * US);
        train.copies("cudaMemcpy", 0, CopyKind::D2h, 4_000, 100 * US);
        train.off(Phase::Memcpy, Reason::Preempted, 500 * MS);
        train.off(Phase::Host, Reason::Preempted, 100 * MS);
    });
    let chains = host.chains();
    let chain = chains.iter().find(|chain| chain.cause == Cause::ImplicitSync).unwrap();
    let number = |name| chain.evidence.get(name);
    assert_eq!(number("waiting_seconds"), Some(0.4), "without the time that it had no CPU");
    assert_eq!(number("between_waits_seconds"), Some(1.0));
    assert_eq!((number("taken_share"), number("lost_share")), (Some(0.5), None));
    assert_eq!(chain.path[0].mechanism, "computes and launches between waits");
    let at_least = "400 ms in all. Each wait drains the GPU, which then has little or no work while train computes and \
                    launches: for at least 50 % of the time.";
    assert!(chain.sentence.contains(at_least), "{}", chain.sentence);
}

#[test]
fn syncs_of_a_thread_that_does_not_launch_are_no_storm() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).launches(2_000, 5 * US);
        train.on(101).calls("cudaStreamSynchronize", 2_000, 500 * US, &[]);
    });
    host.is_silent();
}

#[test]
fn syncs_between_long_kernels_are_healthy() {
    let mut host = trained();
    host.run(50, |train| {
        train.on(100).launches(400, 5 * US);
        train.calls("cudaStreamSynchronize", 400, 10 * US, &[(Reason::GpuDriver, 4_600 * US)]);
    });
    host.is_silent();
}

#[test]
fn taking_and_giving_back_memory_all_the_time_is_churn() {
    let host = scenarios::churning();
    let chain = host.only(Cause::AllocatorChurn);
    assert_eq!((chain.effect, chain.severity), (Effect::AllocTail, Severity::Medium));
    takes(chain, u64::from(2 * FAULT_WINDOWS) * 300 * MS);
}

#[test]
fn giving_cached_memory_back_for_allocations_that_fail_is_churn_too() {
    let host = scenarios::refused_memory();
    let chain = host.only(Cause::AllocatorChurn);
    assert!(chain.evidence.get("calls_per_second") < Some(20.0), "{:?}", chain.evidence);
    assert!(chain.sentence.contains("allocations failed because"), "{}", chain.sentence);
    assert!(chain.fix.contains("expandable_segments"), "{}", chain.fix);
}

#[test]
fn one_allocation_that_fails_is_a_program_that_tries_how_much_memory_there_is() {
    let mut host = trained();
    host.run(1, |train| {
        steady(train);
        train.allocates(2, 100 * MS, 600 * MIB).frees(1, 100 * MS, 500 * MIB).refused(1);
    });
    host.run(10, steady);
    host.is_silent();
}

#[test]
fn one_cache_flush_is_no_churn() {
    let mut host = trained();
    host.run(1, |train| {
        steady(train);
        train.allocates(60, 500 * US, 600 * MIB).frees(60, 500 * US, 500 * MIB);
    });
    host.run(10, steady);
    host.is_silent();
}

#[test]
fn memory_that_grows_all_the_time_leaks() {
    let host = scenarios::leaking();
    let chain = host.only(Cause::MemoryLeak);
    assert_eq!((chain.effect, chain.severity), (Effect::MemoryGrowth, Severity::Medium));
    assert_eq!(chain.lost_seconds, 0.0);
    assert!(
        (chain.evidence.get("bytes_per_second").unwrap() / (5.0 * MIB as f64) - 1.0).abs() < 0.1
    );
}

#[test]
fn a_leak_below_batches_that_come_and_go_is_seen() {
    let mut host = trained();
    for window in 0..160 {
        host.run(1, |train| {
            steady(train);
            train.allocates(5, 10 * US, 10 * MIB);
            if window % 2 == 0 {
                train.allocates(5, 10 * US, 300 * MIB);
            } else {
                train.frees(5, 10 * US, 300 * MIB);
            }
        });
    }
    host.only(Cause::MemoryLeak);
}

#[test]
fn a_cache_that_fills_does_not_leak() {
    let mut host = trained();
    let mut left = 8_000.0;
    host.run(300, |train| {
        steady(train);
        // A fiftieth of what is still to come: the time constant is 100 s.
        train.allocates(5, 10 * US, (left / 50.0) as u64 * MIB);
        left *= 0.98;
    });
    host.is_silent();
}

#[test]
fn graphs_built_for_every_launch_are_reported() {
    let host = scenarios::recapturing();
    let chain = host.only(Cause::GraphRecapture);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::Medium));
    takes(chain, u64::from(FAULT_WINDOWS) * 20 * 17_100 * US);
}

/// A window of 20 steps that capture a graph, launch it once, and call these, which take most of a step's graph calls.
fn recapture(train: &mut Process, begin: &str, making: &[&str]) {
    steady(train);
    train.calls(begin, 20, 100 * US, &[]);
    train.calls("cudaStreamEndCapture", 20, 2 * MS, &[]);
    for op in making {
        train.calls(op, 20, 15 * MS, &[]);
    }
    train.calls("cudaGraphLaunch", 20, 50 * US, &[]);
    train.calls("cudaGraphDestroy", 20, 50 * US, &[]);
}

#[test]
fn graphs_captured_and_updated_for_every_launch_are_reported() {
    for begin in [
        "cudaStreamBeginCapture",
        "cudaStreamBeginCaptureToGraph",
        "cudaStreamBeginRecaptureToGraph",
        "cuStreamBeginCapture",
        "cuStreamBeginRecaptureToGraph",
    ] {
        let mut host = trained();
        host.run(4, |train| recapture(train, begin, &["cudaGraphExecUpdate"]));
        let chain = host.only(Cause::GraphRecapture);
        assert_eq!(chain.severity, Severity::Medium, "{begin}");
        assert_eq!(chain.evidence.get("graph_updates"), Some(20.0), "{begin}");
    }
}

#[test]
fn graphs_made_for_every_launch_from_the_start_are_reported_within_20_seconds() {
    let update = ["cudaGraphExecUpdate"];
    let replace = ["cudaGraphInstantiate", "cudaGraphExecDestroy"];
    for making in [&update[..], &replace, &replace[..1]] {
        let mut host = Host::training();
        // Nine ticks of two seconds; the process loads in the first.
        for window in 0..9 {
            host.run(1, |train| {
                recapture(train, "cudaStreamBeginCapture", making);
                if window == 0 {
                    train.calls("cudaGraphInstantiate", 1, 15 * MS, &[]).cold_launches(30, 8 * MS);
                }
            });
        }
        host.only(Cause::GraphRecapture);
    }
}

#[test]
fn graphs_captured_at_the_start_for_later_are_a_warm_up() {
    let mut host = Host::training();
    // Inference servers do so for each size of a batch: nothing is launched yet.
    host.run(12, |train| {
        steady(train);
        train.calls("cudaStreamBeginCapture", 4, 100 * US, &[]);
        train.calls("cudaStreamEndCapture", 4, 2 * MS, &[]);
        train.calls("cudaGraphInstantiate", 4, 60 * MS, &[]);
    });
    host.is_silent();
}

#[test]
fn graphs_that_are_built_once_and_launched_often_are_healthy() {
    let mut host = trained();
    host.run(20, |train| {
        steady(train);
        train.calls("cudaGraphInstantiate", 4, 15 * MS, &[]);
        train.calls("cudaGraphLaunch", 400, 50 * US, &[]);
    });
    host.is_silent();
}

#[test]
fn kernels_loaded_long_after_the_start_are_reported() {
    let host = scenarios::loading_kernels();
    let chain = host.only(Cause::ColdStart);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::High));
    takes(chain, u64::from(FAULT_WINDOWS) * 600 * MS);
}

#[test]
fn a_single_new_kernel_is_no_pattern() {
    let mut host = trained();
    host.run(1, |train| {
        steady(train);
        train.cold_launches(1, 800 * MS);
    });
    host.run(10, steady);
    host.is_silent();
}

#[test]
fn large_copies_are_slow_because_they_are_large() {
    let host = scenarios::copying_blocks();
    let chain = host.only(Cause::LargeCopy);
    assert_eq!((chain.effect, chain.severity), (Effect::CopyTail, Severity::High));
    takes(chain, u64::from(FAULT_WINDOWS) * 800 * MS);
}

#[test]
fn many_small_copies_are_not_large() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.copies("cudaMemcpyAsync", 1, CopyKind::H2d, 5_000, 100 * US);
    });
    host.is_silent();
}

#[test]
fn a_tail_that_nothing_explains_is_reported_as_that() {
    let host = scenarios::slow_for_no_reason();
    let chain = host.only(Cause::Unexplained);
    // Launches that wait for a full queue look the same: no loss is proven.
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::Low));
    assert_eq!((chain.explained, chain.lost_seconds), (0.0, 0.0));
    assert_eq!(chain.evidence.get("off_cpu_share_of_excess"), Some(0.0));
}

#[test]
fn a_leak_does_not_hide_a_tail_that_nothing_explains() {
    let mut host = Host::training();
    host.run(160, |train| {
        steady(train);
        train.allocates(10, 10 * US, 10 * MIB).launches(40, 5 * MS);
    });
    let causes: Vec<_> = host.chains().iter().map(|chain| chain.cause).collect();
    assert_eq!(causes, [Cause::Unexplained, Cause::MemoryLeak], "a leak takes no time");
}
