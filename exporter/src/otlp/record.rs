//! A chain as a log record of OTLP.

use std::borrow::Cow;

use gpucause_engine::chain::{Chain, Severity};
use gpucause_investigations::export::{Detail, chain_attributes};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use super::Process;
use super::changes::Change;

/// The event name of a chain's record.
const EVENT: &str = "gpucause.chain";
/// By the semantic conventions, records with the same value are the same record.
const UID: &str = "log.record.uid";

/// The resource of a chain: its victim's process on this node, by the semantic conventions where they name it.
pub(super) fn resource(node: &str, chain: &Chain, process: Option<&Process>) -> Resource {
    let victim = &chain.victim;
    let mut attributes = vec![
        attribute("host.name", node.into()),
        attribute("service.name", victim.comm.as_str().into()),
        attribute("process.pid", u64::from(victim.pid).into()),
        attribute("process.command", victim.comm.as_str().into()),
    ];
    if let Some(process) = process {
        let rank = process.rank.map(|rank| attribute("gpucause.rank", u64::from(rank).into()));
        attributes.extend(rank);
        for (name, value) in &process.details {
            attributes.push(attribute(&process_attribute(name), value.as_str().into()));
        }
    }
    Resource { attributes, ..Resource::default() }
}

/// The resource attribute of a detail of a process, by the semantic conventions of OpenTelemetry where they define it.
fn process_attribute(detail: &str) -> Cow<'static, str> {
    match detail {
        "exe" => "process.executable.path".into(),
        "container_id" => "container.id".into(),
        "pod" => "k8s.pod.name".into(),
        "pod_uid" => "k8s.pod.uid".into(),
        "namespace" => "k8s.namespace.name".into(),
        "user" => "process.owner".into(),
        other => format!("gpucause.process.{other}").into(),
    }
}

/// A record as a request of its own: requests in a row are one request with the records of all of them.
pub(super) fn encoded(
    node: &str,
    resource: Resource,
    chain: &Chain,
    change: Change,
    observed: f64,
) -> Vec<u8> {
    let (number, _) = severity(chain.severity);
    let record = LogRecord {
        time_unix_nano: nanos(chain.last_seen),
        observed_time_unix_nano: nanos(observed),
        severity_number: number.into(),
        severity_text: severity(chain.severity).1.to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(chain.sentence.clone())) }),
        attributes: attributes(node, chain, change),
        event_name: EVENT.to_owned(),
        ..LogRecord::default()
    };
    let scope = InstrumentationScope {
        name: "gpucause".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let logs = ScopeLogs { scope: Some(scope), log_records: vec![record], ..ScopeLogs::default() };
    let logs = ResourceLogs {
        resource: Some(resource),
        scope_logs: vec![logs],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest { resource_logs: vec![logs] }.encode_to_vec()
}

fn attributes(node: &str, chain: &Chain, change: Change) -> Vec<KeyValue> {
    let Change { state, revision } = change;
    let mut attributes = vec![
        attribute(UID, format!("{node}/{}/{revision}", chain.id).into()),
        own("state", state.label().into()),
        own("revision", revision.into()),
        own("first_seen", Detail::Float(chain.first_seen)),
    ];
    // The sentence is the body.
    let known = chain_attributes(chain).into_iter().filter(|(name, _)| name != "sentence");
    attributes.extend(known.map(|(name, value)| own(&name, value)));
    if let Some(owner) = chain.culprit.as_ref().and_then(|culprit| culprit.place.owner()) {
        attributes.push(own("culprit_owner", owner.into()));
    }
    attributes
}

/// The number and name of a severity: OTLP's place for syslog's "critical" is ERROR2.
const fn severity(severity: Severity) -> (SeverityNumber, &'static str) {
    match severity {
        Severity::Low => (SeverityNumber::Info, "INFO"),
        Severity::Medium => (SeverityNumber::Warn, "WARN"),
        Severity::High => (SeverityNumber::Error, "ERROR"),
        Severity::Critical => (SeverityNumber::Error2, "ERROR2"),
    }
}

/// An attribute of a chain.
fn own(name: &str, value: Detail<'_>) -> KeyValue {
    attribute(&format!("gpucause.chain.{name}"), value)
}

fn attribute(key: &str, detail: Detail<'_>) -> KeyValue {
    let value = match detail {
        Detail::Text(text) => Value::StringValue(text.into_owned()),
        Detail::Integer(number) => Value::IntValue(number),
        Detail::Float(number) => Value::DoubleValue(number),
        Detail::Flag(flag) => Value::BoolValue(flag),
    };
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn nanos(unix_seconds: f64) -> u64 {
    (unix_seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::super::changes::State;
    use super::*;
    use crate::otlp::tests::{chain, uids};
    use std::collections::HashMap;

    fn text(attributes: &[KeyValue]) -> HashMap<&str, String> {
        let text = |value: &AnyValue| match value.value.as_ref().unwrap() {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            Value::DoubleValue(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        let pair = |own: &'_ KeyValue| text(own.value.as_ref().unwrap());
        attributes.iter().map(|own| (own.key.as_str(), pair(own))).collect()
    }

    #[test]
    fn a_record_has_sentence_severity_evidence_and_where_the_victim_runs() {
        let chain = chain("abc");
        let details = [("pod", "train-0"), ("namespace", "ml"), ("slurm_job", "17")];
        let details = details.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let process = Process { rank: Some(3), details };
        let own = resource("gpu-1", &chain, Some(&process));
        let change = Change { state: State::Changed, revision: 2 };
        let bytes = encoded("gpu-1", own, &chain, change, 20.5);
        let request = ExportLogsServiceRequest::decode(&*bytes).unwrap();
        let logs = &request.resource_logs[0];
        let resource = text(&logs.resource.as_ref().unwrap().attributes);
        for (key, expected) in [
            ("host.name", "gpu-1"),
            ("service.name", "train"),
            ("process.pid", "7"),
            ("gpucause.rank", "3"),
            ("k8s.pod.name", "train-0"),
            ("k8s.namespace.name", "ml"),
            ("gpucause.process.slurm_job", "17"),
        ] {
            assert_eq!(resource[key], expected, "{key}");
        }
        let record = &logs.scope_logs[0].log_records[0];
        assert_eq!(record.severity_number, i32::from(SeverityNumber::Error));
        assert_eq!(record.observed_time_unix_nano, 20_500_000_000);
        assert_eq!(record.time_unix_nano, 12_000_000_000);
        let body = record.body.as_ref().unwrap().value.as_ref();
        assert_eq!(body, Some(&Value::StringValue("The sentence.".into())));
        let attributes = text(&record.attributes);
        for (key, expected) in [
            ("log.record.uid", "gpu-1/abc/2"),
            ("gpucause.chain.state", "changed"),
            ("gpucause.chain.cause", "cpu_preemption"),
            ("gpucause.chain.severity", "high"),
            ("gpucause.chain.evidence.window_seconds", "1.5"),
            ("gpucause.chain.culprit", "noisy"),
            ("gpucause.chain.culprit_owner", "noisy.service"),
        ] {
            assert_eq!(attributes[key], expected, "{key}");
        }
        assert!(!attributes.contains_key("gpucause.chain.sentence"));
    }

    #[test]
    fn records_in_a_row_are_one_request() {
        let record = |id: &str| {
            let (chain, change) = (chain(id), Change { state: State::New, revision: 1 });
            encoded("n", resource("n", &chain, None), &chain, change, 0.0)
        };
        assert_eq!(uids(&[record("a"), record("b")].concat()), ["n/a/1", "n/b/1"]);
    }
}
