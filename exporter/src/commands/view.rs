//! `gpucause view`: the live page of a trace file, on the loopback address of this host.

mod args;
mod file;
mod totals;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context as _;
use gpucause_http::server::{Limits, Server};
use gpucause_http::token_file::TokenFile;
use gpucause_investigations::any_format;

use crate::commands::replay;
use crate::failure::Advice;
use crate::routes::{Routes, TelemetryPath};
use crate::shutdown::shutdown_signal;
use file::TraceFile;

pub use args::ViewArgs;

/// Threads that render pages.
const BLOCKING_THREADS: usize = 4;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When the file cannot be read, has nothing of the node, or the port is taken.
pub fn run(args: &ViewArgs) -> anyhow::Result<()> {
    let recording = any_format::open(&args.db)?;
    let node = replay::node(&*recording, args.node.as_deref(), &args.db)?;
    let source = Arc::new(TraceFile::read(&args.db, &*recording, node)?);
    drop(recording);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .with_context(|| format!("cannot listen on {address}"))
        .context(Advice("leave --port out for one that is free, or choose another"))?;
    let port = listener.local_addr().context("the socket has no address")?.port();
    // In no file: the one of this port may be that of an exporter on another address.
    let token = TokenFile::create(&BTreeSet::new())?;
    // Others on this host can connect, too: they do not know the password.
    let text = format!(
        "Open http://127.0.0.1:{port}/login (any user name, password {}); Ctrl-C ends.\n",
        token.token().secret()
    );
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    let server = Server::on(vec![listener], Limits::default()).with_token_file(token);
    let path: TelemetryPath = "/metrics".parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let signal = shutdown_signal().context("cannot catch signals")?;
        let routes = Routes::new(&server, source, path);
        server.serve(routes, signal).await.context("cannot serve")
    })
}
