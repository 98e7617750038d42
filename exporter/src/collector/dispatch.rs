//! Dispatcher threads: their wall time, calls in flight, and gaps between launches.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{
    DISPATCHER_LOST, DISPATCHER_TIME, DISPATCHER_WALL, INFLIGHT_CALL_AGE, LAUNCH_GAP, Level,
};

use super::{CollectError, Collector, Families, Input, Series, eager};
use gpucause_abi::Nanos;
use gpucause_abi::op::OpId;
use gpucause_abi::state::{Phase, Reason, State};
use std::collections::BTreeMap;

pub(super) struct Dispatch;

impl Collector for Dispatch {
    fn name(&self) -> &'static str {
        "dispatch"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut times = Family::new(&DISPATCHER_TIME);
        let mut walls = Family::new(&DISPATCHER_WALL);
        let mut losses = Family::new(&DISPATCHER_LOST);
        let mut ages = Family::new(&INFLIGHT_CALL_AGE);
        let mut gaps = Family::new(&LAUNCH_GAP);
        for series in input.series.iter().filter(|series| series.process.dispatches) {
            add_times(&mut times, series, input.level);
            add_sums(&mut walls, &mut losses, series);
            add_ages(&mut ages, series);
            gaps.push_created(
                [(&series.pid).into(), (&series.comm).into()],
                Value::Histogram(series.process.launch_gap.clone()),
                series.created,
            );
        }
        Ok(eager([ages, gaps, times, walls, losses]))
    }
}

/// Cells without time have no series. The fleet level has what ranks are compared by: the phases in which they wait for each other, and
/// the states in which a rank does nothing at all.
fn add_times(family: &mut Family, series: &Series<'_>, level: Level) {
    let is_of = |phase: Phase, state: State| {
        level > Level::Fleet
            || matches!(phase, Phase::Sync | Phase::Nccl)
            || matches!(state, State::Off(Reason::Stopped | Reason::Frozen | Reason::CoreDump))
    };
    for &phase in Phase::ALL {
        for state in State::all().filter(|&state| is_of(phase, state)) {
            let time = series.process.dispatcher_time.at(phase, state);
            if time > Nanos(0) {
                family.push_created(
                    [
                        (&series.pid).into(),
                        (&series.comm).into(),
                        phase.label().into(),
                        state.label().into(),
                    ],
                    Value::Seconds(time),
                    series.created,
                );
            }
        }
    }
}

/// Sums that rules would otherwise compute over the cells of every process of a fleet.
fn add_sums(walls: &mut Family, losses: &mut Family, series: &Series<'_>) {
    let account = &series.process.dispatcher_time;
    let wall = account.total();
    if wall > Nanos(0) {
        let labels = [(&series.pid).into(), (&series.comm).into()];
        walls.push_created(labels, Value::Seconds(wall), series.created);
    }
    for state in State::all() {
        let lost = account.lost(state);
        if lost > Nanos(0) {
            let labels = [(&series.pid).into(), (&series.comm).into(), state.label().into()];
            losses.push_created(labels, Value::Seconds(lost), series.created);
        }
    }
}

fn add_ages(family: &mut Family, series: &Series<'_>) {
    let mut oldest: BTreeMap<OpId, Nanos> = BTreeMap::new();
    for (op, age) in series.process.dispatchers.iter().filter_map(|dispatcher| dispatcher.inflight)
    {
        let entry = oldest.entry(op).or_default();
        *entry = age.max(*entry);
    }
    for (op, age) in oldest {
        let Some(op) = op.op() else { continue };
        let labels = [(&series.pid).into(), (&series.comm).into(), op.name.into()];
        family.push(labels, Value::Seconds(age));
    }
}
