//! Whom dispatcher and worker threads waited for.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{BLOCKED_ON, PREEMPTED_BY};

use super::{CollectError, Collector, Families, Input, eager};

pub(super) struct Waits;

impl Collector for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut preempted = Family::new(&PREEMPTED_BY);
        let mut blocked = Family::new(&BLOCKED_ON);
        for series in &input.series {
            let Some(waits) = input.observation.waits.get(&series.process.id) else { continue };
            let (pid, comm) = (&series.pid, &series.comm);
            for (culprit, time) in &waits.preempted_by {
                let labels = [pid.into(), comm.into(), culprit.into()];
                preempted.push_created(labels, Value::Seconds(*time), series.created);
            }
            for ((reason, waker), time) in &waits.blocked_on {
                let labels = [pid.into(), comm.into(), reason.label().into(), waker.into()];
                blocked.push_created(labels, Value::Seconds(*time), series.created);
            }
        }
        Ok(eager([preempted, blocked]))
    }
}
