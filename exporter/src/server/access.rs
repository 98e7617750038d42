//! Who may read what names processes, threads and what they wait for: those who have shown who they are, and programs of this host.

use std::net::IpAddr;

use hyper::header::{FORWARDED, HOST, HeaderMap, HeaderName, ORIGIN, VIA};

/// What proxies add to requests that they pass on.
const PASSED_ON: [HeaderName; 4] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    /// Whether it has shown who it is, by password or by a certificate from an authority that is trusted here.
    pub(super) identified: bool,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// It comes from another host, directly or through a proxy on this one, and nobody has shown who they are.
    #[error("causal chains are told to programs of this host, and to others only when they log in (--web.config.file with basic_auth_users or verified client certificates); ask on the host itself: curl http://localhost:PORT{path}", path = super::api::CHAINS)]
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
        if self.identified {
            // Whoever has a name pointed here has neither the password nor the certificate, so the name does not matter.
            return if is_from_page(headers) { Err(Refusal::WebPage) } else { Ok(()) };
        }
        let passed_on = PASSED_ON.iter().any(|name| headers.contains_key(name));
        if passed_on || !self.address.to_canonical().is_loopback() {
            return Err(Refusal::OtherHost);
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if is_from_page(headers) || !is_own_name(host) {
            return Err(Refusal::WebPage);
        }
        Ok(())
    }
}

/// Whether a page of another site had the browser send this. With what a page embeds there is no Origin, and yet the password
/// that somebody once gave the browser.
fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(ORIGIN) || site.is_some_and(|site| site != "none" && site != "same-origin")
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
        Peer { address: peer.parse().unwrap(), identified: false }.may_read_chains(&headers)
    }

    #[test]
    fn those_who_are_known_may_from_anywhere_but_no_web_page_for_them() {
        let peer = Peer { address: "10.0.0.1".parse().unwrap(), identified: true };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("gpu-1.example:9400"));
        assert_eq!(peer.may_read_chains(&headers), Ok(()));
        headers.insert(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert_eq!(peer.may_read_chains(&headers), Err(Refusal::WebPage));
    }

    #[test]
    fn a_proxy_on_this_host_is_no_program_of_this_host() {
        for name in PASSED_ON {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:9400"));
            headers.insert(name, HeaderValue::from_static("10.0.0.1"));
            let peer = Peer { address: "127.0.0.1".parse().unwrap(), identified: false };
            assert_eq!(peer.may_read_chains(&headers), Err(Refusal::OtherHost));
        }
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
        let mut embedded = HeaderMap::new();
        embedded.insert(HOST, HeaderValue::from_static("localhost:9400"));
        embedded.insert("sec-fetch-site", HeaderValue::from_static("cross-site"));
        for identified in [false, true] {
            let peer = Peer { address: std::net::Ipv4Addr::LOCALHOST.into(), identified };
            assert_eq!(peer.may_read_chains(&embedded), refused);
        }
    }
}
