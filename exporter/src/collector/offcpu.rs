//! Off-CPU time, run-queue latency and context switches of observed processes.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{
    ALL_REASONS, CONTEXT_SWITCHES, Level, OFFCPU_DURATION, RUNQUEUE_LATENCY,
};

use super::{CollectError, Collector, Families, Input, Series, eager};
use gpucause_abi::hist::Histogram;
use gpucause_abi::state::{Role, Switch};

pub(super) struct Offcpu;

impl Collector for Offcpu {
    fn name(&self) -> &'static str {
        "offcpu"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut durations = Family::new(&OFFCPU_DURATION);
        let mut latencies = Family::new(&RUNQUEUE_LATENCY);
        let mut switches = Family::new(&CONTEXT_SWITCHES);
        for series in &input.series {
            let (pid, comm) = (&series.pid, &series.comm);
            add_durations(&mut durations, series, input.level);
            for (role, histogram) in &series.process.runqueue {
                latencies.push_created(
                    [pid.into(), comm.into(), role.label().into()],
                    Value::Histogram(histogram.clone()),
                    series.created,
                );
            }
            for &role in Role::ALL {
                let counts =
                    Switch::ALL.iter().map(|&kind| (kind, series.process.switches(role, kind)));
                if counts.clone().all(|(_, count)| count == 0) {
                    continue;
                }
                for (kind, count) in counts {
                    switches.push_created(
                        [pid.into(), comm.into(), role.label().into(), kind.label().into()],
                        Value::Integer(count),
                        series.created,
                    );
                }
            }
        }
        Ok(eager([durations, latencies, switches]))
    }
}

/// Each role over all reasons, and by reason. The standard level has no helpers, and by reason dispatchers only.
fn add_durations(family: &mut Family, series: &Series<'_>, level: Level) {
    let labels = |role: Role, reason: &'static str| {
        [(&series.pid).into(), (&series.comm).into(), role.label().into(), reason.into()]
    };
    let is_full = level == Level::Full;
    for &role in Role::ALL.iter().filter(|&&role| is_full || role != Role::Helper) {
        let mut own = series.process.offcpu.iter().filter(|own| own.0 == role).peekable();
        if own.peek().is_none() {
            continue;
        }
        let mut all = Histogram::default();
        own.for_each(|(_, _, histogram)| all.merge(histogram));
        family.push_created(labels(role, ALL_REASONS), Value::Histogram(all), series.created);
    }
    let by_reason = series.process.offcpu.iter();
    for (role, reason, histogram) in by_reason.filter(|own| is_full || own.0 == Role::Dispatcher) {
        let value = Value::Histogram(histogram.clone());
        family.push_created(labels(*role, reason.label()), value, series.created);
    }
}
