//! Fewer launches than the process used to make.
//!
//! The excess is the part of the window in which the usual rate would have left nothing to do: had the thread lost that
//! much time and worked as before for the rest, it would have launched as many as it did. Off-CPU time counts as far as it is
//! more than usual. Where launches were watched for part of the window only, nothing is said.

use gpucause_abi::state::State;

use super::{Measured, Phases, own_waits, ratio};
use crate::case::Subject;
use crate::chain::{Effect, Evidence};
use crate::history::History;
use crate::settings::Settings;

pub(super) fn measure(
    subject: &Subject<'_>,
    history: &History,
    settings: &Settings,
) -> Option<Measured> {
    let usual = history.usual_launch_rate()?;
    let delta = &subject.short;
    if !delta.saw_launches() {
        return None;
    }
    let rate = delta.launches(&settings.launch_ops) as f64 / delta.wall.as_secs_f64().max(1e-9);
    let drop = 1.0 - rate / usual.max(1e-9);
    if drop < settings.min_rate_drop {
        return None;
    }
    let thread = delta.main_feeder()?;
    let feeding = |reason| thread.in_state(State::Off(reason), |p| Phases::Feeding.contain(p));
    let mut offcpu = own_waits(delta, thread, feeding);
    for (time, usual) in offcpu.iter_mut().zip(history.usual_offcpu()) {
        *time = time.less(thread.wall.share(usual));
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
