//! Off-CPU time, run-queue latency and context switches of observed processes.

use super::{CollectError, Collector, Families, Input, eager};
use crate::family::{Family, Value};
use crate::metric::{CONTEXT_SWITCHES, OFFCPU_DURATION, RUNQUEUE_LATENCY};
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
            for (role, reason, histogram) in &series.process.offcpu {
                durations.push_created(
                    [pid.into(), comm.into(), role.label().into(), reason.label().into()],
                    Value::Histogram(histogram.clone()),
                    series.created,
                );
            }
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
