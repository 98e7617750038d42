//! A flight record on request.

use gpucause_http::server::Peer;
use gpucause_http::server::reply::{JSON, Reply, TEXT, reply, with_header};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};

use super::access::may_read_chains;
use super::{Routes, api};
use crate::flights::RequestError;

/// Where a record is asked for.
pub(super) const RECORD: &str = "/-/flight";

impl Routes {
    /// Has a flight record written, for those who may read chains: it has more than these.
    pub(super) async fn record_flight<B>(&self, request: &Request<B>, peer: Peer) -> Reply {
        if *request.method() != Method::POST {
            let refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Only POST.\n");
            return with_header(refusal, header::ALLOW, "POST");
        }
        if let Err(refusal) = may_read_chains(peer, request.headers()) {
            return self.refused(&refusal);
        }
        if request.uri().query().is_some() || has_body(request.headers()) {
            let error = "a request for a flight record has neither parameters nor a body";
            return reply(StatusCode::BAD_REQUEST, JSON, api::failure(error));
        }
        let recorded = match self.source.flights() {
            Some(records) => records.record().await,
            None => Err(RequestError::Off),
        };
        match recorded {
            Ok(file) => reply(StatusCode::OK, JSON, api::flight(&*self.source, &file)),
            Err(error) => refused(&error),
        }
    }
}

fn refused(error: &RequestError) -> Reply {
    let status = match error {
        RequestError::Off => StatusCode::NOT_FOUND,
        RequestError::Busy => StatusCode::CONFLICT,
        RequestError::TooSoon(_) => StatusCode::TOO_MANY_REQUESTS,
        RequestError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = reply(status, JSON, api::failure(&error.to_string()));
    if let RequestError::TooSoon(left) = error {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(left.as_secs() + 1));
    }
    answer
}

/// Returns true if there is a body, or the type of one, as every form of a web page has.
fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    headers.contains_key(header::CONTENT_TYPE)
        || headers.contains_key(header::TRANSFER_ENCODING)
        || length.is_some_and(|length| length != "0")
}
