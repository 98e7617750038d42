//! Server addresses: URLs with optional user and path. What has a password is known, the password is not kept.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// A parsed URL. Displayed without the user.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    tls: bool,
    host: String,
    port: u16,
    path: String,
    user: Option<String>,
    has_password: bool,
}

impl Address {
    /// Parses a URL with `http://` or `https://`. `ports` are the defaults without and with TLS.
    pub fn parse(text: &str, ports: [u16; 2]) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        let (login, rest) = match authority.as_str().rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, authority.as_str()),
        };
        let host = Some(authority.host()).filter(|host| !host.is_empty() && !host.contains('@'))?;
        let port = match authority.port_u16() {
            Some(0) => return None,
            Some(port) => port,
            None if rest.len() == host.len() => ports[usize::from(tls)],
            // The text after the host is not a port.
            None => return None,
        };
        let has_password = login.is_some_and(|login| login.contains(':'));
        let user = match login.map(|login| login.split_once(':').map_or(login, |(user, _)| user)) {
            Some(user) => Some(decoded(user)?),
            None => None,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let (host, path) = (host.to_owned(), path.to_owned());
        Some(Self { tls, host, port, path, user, has_password })
    }

    /// Returns true if the scheme is `https`.
    pub const fn is_tls(&self) -> bool {
        self.tls
    }

    /// Path and query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the address with another path.
    #[must_use]
    pub fn with_path(self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// The user.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns true if the URL has a password, which other users of the host can see on a command line.
    pub const fn has_password(&self) -> bool {
        self.has_password
    }

    /// Host (without brackets) and port.
    pub fn target(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// Returns true if the host is `localhost` or a loopback address: traffic stays on this host.
    pub fn is_loopback(&self) -> bool {
        let host = self.target().0;
        let loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(loopback)
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let path = if self.path == "/" { "" } else { &self.path };
        write!(f, "{scheme}://{}:{}{path}", self.host, self.port)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Decodes `%XX`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Address> {
        Address::parse(text, [80, 443])
    }

    #[test]
    fn an_address_is_completed_and_shown_without_a_password() {
        for (text, shown) in [
            ("http://node", "http://node:80"),
            ("https://node/", "https://node:443"),
            ("https://me:secret@node:9400/a?b=c", "https://node:9400/a?b=c"),
            ("http://[::1]:9401/x", "http://[::1]:9401/x"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!((address.to_string(), format!("{address:?}")), (shown.into(), shown.into()));
        }
        assert_eq!(parse("https://[::1]").unwrap().target(), ("::1", 443));
    }

    #[test]
    fn only_addresses_that_stay_on_this_host_are_loopback() {
        for (text, expected) in [
            ("http://localhost:9400", true),
            ("https://LOCALHOST", true),
            ("http://127.0.0.2", true),
            ("http://[::1]:9400", true),
            ("http://[::ffff:127.0.0.1]", true),
            ("http://gpu-1", false),
            ("http://10.0.0.1", false),
            ("http://localhost.example", false),
        ] {
            assert_eq!(parse(text).unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn who_logs_in_may_have_any_characters() {
        let login = |text: &str| {
            let address = parse(text).unwrap();
            (address.user().map(str::to_owned), address.has_password())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(login("http://h"), (None, false));
        assert_eq!(login("http://me@h"), (some("me"), false));
        assert_eq!(login("http://me:@h"), (some("me"), true));
        assert_eq!(login("http://m%40e:p%3aw:%25@h:1"), (some("m@e"), true));
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        for text in [
            "",
            "h:1",
            "/x",
            "ftp://h",
            "http://",
            "http://h:0",
            "http://h:x",
            "http://h:70000",
            "http://u%4@h",
            "http://a b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
