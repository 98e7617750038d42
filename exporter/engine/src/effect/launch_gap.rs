//! Time between launches for which a dispatcher thread was off the CPU, except waiting for the GPU.

use std::cell::LazyCell;

use gpucause_abi::Nanos;
use gpucause_abi::state::{Reason, State};

use super::own_waits;
use crate::chain::{Effect, Evidence};
use crate::context::{Measured, Process};
use crate::delta::{Delta, ThreadDelta};
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::{ratio, total};

/// Threads per process that are evaluated, by time in launches.
const MAX_THREADS: usize = 4;

/// Off-CPU time of a thread for a reason between launches, including the lost part of synchronisation.
fn between_launches(thread: &ThreadDelta, reason: Reason) -> Nanos {
    thread.in_state(State::Off(reason), |phase| Phases::BetweenLaunches.contain_wait(phase, reason))
}

/// Gaps per dispatcher thread: an idle thread must not hide one that is blocked.
pub(super) fn measure(process: &Process<'_>, settings: &Settings) -> Vec<Measured> {
    let delta = &process.short;
    let mut feeders: Vec<_> = delta.feeders().collect();
    feeders.sort_by_key(|thread| std::cmp::Reverse(thread.fed));
    let quantiles = LazyCell::new(|| {
        let gaps = delta.launch_gap();
        gaps.quantile(0.5).zip(gaps.quantile(0.99))
    });
    let feeders = feeders.into_iter().take(MAX_THREADS);
    feeders.filter_map(|thread| gap(delta, thread, || *quantiles, settings)).collect()
}

/// The gap of one thread. The quantiles, p50 and p99, are those of gaps of all threads.
fn gap(
    delta: &Delta<'_>,
    thread: &ThreadDelta,
    quantiles: impl FnOnce() -> Option<(Nanos, Nanos)>,
    settings: &Settings,
) -> Option<Measured> {
    let offcpu = own_waits(delta, thread, Phases::BetweenLaunches, |reason| {
        between_launches(thread, reason)
    });
    let excess = total(offcpu.into_iter());
    if ratio(excess, thread.wall) < settings.severities.low {
        return None;
    }
    let mut evidence = Evidence::default()
        .with("calls", delta.launches(&settings.launch_ops) as f64)
        .with("off_cpu_between_launches_seconds", excess.as_secs_f64());
    if let Some((p50, p99)) = quantiles() {
        evidence = evidence
            .with("gap_p50_seconds", p50.as_secs_f64())
            .with("gap_p99_seconds", p99.as_secs_f64());
    }
    Some(Measured {
        effect: Effect::LaunchGap,
        excess,
        offcpu,
        phases: Phases::BetweenLaunches,
        tid: Some(thread.tid),
        long: false,
        evidence,
    })
}
