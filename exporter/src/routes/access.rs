//! Who may read causal chains, which name processes, threads and what they wait for: authenticated clients, and programs of
//! this host that send its token. Addresses do not identify a client: a proxy on this host forwards requests of others.

use gpucause_http::server::{Peer, Server};
use gpucause_investigations::node::FOR_CURL;
use hyper::header::{HeaderMap, ORIGIN};

use crate::privileges::NOT_ROOT;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The client is not authenticated.
    NoCredentials,
    /// A browser sent it for a web page of another site.
    WebPage,
}

/// Checks that a request with these headers may read chains.
pub(super) fn may_read_chains(peer: Peer, headers: &HeaderMap) -> Result<(), Refusal> {
    match peer.identified {
        // A browser may have been given the password.
        _ if is_from_page(headers) => Err(Refusal::WebPage),
        true => Ok(()),
        false => Err(Refusal::NoCredentials),
    }
}

/// The hint for clients without credentials.
pub(super) fn hint(server: &Server) -> String {
    match server.token_path() {
        Some(path) => format!(
            "causal chains require credentials - gpucause sends the token of this host, when it runs there as root or as the user of \
             the server, and to localhost only; {NOT_ROOT}{FOR_CURL}sudo cat {path} | sed 's/^/Authorization: Bearer /' | curl -H @- {url}{chains}",
            path = path.display(),
            url = server.url().unwrap_or_default(),
            chains = super::api::CHAINS,
        ),
        None if server.has_token() => {
            "causal chains require credentials - log in with any user name and the password that this command printed at its \
             start"
                .to_owned()
        }
        None => format!(
            "causal chains require credentials - this server has no token for programs of this host, since it could not \
             write the file that its log names; {NOT_ROOT}"
        ),
    }
}

/// Returns true if a browser sent this for a page of another site. Requests for embedded resources have no Origin, but they have the
/// password that the browser remembers.
fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(ORIGIN) || site.is_some_and(|site| site != "none" && site != "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HOST, HeaderName, HeaderValue};

    fn access(
        peer: &str,
        identified: bool,
        headers: &[(HeaderName, &'static str)],
    ) -> Result<(), Refusal> {
        let headers = headers.iter().cloned();
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        may_read_chains(Peer { address: peer.parse().unwrap(), identified }, &headers.collect())
    }

    #[test]
    fn identified_clients_may_read_chains_from_anywhere_and_no_others() {
        for peer in ["10.0.0.1", "2001:db8::1", "127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            for host in ["localhost:9400", "127.0.0.1:9400", "gpu-1.example:9400", ""] {
                let headers = [(HOST, host)];
                assert_eq!(access(peer, true, &headers), Ok(()), "{peer} {host}");
                let refused = access(peer, false, &headers);
                assert_eq!(refused, Err(Refusal::NoCredentials), "{peer} {host}");
            }
        }
    }

    #[test]
    fn web_pages_may_not_read_chains_even_with_credentials() {
        for identified in [false, true] {
            for header in [
                (ORIGIN, "http://evil.example"),
                (HeaderName::from_static("sec-fetch-site"), "cross-site"),
            ] {
                let refused = access("127.0.0.1", identified, &[header]);
                assert_eq!(refused, Err(Refusal::WebPage));
            }
        }
    }
}
