//! Time between launches that the feeding thread was off the CPU for, waiting for the GPU apart.

use gpucause_abi::Nanos;
use gpucause_abi::record::REASONS;
use gpucause_abi::state::{Reason, State};

use super::{Measured, Phases, ratio};
use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::delta::ThreadDelta;
use crate::settings::Settings;

/// Off-CPU time of a thread by reason, between launches. A thread that was woken because the GPU is done and gets no CPU
/// loses that time too; one that is preempted while it polls for the GPU does not.
fn between_launches(thread: &ThreadDelta) -> [Nanos; REASONS] {
    let mut offcpu = [Nanos(0); REASONS];
    for (time, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
        *time = thread.in_state(State::Off(reason), |phase| Phases::BetweenLaunches.contain(phase));
        if reason == Reason::Runqueue {
            time.0 += thread.time.at(gpucause_abi::state::Phase::Sync, State::Off(reason)).0;
        }
    }
    offcpu
}

fn sum(offcpu: &[Nanos; REASONS]) -> Nanos {
    Nanos(offcpu.iter().map(|time| time.0).sum())
}

pub(super) fn measure(subject: &Subject<'_>, settings: &Settings) -> Option<Measured> {
    let (delta, long) = if subject.short.victim(|thread| sum(&between_launches(thread))).is_some() {
        (&subject.short, false)
    } else {
        (&subject.long, true)
    };
    let thread = delta.victim(|thread| sum(&between_launches(thread)))?;
    let offcpu = between_launches(thread);
    let excess = sum(&offcpu);
    if ratio(excess, thread.wall) < settings.severities.low {
        return None;
    }
    let mut evidence = Evidence::default()
        .with("calls", delta.launches(&settings.launch_ops) as f64)
        .with("off_cpu_between_launches_seconds", excess.as_secs_f64());
    if let (Some(p50), Some(p99)) =
        (delta.launch_gap.quantile(0.5), delta.launch_gap.quantile(0.99))
    {
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
        long,
        evidence,
    })
}
