//! Fewer launches than the process used to make.
//!
//! The excess is the part of the window in which the usual rate would have left nothing to do: had the thread lost that
//! much time and worked as before for the rest, it would have launched as many as it did. Off-CPU time counts as far as it is
//! more than usual.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Reason, State};

use super::{Measured, Phases, ratio};
use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::settings::Settings;

pub(super) fn measure(subject: &Subject<'_>, settings: &Settings) -> Option<Measured> {
    let usual = subject.usual_launch_rate?;
    let delta = &subject.short;
    let rate = delta.launches(&settings.launch_ops) as f64 / delta.wall.as_secs_f64().max(1e-9);
    let drop = 1.0 - rate / usual.max(1e-9);
    if drop < settings.min_rate_drop {
        return None;
    }
    let off = |reason| State::Off(reason);
    let lost = |thread: &crate::delta::ThreadDelta| {
        let states = Reason::ALL.iter().map(|&reason| off(reason));
        Nanos(states.map(|s| thread.in_state(s, |p| Phases::Feeding.contain(p)).0).sum())
    };
    let thread = delta.victim(lost)?;
    let mut offcpu = [Nanos(0); gpucause_abi::record::REASONS];
    for (time, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
        let now = thread.in_state(off(reason), |phase| Phases::Feeding.contain(phase));
        *time = now.less(thread.wall.share(subject.usual_offcpu[reason as usize]));
    }
    let excess = thread.wall.share(drop);
    if ratio(excess, thread.wall) < settings.severities.low {
        return None;
    }
    Some(Measured {
        effect: Effect::LaunchRateDrop,
        excess,
        offcpu,
        phases: Phases::Feeding,
        tid: Some(thread.tid),
        long: false,
        evidence: Evidence::default()
            .with("launches_per_second", rate)
            .with("usual_launches_per_second", usual)
            .with("drop_share", drop),
    })
}
