//! Chains that are logged.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;

use super::*;

pub(super) use gpucause_fixture::chain::chain;

/// Values of `log.record.uid` in a request.
pub(super) fn uids(body: &[u8]) -> Vec<String> {
    let request = ExportLogsServiceRequest::decode(body).unwrap();
    let records = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
    let records = records.flat_map(|logs| logs.log_records);
    let uid = |record: opentelemetry_proto::tonic::logs::v1::LogRecord| {
        let own = record.attributes.into_iter().find(|own| own.key == "log.record.uid").unwrap();
        match own.value.unwrap().value.unwrap() {
            Value::StringValue(uid) => uid,
            other => panic!("{other:?}"),
        }
    };
    records.map(uid).collect()
}

pub(super) fn log_to(endpoint: &str) -> ChainLog {
    let log = ChainLog::new("gpu-1".to_owned(), None);
    let endpoint = Some(endpoint.parse().unwrap());
    log.configure(&OtlpSettings { endpoint, ..OtlpSettings::default() });
    log
}

fn queued(log: &ChainLog) -> Vec<String> {
    let batch = log.spool().as_mut().unwrap().take();
    batch.map(|batch| uids(&batch.body)).unwrap_or_default()
}

#[test]
fn nothing_is_logged_or_counted_without_an_endpoint() {
    let log = ChainLog::new("gpu-1".to_owned(), None);
    log.record_at(&[chain("a")], 20.0, |_| None);
    assert_eq!(log.counts(), None);
}

#[test]
fn an_ended_chain_keeps_the_pod_of_its_process() {
    let log = log_to("http://localhost:4318");
    let pod = |_: &Victim| {
        Some(Process { rank: None, details: vec![("pod".to_owned(), "train-0".to_owned())] })
    };
    log.record_at(&[chain("a")], 20.0, pod);
    let ended = Chain { ongoing: Some(false), ..chain("a") };
    log.record_at(&[ended], 21.0, |_| None);
    let batch = log.spool().as_mut().unwrap().take().unwrap();
    assert_eq!(uids(&batch.body), ["gpu-1/a/1", "gpu-1/a/2"]);
    assert_eq!(String::from_utf8_lossy(&batch.body).matches("train-0").count(), 2);
}

#[test]
fn chains_of_the_time_without_an_endpoint_are_logged_when_they_go_on() {
    let log = log_to("http://localhost:4318");
    log.configure(&OtlpSettings::default());
    log.record_at(&[chain("a")], 20.0, |_| None);
    let endpoint = Some("http://localhost:4318".parse().unwrap());
    log.configure(&OtlpSettings { endpoint, ..OtlpSettings::default() });
    log.record_at(&[chain("a")], 21.0, |_| None);
    assert_eq!(queued(&log), ["gpu-1/a/1"]);
    assert_eq!(log.counts().unwrap().queued_records, 1);
}
