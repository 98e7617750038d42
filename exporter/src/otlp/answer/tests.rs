//! Answers of every kind.

use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsPartialSuccess;
use proptest::prelude::*;

use super::*;

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json; charset=utf-8";

fn answer(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    let mut headers = HeaderMap::new();
    if !kind.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into() }
}

fn of(answer: &Answer) -> Verdict {
    verdict(answer, 10, SystemTime::UNIX_EPOCH)
}

fn partial(rejected_log_records: i64, error_message: &str) -> Vec<u8> {
    let error_message = error_message.to_owned();
    let partial_success = Some(ExportLogsPartialSuccess { rejected_log_records, error_message });
    ExportLogsServiceResponse { partial_success }.encode_to_vec()
}

fn taken(rejected: u64, message: &str) -> Verdict {
    Verdict::Taken { rejected, message: message.to_owned() }
}

const fn again(failure: Failure) -> Verdict {
    Verdict::Again { failure, after: None }
}

#[test]
fn every_usual_success_is_one() {
    for success in [
        answer(200, PROTOBUF, ""),
        answer(200, "", ""),
        answer(204, "text/plain", ""),
        answer(200, PROTOBUF, partial(0, "")),
        answer(200, JSON, "{}"),
        answer(200, JSON, r#"{"partialSuccess":{}}"#),
    ] {
        assert_eq!(of(&success), taken(0, ""), "{success:?}");
    }
}

#[test]
fn rejected_records_are_counted_up_to_those_that_were_sent() {
    assert_eq!(of(&answer(200, PROTOBUF, partial(3, "too\u{1b}old"))), taken(3, "too?old"));
    assert_eq!(of(&answer(200, PROTOBUF, partial(i64::MAX, ""))), taken(10, ""));
    assert_eq!(of(&answer(200, PROTOBUF, partial(-5, ""))), taken(0, ""));
    let json = r#"{"partialSuccess":{"rejectedLogRecords":"4","errorMessage":"no"}}"#;
    assert_eq!(of(&answer(200, JSON, json)), taken(4, "no"));
}

#[test]
fn a_success_that_is_not_one_of_otlp_is_not_believed() {
    for garbage in [
        answer(200, "text/html", "<html>Please log in</html>"),
        answer(200, PROTOBUF, vec![0xff; 40]),
        answer(200, JSON, "[1"),
        answer(200, "", "ok"),
    ] {
        assert_eq!(of(&garbage), again(Failure::Malformed), "{garbage:?}");
    }
}

#[test]
fn only_what_otlp_itself_refuses_is_refused() {
    let status = Status { code: 3, message: "bad data".to_owned() }.encode_to_vec();
    let refused = Verdict::Refused { message: "bad data".to_owned() };
    assert_eq!(of(&answer(400, PROTOBUF, status)), refused);
    assert_eq!(of(&answer(400, JSON, r#"{"code":3,"message":"bad data"}"#)), refused);
    assert_eq!(of(&answer(413, "", "")), Verdict::TooLarge);
    for status in [301, 401, 404, 405, 407, 408, 502, 504] {
        assert_eq!(of(&answer(status, "", "")), again(Failure::Status), "{status}");
    }
}

#[test]
fn what_a_record_may_be_the_reason_of_is_in_doubt() {
    let proxy = answer(400, "text/plain", "Client sent an HTTP request to an HTTPS server.");
    for doubted in [proxy, answer(403, "", ""), answer(500, "", ""), answer(501, "", "")] {
        assert_eq!(of(&doubted), Verdict::Doubted { after: None }, "{doubted:?}");
    }
}

#[test]
fn an_endpoint_that_is_throttled_says_until_when() {
    for status in [429, 503] {
        let mut busy = answer(status, "", "");
        assert_eq!(of(&busy), again(Failure::Throttled));
        busy.headers.insert(RETRY_AFTER, HeaderValue::from_static("30"));
        let after = Some(Duration::from_secs(30));
        assert_eq!(of(&busy), Verdict::Again { failure: Failure::Throttled, after });
    }
}

proptest! {
    #[test]
    fn no_answer_rejects_more_than_was_sent_or_controls_a_terminal(
        status in 200u16..600, kind in prop::sample::select(vec![PROTOBUF, JSON, ""]),
        body in prop::collection::vec(any::<u8>(), 0..200), records in 0u64..100,
    ) {
        match verdict(&answer(status, kind, body), records, SystemTime::UNIX_EPOCH) {
            Verdict::Taken { rejected, message } => {
                prop_assert!(rejected <= records && !message.contains(char::is_control));
            }
            Verdict::Refused { message } => prop_assert!(!message.contains(char::is_control)),
            Verdict::TooLarge | Verdict::Doubted { .. } | Verdict::Again { .. } => {}
        }
    }
}
