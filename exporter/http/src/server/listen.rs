//! Listen addresses, and the errors of binding them.

use gpucause_input::password::without_password;
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::str::FromStr;

use crate::port_owner::{Owner, names, owners};

/// Connections that may wait to be accepted, capped by net.core.somaxconn. Clients retry further ones after a second.
const BACKLOG: i32 = 4096;

/// A `HOST:PORT` pair as in Prometheus exporters; without a host it means every address of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    host: Option<String>,
    port: u16,
}

/// Why text is not a [`ListenAddress`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid listen address {:?}; expected :PORT, HOST:PORT or [IPV6]:PORT, such as :9400", without_password(.0))]
pub struct AddressError(String);

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let port = port.parse().map_err(|_| error())?;
        if host.is_empty() {
            return Ok(Self { host: None, port });
        }
        if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(error)?;
            inner.parse::<Ipv6Addr>().map_err(|_| error())?;
            return Ok(Self { host: Some(inner.to_owned()), port });
        }
        if host.contains([':', '/', '[', ']']) || host.contains(char::is_whitespace) {
            return Err(error());
        }
        Ok(Self { host: Some(host.to_owned()), port })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, ":{}", self.port),
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Some(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The port is in use.
    #[error(
        "cannot listen on {address}: the port is in use{}{} - choose a free one with --web.listen-address, such as \
         --web.listen-address=:9401",
        by(owners),
        likely(owners)
    )]
    InUse {
        /// The address.
        address: ListenAddress,
        /// The processes that listen on it, as far as they are known.
        owners: Vec<Owner>,
    },
    /// Ports below 1024 need a privilege.
    #[error(
        "cannot listen on {0}: permission denied - choose a port from 1024 up with --web.listen-address, or give \
         gpucause CAP_NET_BIND_SERVICE"
    )]
    Denied(ListenAddress),
    /// It is not an address of this host.
    #[error("cannot listen on {0}: this host has no such address - see --web.listen-address")]
    NotHere(ListenAddress),
    /// The name has no address.
    #[error(
        "cannot listen on {address}: the host name cannot be resolved ({source}) - see --web.listen-address"
    )]
    Unresolved {
        /// The address.
        address: ListenAddress,
        /// The resolver's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// The address.
        address: ListenAddress,
        /// The kernel's error.
        source: io::Error,
    },
}

fn by(owners: &[Owner]) -> String {
    if owners.is_empty() { String::new() } else { format!(" by {}", names(owners)) }
}

/// Who likely has it, unless a gpucause does.
fn likely(owners: &[Owner]) -> &'static str {
    match owners.iter().any(Owner::is_own) {
        true => "",
        false => "; 9400, gpucause's default, is also the default port of dcgm-exporter",
    }
}

impl BindError {
    fn new(address: &ListenAddress, source: io::Error) -> Self {
        let address = address.clone();
        match source.kind() {
            ErrorKind::AddrInUse => {
                let owners = owners(address.port);
                Self::InUse { address, owners }
            }
            ErrorKind::PermissionDenied => Self::Denied(address),
            ErrorKind::AddrNotAvailable => Self::NotHere(address),
            _ => Self::Other { address, source },
        }
    }

    /// Returns true if the configuration must be changed: a restart does not help.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::NotHere(_))
    }
}

impl ListenAddress {
    /// The port; 0 stands for any that is free.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address at which this host reaches the server; `None` for port 0.
    #[must_use]
    pub fn local_address(&self) -> Option<String> {
        let host = self.host.as_deref().filter(|host| !matches!(*host, "0.0.0.0" | "::"));
        let local = Self { host: Some(host.unwrap_or("localhost").to_owned()), port: self.port };
        (self.port != 0).then(|| local.to_string())
    }

    /// Binds the address. Without a host one socket serves IPv6 and IPv4, or IPv4 alone if this host has no IPv6.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn bind(&self) -> Result<TcpListener, BindError> {
        let failed = |source| BindError::new(self, source);
        let Some(host) = &self.host else {
            let all = listen((Ipv6Addr::UNSPECIFIED, self.port).into());
            return match all.as_ref().map_err(io::Error::kind) {
                Ok(_) | Err(ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => all,
                Err(_) => listen((Ipv4Addr::UNSPECIFIED, self.port).into()),
            }
            .map_err(failed);
        };
        let unresolved = |source| BindError::Unresolved { address: self.clone(), source };
        let resolved: Vec<_> =
            (host.as_str(), self.port).to_socket_addrs().map_err(unresolved)?.collect();
        let address = resolved.iter().find(|address| address.is_ipv4()).or(resolved.first());
        match address {
            Some(address) => listen(*address).map_err(failed),
            None => Err(unresolved(ErrorKind::NotFound.into())),
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Lets a restarted daemon bind the port while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in [
            ":9400",
            "127.0.0.1:9400",
            "[::1]:9400",
            "[::]:0",
            "localhost:80",
            "gpu-1.example:9400",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn invalid_text_is_rejected_with_the_expected_format() {
        for text in [
            "",
            "9400",
            ":",
            ":x",
            ":65536",
            ":-1",
            ":+1",
            "::1:9400",
            "[::1]",
            "[::1:9400",
            "[x]:1",
            "a b:1",
            "http://a:1",
        ] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT") && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_port_in_use_is_explained() {
        let taken = ":0".parse::<ListenAddress>().unwrap().bind().unwrap();
        let port = taken.local_addr().unwrap().port();
        for text in [format!(":{port}"), format!("127.0.0.1:{port}")] {
            let error = text.parse::<ListenAddress>().unwrap().bind().unwrap_err();
            let message = error.to_string();
            assert!(message.contains(&text), "{message}");
            assert!(message.contains("9400") && message.contains("dcgm-exporter"), "{message}");
            assert!(message.contains("--web.listen-address"), "{message}");
            assert!(!error.is_configuration());
        }
    }

    #[test]
    fn a_port_that_a_gpucause_uses_is_not_explained_by_another_program() {
        let address = ":9400".parse().unwrap();
        let error = BindError::InUse { address, owners: vec![Owner::gpucause("exporter")] };
        let message = error.to_string();
        assert!(message.contains("is in use by gpucause exporter (PID 7) - choose"), "{message}");
    }

    #[test]
    fn a_port_that_only_ipv4_uses_is_in_use_too() {
        let taken = "127.0.0.1:0".parse::<ListenAddress>().unwrap().bind().unwrap();
        let address = format!(":{}", taken.local_addr().unwrap().port());
        let error = address.parse::<ListenAddress>().unwrap().bind().unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_a_configuration_error() {
        let error = "192.0.2.1:0".parse::<ListenAddress>().unwrap().bind().unwrap_err();
        assert!(error.is_configuration(), "{error}");
    }
}
