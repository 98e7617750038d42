//! `gpucause replay`: serves a recording as the node served it, so that rules, alerts and dashboards can be tried on any incident.

mod args;
mod place;
mod player;
mod recorded;
mod source;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use gpucause_http::server::Server;
use gpucause_http::token_file::TokenFile;
use gpucause_investigations::any_format;
use gpucause_trace::recording::{NodeIndex, Recording};

use crate::routes::Routes;
use crate::shutdown::shutdown_signal;
use place::Place;
use player::{Player, Stop};
use recorded::RecordedSampler;
use source::ReplaySource;

pub use args::{ReplayArgs, Speed};

/// Threads for scrapes.
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
    let server = if server.has_token() { server } else { with_password(server)? };
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
    let (ended, over) = tokio::sync::oneshot::channel();
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(async {
        let signal = shutdown_signal().context("cannot catch signals")?;
        let until = async {
            tokio::select! {
                () = signal => {}
                // An error means that the last page is served until a signal.
                Ok(()) = over => {}
            }
        };
        let routes = Routes::new(&server, source, args.web.telemetry_path.clone());
        server.serve(routes, until).await.context("cannot serve")
    });
    drop(stop);
    let played = playing.join().unwrap_or_else(|_| bail!("the replay failed"));
    served.and(played)
}

/// Prints the password of a server that could write no token file, such as of a user without a runtime directory.
fn with_password(server: Server) -> anyhow::Result<Server> {
    let token = TokenFile::create(&BTreeSet::new())?;
    let secret = token.token().secret();
    writeln!(
        io::stdout(),
        "To read causal chains, log in with any user name and the password {secret}"
    )
    .context("cannot write to standard output")?;
    Ok(server.with_token_file(token))
}

/// The node of this name; the only one when no name is given.
pub(crate) fn node(
    recording: &dyn Recording,
    name: Option<&str>,
    path: &Path,
) -> anyhow::Result<NodeIndex> {
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
