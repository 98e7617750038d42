//! Who may read what names processes, threads and what they wait for: until somebody logs in, programs of this host.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, ORIGIN};

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It comes from another host.
    #[error("causal chains are told to programs of this host only; ask on the host itself: curl http://localhost:PORT{path}", path = super::api::CHAINS)]
    OtherHost,
    /// It was sent by a web page, or to a name that is not this host's: a page may have made the name point here.
    #[error(
        "causal chains are not told to web pages; ask with a client that sends no Origin, by address, localhost, or this host's own name"
    )]
    WebPage,
}

impl Peer {
    /// Whether a request with these headers may read chains.
    pub(super) fn may_read_chains(self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !self.0.to_canonical().is_loopback() {
            return Err(Refusal::OtherHost);
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if headers.contains_key(ORIGIN) || !is_own_name(host) {
            return Err(Refusal::WebPage);
        }
        Ok(())
    }
}

/// Whether a `Host` header is an address, `localhost`, or the name of this host.
fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok()
        || (!bare.is_empty() && bare.eq_ignore_ascii_case(&super::api::node()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn asked(peer: &str, host: &str, origin: Option<&str>) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        Peer(peer.parse().unwrap()).may_read_chains(&headers)
    }

    #[test]
    fn programs_of_this_host_may_read_chains() {
        for host in ["localhost:9400", "127.0.0.1:9400", "[::1]:9400", "localhost"] {
            for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
                assert_eq!(asked(peer, host, None), Ok(()), "{peer} {host}");
            }
        }
    }

    #[test]
    fn other_hosts_may_not() {
        for peer in ["10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert_eq!(asked(peer, "localhost", None), Err(Refusal::OtherHost), "{peer}");
        }
    }

    #[test]
    fn web_pages_may_not_whatever_their_name_points_to() {
        let refused = Err(Refusal::WebPage);
        assert_eq!(asked("127.0.0.1", "evil.example:9400", None), refused);
        assert_eq!(asked("127.0.0.1", "localhost:9400", Some("http://evil.example")), refused);
        assert_eq!(asked("127.0.0.1", "", None), refused);
    }
}
