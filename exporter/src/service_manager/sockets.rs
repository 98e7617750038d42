//! Socket activation (`LISTEN_FDS`).

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;

/// Why a passed socket is unusable.
#[derive(Debug, thiserror::Error)]
#[error(
    "socket {number} of those that the service manager passed cannot be served: {source}; use ListenStream= with a port \
     or an address in the socket unit"
)]
pub struct SocketError {
    number: usize,
    source: io::Error,
}

/// The sockets passed to this process; none without a socket unit.
///
/// # Errors
/// When one of them does not listen for TCP connections.
pub fn sockets() -> Result<Vec<TcpListener>, SocketError> {
    // Removes the variables from the environment, so it must be called once, and before there are threads.
    let mut passed = ListenFd::from_env();
    let count = passed.len();
    let listener = |number| {
        let refused = |source| SocketError { number, source };
        let listener = passed.take_tcp_listener(number).map_err(refused)?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(refused)?;
        }
        Ok(listener)
    };
    (0..count).map(listener).filter_map(Result::transpose).collect()
}
