//! Headers that are added to every response.

use std::collections::BTreeMap;

use hyper::header::{self, HeaderName, HeaderValue};

use super::Complaints;

/// The headers that may be set, with their allowed values unless every value is allowed.
const ACCEPTED: [(&str, HeaderName, &[&str]); 5] = [
    ("Content-Security-Policy", header::CONTENT_SECURITY_POLICY, &[]),
    ("Strict-Transport-Security", header::STRICT_TRANSPORT_SECURITY, &[]),
    ("X-Content-Type-Options", header::X_CONTENT_TYPE_OPTIONS, &["nosniff"]),
    ("X-Frame-Options", header::X_FRAME_OPTIONS, &["deny", "sameorigin"]),
    ("X-XSS-Protection", header::X_XSS_PROTECTION, &[]),
];

/// The headers whose values are not blank.
pub(super) fn build(
    section: &BTreeMap<String, String>,
    complaints: &mut Complaints,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    for (name, value) in section {
        let known = ACCEPTED.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
        let Some((known, header, values)) = known else {
            let all = ACCEPTED.map(|(known, ..)| known).join(", ");
            let problem = format!("has no key {name:?}; it has {all}");
            complaints.add("http_server_config.headers", problem);
            continue;
        };
        let key = format!("http_server_config.headers.{known}");
        let fits = values.is_empty() || values.iter().any(|v| v.eq_ignore_ascii_case(value));
        match HeaderValue::from_str(value) {
            _ if value.is_empty() => {}
            Ok(value) if fits => headers.push((header.clone(), value)),
            Ok(_) => {
                let problem = format!("is {value:?}, and must be {}", values.join(" or "));
                complaints.add(&key, problem);
            }
            Err(_) => complaints
                .add(&key, format!("is {value:?}, and must be one line of printable characters")),
        }
    }
    headers
}
