//! Time between launches for which a dispatcher thread was off the CPU, except waiting for the GPU.

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
    let gaps = feeders.into_iter().take(MAX_THREADS);
    gaps.filter_map(|thread| gap(delta, thread, settings)).collect()
}

fn gap(delta: &Delta<'_>, thread: &ThreadDelta, settings: &Settings) -> Option<Measured> {
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
    let gaps = delta.launch_gap();
    if let (Some(p50), Some(p99)) = (gaps.quantile(0.5), gaps.quantile(0.99)) {
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
