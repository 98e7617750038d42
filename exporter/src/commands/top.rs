//! `gpucause top`: what the processes of this host do to feed their GPUs, live. On a terminal an interactive view, elsewhere a table
//! per interval. Loads probes of its own, so that it works with and without an exporter on the host.

mod args;
mod batch;
mod cells;
mod column;
mod host;
mod live;
mod model;
mod screen;
mod state;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpucause_abi::Tgid;
use gpucause_observe::process_details::place::Places;
use gpucause_observe::sampler::SampleError;

use crate::config::Config;
use crate::daemon::Daemon;
use crate::failure::Advice;
use crate::pid_flag::require_process;
use crate::privileges;
use crate::shutdown::shutdown_signal;
use batch::Printer;
use host::Host;
pub(crate) use host::without_calls;
use model::{Intervals, View};
use screen::Appearance;

pub use args::TopArgs;

/// Time limit of the search for the libraries in use.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// The source of views.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    daemon: &'a Daemon,
    /// The only process that is shown.
    only: Option<Tgid>,
    places: &'a Places,
}

impl Source<'_> {
    /// Returns the view of the time since the last call.
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

/// Options of a view.
#[derive(Debug, Clone, Default)]
pub struct ViewOptions {
    /// Length of an interval.
    pub interval: Duration,
    /// Intervals until the end; `None` for no end.
    pub count: Option<u32>,
    /// The only process that is shown.
    pub only: Option<Tgid>,
    /// Plain text even on a terminal.
    pub plain: bool,
    /// Lines above the view on a terminal.
    pub heading: Vec<String>,
}

impl ViewOptions {
    /// Returns true if the view is interactive rather than plain text.
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
    if let Some(pid) = args.pid {
        require_process(pid)?;
    }
    privileges::require()?;
    let stopped = stopped_by_signal()?;
    // Their calls cost both.
    let is_second = gpucause_probes::is_observed_by_another();
    let config = Arc::new(if is_second { Config::beside_another() } else { Config::default() });
    let daemon = Daemon::start(args.probe.options(), config)
        .context("cannot observe this host")
        .context(Advice("run `gpucause check` to see what is missing"))?;
    show(&daemon, &args.view_options(), &stopped)
}

/// Shows what the daemon observes until the user ends it, the intervals are over, or the sender of `stopped` is dropped.
///
/// # Errors
/// When the terminal, or standard output, fails.
pub fn show(daemon: &Daemon, options: &ViewOptions, stopped: &Receiver<()>) -> anyhow::Result<()> {
    let places = Places::default();
    let source = Source { daemon, only: options.only, places: &places };
    if options.is_live() {
        // See https://no-color.org: any value but an empty one.
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let appearance = Appearance { colour, heading: options.heading.clone() };
        return live::run(&source, options, &appearance, stopped).context("the terminal failed");
    }
    match print(&source, options, stopped) {
        // The reader of the tables has ended, such as head.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

fn print(source: &Source<'_>, options: &ViewOptions, stopped: &Receiver<()>) -> io::Result<()> {
    let begin = Instant::now();
    while !source.host().ready && begin.elapsed() < FIND_DEADLINE {
        if stopped.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Disconnected) {
            return Ok(());
        }
    }
    let (mut intervals, mut printer) = (Intervals::default(), Printer::default());
    let mut left = options.count;
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
            Err(error) => tracing::warn!(%error, "cannot read an interval"),
        }
        if left == Some(0)
            || stopped.recv_timeout(options.interval) != Err(RecvTimeoutError::Timeout)
        {
            return Ok(());
        }
    }
}

/// A channel whose sender is dropped on SIGTERM or SIGINT, which no longer end the process by themselves.
fn stopped_by_signal() -> anyhow::Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the runtime")?;
    let inside = runtime.enter();
    let signal = shutdown_signal().context("cannot catch signals")?;
    drop(inside);
    let (sender, stopped) = channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(signal);
            drop(sender);
        })
        .context("cannot start a thread")?;
    Ok(stopped)
}
