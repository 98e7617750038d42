//! Fewer launches than usual for the process.
//!
//! The excess is the part of the window that the thread must have lost if it launched at the usual rate for the rest. Off-CPU time
//! counts as far as it exceeds the usual. Not measured when launches were observed for only part of the window.

use gpucause_abi::state::State;

use super::{LAUNCH_SLOWDOWN, USUAL_LAUNCHES, own_waits};
use crate::chain::{Effect, Evidence};
use crate::context::{Measured, Process};
use crate::history::History;
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::ratio;

pub(super) fn measure(
    process: &Process<'_>,
    history: &History,
    settings: &Settings,
) -> Option<Measured> {
    let usual = history.usual_launch_rate()?;
    let delta = &process.short;
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
    let mut offcpu = own_waits(delta, thread, Phases::Feeding, feeding);
    for (time, usual) in offcpu.iter_mut().zip(history.usual_offcpu()) {
        *time = time.less(thread.wall.share(usual));
    }
    let excess = thread.wall.share(drop);
    if ratio(excess, thread.wall) < settings.severities.low {
        return None;
    }
    let mut evidence = Evidence::default()
        .with("launches_per_second", rate)
        .with(USUAL_LAUNCHES, usual)
        .with("drop_share", drop);
    if let Some(slowdown) = history.slowdown_of_launches(delta, settings) {
        evidence = evidence.with(LAUNCH_SLOWDOWN, slowdown);
    }
    Some(Measured {
        effect: Effect::LaunchRateDrop,
        excess,
        offcpu,
        phases: Phases::Feeding,
        tid: Some(thread.tid),
        long: false,
        evidence,
    })
}
