//! Fuzz target: what an endpoint answers, and a file of headers.

use std::time::SystemTime;

use gpucause_http::client::Answer;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};

use super::answer::{Verdict, verdict};
use super::headers;

/// Records of the request.
const RECORDS: u64 = 7;

/// A line each of a status, a `Content-Type` and a `Retry-After`, then the body.
pub(crate) fn answer(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        drop(headers::parse(text));
    }
    let mut lines = data.splitn(4, |&byte| byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (status, kind, pause, body) = (line(), line(), line(), line());
    let Ok(status) = StatusCode::from_bytes(status) else { return };
    let mut headers = HeaderMap::new();
    for (name, value) in [(CONTENT_TYPE, kind), (RETRY_AFTER, pause)] {
        headers.extend(HeaderValue::from_bytes(value).ok().map(|value| (name, value)));
    }
    let answer = Answer { status, headers, body: body.to_vec() };
    match verdict(&answer, RECORDS, SystemTime::UNIX_EPOCH) {
        Verdict::Taken { rejected, message } => {
            assert!(rejected <= RECORDS && !message.contains(char::is_control));
        }
        Verdict::Refused { message } => assert!(!message.contains(char::is_control)),
        Verdict::TooLarge | Verdict::Doubted { .. } | Verdict::Again { .. } => {}
    }
}
