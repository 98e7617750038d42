//! `gpucause top`: what the processes of this host do to feed their GPUs, live. On a terminal a view with keys, elsewhere a
//! table an interval. Loads probes of its own, so that it works with and without an exporter on the host.

mod batch;
mod column;
mod host;
mod live;
mod model;
mod quantity;
mod screen;
mod state;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpucause_abi::Tgid;
use nix::unistd::Uid;

use crate::cli::TopArgs;
use crate::config::Config;
use crate::daemon::Daemon;
use crate::process_details::place::Places;
use crate::sampler::SampleError;
use crate::server::shutdown_signal;
use batch::Printer;
use host::Host;
use model::{Intervals, View};
use screen::Look;

/// How long the libraries in use may take to be found.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// Where views come from.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    daemon: &'a Daemon,
    /// The only process that is shown.
    only: Option<Tgid>,
    places: &'a Places,
}

impl Source<'_> {
    /// What happened since the last time.
    fn next(&self, intervals: &mut Intervals) -> Result<View, SampleError> {
        let mut view = intervals.next(self.daemon.observe()?, self.only);
        view.name_owners(|pid, comm| self.places.of(pid.0, Some(comm))?.owner());
        Ok(view)
    }

    fn host(&self) -> Host {
        let observation = self.daemon.observation_state().current;
        Host::of(&self.daemon.status(), observation, self.only)
    }
}

/// How a view is shown.
#[derive(Debug, Clone, Default)]
pub struct Show {
    /// Length of an interval.
    pub interval: Duration,
    /// Intervals until the end; `None` for no end.
    pub count: Option<u32>,
    /// The only process that is shown.
    pub only: Option<Tgid>,
    /// Tables of plain text although standard output is a terminal.
    pub plain: bool,
    /// Lines above the view on a terminal.
    pub heading: Vec<String>,
}

impl Show {
    /// Whether it will be a view with keys rather than plain text.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.plain && io::stdout().is_terminal()
    }
}

/// Runs until the user or a signal ends it, or the intervals are over.
///
/// # Errors
/// When the programs cannot be loaded or the terminal fails.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let stopped = stopped_by_signal()?;
    let config = Arc::new(Config::without_budget());
    let daemon = Daemon::start(args.probe.options(), config).with_context(advice)?;
    show(&daemon, &args.show(), &stopped)
}

/// Shows what the daemon observes until the user ends it, the intervals are over, or nobody holds the other end of `stopped`.
///
/// # Errors
/// When the terminal, or standard output, fails.
pub fn show(daemon: &Daemon, show: &Show, stopped: &Receiver<()>) -> anyhow::Result<()> {
    let places = Places::default();
    let source = Source { daemon, only: show.only, places: &places };
    if show.is_live() {
        // See https://no-color.org: any value but an empty one.
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let look = Look { colour, heading: show.heading.clone() };
        let plan = live::Plan { interval: show.interval, count: show.count, look };
        return live::run(&source, &plan, stopped).context("the terminal failed");
    }
    match print(&source, show, stopped) {
        // Whoever read the tables has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

fn print(source: &Source<'_>, show: &Show, stopped: &Receiver<()>) -> io::Result<()> {
    let begin = Instant::now();
    while !source.host().ready && begin.elapsed() < FIND_DEADLINE {
        if stopped.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Disconnected) {
            return Ok(());
        }
    }
    let (mut intervals, mut printer) = (Intervals::default(), Printer::default());
    let mut left = show.count;
    loop {
        match source.next(&mut intervals) {
            Ok(mut view) => {
                if view.elapsed.is_some() {
                    state::State::default().arrange(&mut view.rows);
                    let mut out = io::stdout().lock();
                    out.write_all(printer.table(&view, &source.host()).as_bytes())?;
                    out.flush()?;
                    left = left.map(|left| left.saturating_sub(1));
                }
            }
            Err(error) => tracing::warn!(%error, "an interval is missing"),
        }
        if left == Some(0) || stopped.recv_timeout(show.interval) != Err(RecvTimeoutError::Timeout)
        {
            return Ok(());
        }
    }
}

/// What to do when the programs cannot be loaded.
fn advice() -> &'static str {
    if Uid::effective().is_root() {
        "cannot observe this host; `gpucause check` tells what is missing"
    } else {
        "only root can observe this host: `sudo gpucause top`"
    }
}

/// A channel whose other end goes when SIGTERM or SIGINT comes. From here on they do not end the process by themselves.
fn stopped_by_signal() -> anyhow::Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the runtime")?;
    let inside = runtime.enter();
    let signal = shutdown_signal().context("cannot catch signals")?;
    drop(inside);
    let (held, stopped) = channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(signal);
            drop(held);
        })
        .context("cannot start a thread")?;
    Ok(stopped)
}
