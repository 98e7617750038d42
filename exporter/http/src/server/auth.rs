//! The authentication middleware: what every request must pass before it is routed, and the headers of every response.

use std::sync::Arc;
use std::time::Instant;

use crate::token::Token;
use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};

use super::body::Pieces;
use super::password_verifier::{PasswordVerifier, Verdict};
use super::peer::Peer;
use super::reply::{TEXT, reply};
use crate::server_pool::ClientId;
use crate::web_config::{LiveWebConfig, WebConfig};

/// Some clients pad, others do not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Authenticates requests.
#[derive(Debug)]
pub(super) struct AuthMiddleware {
    live: Arc<LiveWebConfig>,
    passwords: PasswordVerifier,
    /// The token that programs of this host send in place of a password.
    token: Option<Token>,
}

impl AuthMiddleware {
    pub(super) fn new(live: Arc<LiveWebConfig>, token: Option<Token>) -> Self {
        Self { live, passwords: PasswordVerifier::default(), token }
    }

    /// The configuration for a connection or request that begins now.
    pub(super) fn config(&self) -> Arc<WebConfig> {
        self.live.current()
    }

    /// The sender of a request with these headers, or the refusal.
    pub(super) async fn authenticate(
        &self,
        config: &Arc<WebConfig>,
        peer: Peer,
        headers: &HeaderMap,
    ) -> Result<Peer, Response<Pieces>> {
        if config.rate.as_ref().is_some_and(|rate| !rate.admits(Instant::now())) {
            return Err(busy("Too many requests; try again.\n"));
        }
        if self.token.as_ref().is_some_and(|token| token.is_in(headers)) {
            return Ok(Peer { identified: true, ..peer });
        }
        let credentials = credentials(headers);
        // Browsers cannot be given a token, but ask for a password.
        if let (Some(token), Some((_, password))) = (&self.token, &credentials)
            && token.is(password)
        {
            return Ok(Peer { identified: true, ..peer });
        }
        if config.users.is_empty() {
            return Ok(peer);
        }
        let Some((user, password)) = credentials else { return Err(unauthorized()) };
        let client = ClientId::of(peer.address);
        match self.passwords.verify(config, client, user, password).await {
            Verdict::Right => Ok(Peer { identified: true, ..peer }),
            Verdict::Wrong => Err(unauthorized()),
            Verdict::Busy => Err(busy("Too many passwords to verify; try again.\n")),
        }
    }
}

/// Adds the configured headers to a response.
pub(super) fn add_headers(mut response: Response<Pieces>, config: &WebConfig) -> Response<Pieces> {
    for (name, value) in &config.headers {
        response.headers_mut().insert(name.clone(), value.clone());
    }
    response
}

/// The response to a request that took too long.
pub(super) fn too_slow() -> Response<Pieces> {
    reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "The response took too long.\n")
}

/// The response to a request whose line and headers are too long.
pub(super) fn too_long() -> Response<Pieces> {
    reply(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        TEXT,
        "The request's headers are too long.\n",
    )
}

fn busy(text: &'static str) -> Response<Pieces> {
    let mut response = reply(StatusCode::TOO_MANY_REQUESTS, TEXT, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn unauthorized() -> Response<Pieces> {
    let mut response = reply(StatusCode::UNAUTHORIZED, TEXT, "Unauthorized\n");
    let challenge = HeaderValue::from_static("Basic realm=\"gpucause\", charset=\"UTF-8\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// Name and password of basic authentication.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, coded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let decoded = BASE64.decode(coded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((user, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(value: &str) -> Option<(String, Vec<u8>)> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        credentials(&headers)
    }

    #[test]
    fn credentials_are_read_whatever_the_case_and_padding() {
        for value in ["Basic YTpiOmM=", "basic YTpiOmM", "BASIC  YTpiOmM= "] {
            assert_eq!(sent(value), Some(("a".to_owned(), b"b:c".to_vec())), "{value}");
        }
        for value in ["", "Basic", "Basic ", "Basic YWJj", "Bearer YTpi", "Basic !!", "Basic /zpi"]
        {
            assert_eq!(sent(value), None, "{value}");
        }
    }
}
