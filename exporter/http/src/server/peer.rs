//! Who sends a request.

use std::net::IpAddr;

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address, which does not identify it: a proxy on this host forwards requests of others.
    pub address: IpAddr,
    /// True if it is authenticated: by the token of this host, a password, or a certificate from an authority that is trusted here.
    pub identified: bool,
}
