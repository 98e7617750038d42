//! Responses of one piece.

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::body::Pieces;

/// The type of plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The type of JSON.
pub const JSON: &str = "application/json";
/// The type of a web page.
pub const HTML: &str = "text/html; charset=utf-8";

/// A response.
pub type Reply = Response<Pieces>;

/// A response with this body. JSON gets `Cache-Control: no-store`: only clients with credentials get it.
pub fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Pieces>) -> Reply {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let response = with_header(response, header::CONTENT_TYPE, content_type);
    if content_type != JSON {
        return response;
    }
    let response = with_header(response, header::CACHE_CONTROL, "no-store");
    with_header(response, header::X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// The response with another header.
#[must_use]
pub fn with_header(mut response: Reply, name: HeaderName, value: &'static str) -> Reply {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
