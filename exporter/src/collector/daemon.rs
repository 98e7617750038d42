//! The daemon itself: its build, configuration and resources.

use gpucause_observe::clock;
use gpucause_page::family::{Family, Value};
use gpucause_page::metric::{
    self, BUILD_INFO, CONFIG_LOADED_AT, CONFIG_SUCCESSFUL, FLIGHT_RECORDS, Kind, Metric,
    OTLP_FAILURES, OTLP_LOST, OTLP_QUEUED_BYTES, OTLP_QUEUED_RECORDS, OTLP_SENT, PEERS_AGE,
    PEERS_REQUESTS, PROCESS_CPU, WEB_CONFIG_LAST_RELOAD_SUCCESSFUL, WEB_CONFIG_RELOAD_FAILURES,
};

use super::{CollectError, Collector, Families, Input, eager};
use crate::otlp::OtlpCounts;
use crate::version;
use prometheus::core::Collector as _;
use prometheus::process_collector::ProcessCollector;

/// Reads `/proc/self` with the `prometheus` crate, except for CPU time, which that rounds to whole seconds.
pub(super) struct Daemon(ProcessCollector);

impl Default for Daemon {
    fn default() -> Self {
        Self(ProcessCollector::for_self())
    }
}

impl Collector for Daemon {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn collect<'a>(&'a self, input: &'a Input<'_>) -> Result<Families<'a>, CollectError> {
        let mut build = Family::new(&BUILD_INFO);
        build.push(
            [
                version::VERSION.into(),
                version::REVISION.into(),
                version::RUST_VERSION.into(),
                std::env::consts::ARCH.into(),
            ],
            Value::Integer(1),
        );
        let config = input.daemon.config;
        let mut families = vec![
            Family::single(&CONFIG_SUCCESSFUL, Value::Integer(config.successful.into()), None),
            Family::single(&CONFIG_LOADED_AT, Value::Float(config.taken_at), None),
            build,
        ];
        if let Some(state) = input.daemon.web_config {
            let failures = Value::Integer(state.failures);
            let created = input.observation.clock.unix_seconds(input.observation.since);
            families.push(Family::single(&WEB_CONFIG_RELOAD_FAILURES, failures, Some(created)));
            let succeeded = Value::Integer(state.last_succeeded.into());
            families.push(Family::single(&WEB_CONFIG_LAST_RELOAD_SUCCESSFUL, succeeded, None));
        }
        if let Some(records) = input.daemon.flights {
            let created = input.observation.clock.unix_seconds(input.observation.since);
            let mut family = Family::new(&FLIGHT_RECORDS);
            for (outcome, count) in records {
                family.push_created([outcome.into()], Value::Integer(count), Some(created));
            }
            families.push(family);
        }
        if let Some(counts) = &input.daemon.otlp {
            let created = input.observation.clock.unix_seconds(input.observation.since);
            families.extend(otlp(counts, Some(created)));
        }
        if let Some(state) = input.daemon.peers {
            let created = input.observation.clock.unix_seconds(input.observation.since);
            let mut requests = Family::new(&PEERS_REQUESTS);
            for (result, count) in [("ok", state.answered), ("error", state.failed)] {
                requests.push_created([result.into()], Value::Integer(count), Some(created));
            }
            families.push(requests);
            let age = state.age.map(|age| Value::Float(age.as_secs_f64()));
            families.extend(age.map(|age| Family::single(&PEERS_AGE, age, None)));
        }
        let own = families.len();
        for collected in self.0.collect() {
            let Some(metric) = row(collected.name()) else { continue };
            let Some(sample) = collected.get_metric().first() else { continue };
            let value = if metric == &PROCESS_CPU {
                Value::Seconds(clock::cpu_time())
            } else {
                Value::Float(sample.get_gauge().get_value())
            };
            families.push(Family::single(metric, value, None));
        }
        if families.len() == own {
            return Err(CollectError::Unreadable("/proc/self"));
        }
        let start = families.iter().find(|family| family.metric == &metric::PROCESS_START_TIME);
        let created = start.and_then(|family| match family.samples.first()?.value {
            Value::Float(seconds) => Some(seconds),
            _ => None,
        });
        for family in
            families[own..].iter_mut().filter(|family| family.metric.kind == Kind::Counter)
        {
            for sample in &mut family.samples {
                sample.created = created;
            }
        }
        Ok(eager(families))
    }
}

/// Returns the families of the records of logged chains: those sent, lost and queued, and the failures to send them.
fn otlp(counts: &OtlpCounts, created: Option<f64>) -> [Family; 5] {
    let by_reason = |metric, counts: &[(&'static str, u64)]| {
        let mut family = Family::new(metric);
        for (reason, count) in counts {
            family.push_created([(*reason).into()], Value::Integer(*count), created);
        }
        family
    };
    [
        Family::single(&OTLP_SENT, Value::Integer(counts.sent), created),
        by_reason(&OTLP_LOST, &counts.lost),
        by_reason(&OTLP_FAILURES, &counts.failures),
        Family::single(&OTLP_QUEUED_RECORDS, Value::Integer(counts.queued_records), None),
        Family::single(&OTLP_QUEUED_BYTES, Value::Integer(counts.queued_bytes), None),
    ]
}

fn row(query_name: &str) -> Option<&'static Metric> {
    metric::ALL.iter().copied().find(|metric| metric.query_name() == query_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_metric_of_the_crate_is_in_the_table() {
        for collected in ProcessCollector::for_self().collect() {
            let metric = row(collected.name());
            assert!(metric.is_some_and(|metric| metric.labels.is_empty()), "{}", collected.name());
        }
    }
}
