//! The signals that end the daemon.

use std::future::Future;
use std::io;
use tokio::signal::unix::{SignalKind, signal};

/// Completes on SIGTERM or SIGINT. The signals are caught from the call on, not from the first poll.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "shutting down");
    })
}
