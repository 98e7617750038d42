//! State of the sources of GPU metrics, whose own families are foreign.

use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{
    DCGM_FETCH_FAILURES, DCGM_PAGE_AGE, DCGM_UP, DCGM_UTILIZATION_KNOWN, NVML_SAMPLE_AGE,
};

use super::{CollectError, Collector, Families, Input, eager};

pub(super) struct Gpus;

impl Collector for Gpus {
    fn name(&self) -> &'static str {
        super::FOREIGN
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let observation = input.observation;
        let mut up = Family::new(&DCGM_UP);
        let mut age = Family::new(&DCGM_PAGE_AGE);
        let mut known = Family::new(&DCGM_UTILIZATION_KNOWN);
        let mut failures = Family::new(&DCGM_FETCH_FAILURES);
        if let Some(dcgm) = &observation.gpus.dcgm {
            up.push([], Value::Integer(dcgm.up.into()));
            if let Some(old) = dcgm.age {
                age.push([], Value::Float(old.as_secs_f64()));
            }
            if let Some(has_utilization) = dcgm.has_utilization {
                known.push([], Value::Integer(has_utilization.into()));
            }
            let since = Some(observation.clock.unix_seconds(observation.since));
            for &(reason, count) in &dcgm.failures {
                failures.push_created([reason.into()], Value::Integer(count), since);
            }
        }
        let mut sample_age = Family::new(&NVML_SAMPLE_AGE);
        if let Some(old) = observation.gpus.nvml.as_ref().and_then(|nvml| nvml.age) {
            sample_age.push([], Value::Float(old.as_secs_f64()));
        }
        Ok(eager([up, age, known, failures, sample_age]))
    }
}
