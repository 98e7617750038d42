//! `gpucause replay`: serves a recording as the node served it, so that rules, alerts and dashboards can be tried on any incident; and
//! `gpucause view`: the same at the end of the file, with the live page of all of it, on the loopback address.

mod args;
mod end;
mod place;
mod player;
mod recorded;
mod source;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use gpucause_http::server::{Limits, Server};
use gpucause_http::token_file::TokenFile;
use gpucause_investigations::any_format;
use gpucause_trace::recording::{NodeIndex, Recording};
use tokio::sync::oneshot;

use crate::failure::Advice;
use crate::routes::{Routes, TelemetryPath};
use crate::shutdown::shutdown_signal;
use place::Place;
use player::{Player, Stop};
use recorded::RecordedSampler;
use source::ReplaySource;

pub use args::{ReplayArgs, Speed, ViewArgs};

/// Threads for scrapes and pages.
const BLOCKING_THREADS: usize = 8;

/// Serves until SIGTERM or SIGINT, or with `--exit` until the recording is over.
///
/// # Errors
/// When the file cannot be read, has nothing of the node, or the port is taken.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let recording = any_format::open(&args.db)?;
    let node = node(&*recording, args.node.as_deref(), &args.db)?;
    let config = args.config_source().load()?;
    let server = args.web.server()?;
    let server = match server.has_token() {
        true => server,
        // It could write no token file, such as that of a user without a runtime directory.
        false => with_password(server, |password| {
            format!("To read causal chains, log in with any user name and the password {password}")
        })?,
    };
    for address in server.addresses() {
        tracing::info!(%address, "listening");
    }
    let name = recording.nodes().get(usize::from(node.0)).map(|node| node.name.clone());
    let source = Arc::new(ReplaySource::new(config.metrics.clone(), name.unwrap_or_default()));
    let (stop, stopped) = Stop::channel();
    let place = Place::of(&*recording, node);
    let player = Player {
        place,
        recording,
        node,
        speed: args.speed.0,
        source: Arc::clone(&source),
        stopped,
    };
    let sampler = RecordedSampler::new(&config);
    let (ended, over) = oneshot::channel();
    let exit = args.exit;
    let playing = std::thread::Builder::new().name("replay".into()).spawn(move || {
        let played = player.play(sampler);
        if exit || played.is_err() {
            // The receiver is gone when a signal came first.
            let _ = ended.send(());
        }
        played
    });
    let playing = playing.context("cannot start a thread")?;
    let served = serve(server, source, args.web.telemetry_path.clone(), over);
    drop(stop);
    let played = playing.join().unwrap_or_else(|_| bail!("the replay failed"));
    served.and(played)
}

/// Serves all of a file until SIGTERM or SIGINT.
///
/// # Errors
/// When the file cannot be read, has nothing of the node, or the port is taken.
pub fn view(args: &ViewArgs) -> anyhow::Result<()> {
    let recording = any_format::open(&args.db)?;
    let node = node(&*recording, args.node.as_deref(), &args.db)?;
    let source = Arc::new(end::read(&args.db, &*recording, node)?);
    drop(recording);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .with_context(|| format!("cannot listen on {address}"))
        .context(Advice("leave --port out for one that is free, or choose another"))?;
    let address = listener.local_addr().context("the socket has no address")?;
    let server = Server::on(vec![listener], Limits::default());
    // Others on this host can connect, too: they do not know the password.
    let server = with_password(server, |password| {
        format!("Open http://{address}/login (any user name, password {password}); Ctrl-C ends.")
    })?;
    let (_never, over) = oneshot::channel();
    serve(server, source, "/metrics".parse()?, over)
}

/// Serves until a signal, or until `over` has a value.
fn serve(
    server: Server,
    source: Arc<ReplaySource>,
    path: TelemetryPath,
    over: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let signal = shutdown_signal().context("cannot catch signals")?;
        let until = async {
            tokio::select! {
                () = signal => {}
                // An error means that the last page is served until a signal.
                Ok(()) = over => {}
            }
        };
        let routes = Routes::new(&server, source, path);
        server.serve(routes, until).await.context("cannot serve")
    })
}

/// Prints the password of a server whose token is in no file: the one of its port may be that of an exporter on another address.
fn with_password(server: Server, text: impl FnOnce(&str) -> String) -> anyhow::Result<Server> {
    let token = TokenFile::create(&BTreeSet::new())?;
    let text = text(token.token().secret());
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")?;
    Ok(server.with_token_file(token))
}

/// The node of this name; the only one when no name is given.
fn node(recording: &dyn Recording, name: Option<&str>, path: &Path) -> anyhow::Result<NodeIndex> {
    let names: Vec<&str> = recording.nodes().iter().map(|node| &*node.name).collect();
    let found = match (name, &*names) {
        (Some(name), _) => names.iter().position(|own| *own == name),
        (None, [_]) => Some(0),
        (None, _) => None,
    };
    match found.and_then(|index| u16::try_from(index).ok()) {
        Some(index) => Ok(NodeIndex(index)),
        None => bail!("{} has the nodes {names:?} - choose one with --node", path.display()),
    }
}
