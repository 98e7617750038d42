//! `gpucause demo`: the exporter together with the view of `gpucause top`. Where no CUDA process runs, it starts a stand-in
//! workload: its GPU libraries are simulated; its processes, their competition for a CPU, the probes and every number are real.

mod args;
pub mod scenario;
mod stand_in;
mod story;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gpucause_engine::chain::Chain;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_probes::Options;
use gpucause_probes::registry::LibraryVerdict;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::commands::top::{self, ViewOptions};
use crate::config::Config;
use crate::daemon::Daemon;
use crate::serve;
use crate::{logging, privileges};
use scenario::Scenario;
use stand_in::StandIn;
use story::Story;

pub use args::DemoArgs;

/// Length of the view's intervals.
const REFRESH: Duration = Duration::from_secs(2);
/// Time limit of the search for the libraries in use.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// Runs until a signal, the key that quits, or the end of `--duration`. Sets the log up unless it would be written over the view.
///
/// # Errors
/// When the port is taken, the programs cannot be loaded, or the stand-in workload is wanted and not there.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    if args.list {
        write!(io::stdout(), "{}", scenario::list())?;
        return Ok(());
    }
    // A scenario's story is plain text.
    let plain = args.scenario.is_some();
    let mut view = ViewOptions { interval: REFRESH, plain, ..ViewOptions::default() };
    if !view.is_live() || !io::stderr().is_terminal() {
        // The story has the chains already.
        logging::init_recorder(args.log);
    }
    privileges::require()?;
    let server = args.web.server()?;
    let url = server.url().map(|url| format!("{url}{}", args.web.telemetry_path.as_str()));
    let daemon = Arc::new(Daemon::start(Options::default(), Arc::new(Config::without_budget()))?);
    until_found(&daemon);
    let real =
        daemon.status().libraries.iter().filter(|l| l.verdict == LibraryVerdict::Attached).count();
    let stand_in = if real == 0 || args.stand_in || plain {
        let scenario = args.scenario.unwrap_or(Scenario::Incident);
        let baseline = scenario.baseline(args.duration);
        Some(Arc::new(StandIn::start(args.stand_in_dir.as_deref(), scenario, baseline)?))
    } else {
        None
    };
    let heading = match &stand_in {
        Some(stand_in) => stand_in.explain(),
        None => format!(
            "Observing the CUDA processes of this host; libraries with probes: {real}. Processes appear with their first call;\n\
             --stand-in adds a workload under contention."
        ),
    };
    let mixed = if real > 0 && stand_in.is_some() {
        "CUDA programs run on this host: they and the demo delay each other, and its numbers are of both.\n"
    } else {
        ""
    };
    let heading =
        format!("{heading}\n{mixed}Metrics: {}   (Ctrl-C ends)\n", url.unwrap_or_default());
    if view.is_live() {
        view.heading = heading.lines().chain([""]).map(String::from).collect();
    } else {
        writeln!(io::stdout(), "{heading}")?;
    }
    let live = view.is_live();
    let (stop, stopped) = channel::<()>();
    let printer = {
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || {
            // Quitting the view ends the demo; without standard output the exporter goes on.
            match top::show(&daemon, &view, &stopped) {
                Ok(()) if live => end_process(),
                Ok(()) => {}
                Err(error) => tracing::error!("{error:#}"),
            }
        })
    };
    let (stop_story, story_stopped) = channel::<()>();
    let renderer = stand_in.clone().filter(|_| !live).map(|stand_in| {
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || print_story(&daemon, &stand_in, &story_stopped))
    });
    if let Some(after) = args.duration.or_else(|| args.scenario.map(Scenario::length)) {
        end_after(after);
    }
    let served = serve::until_signal(server, &daemon, args.web.telemetry_path.clone(), None, None);
    drop((stop, stop_story));
    if printer.join().is_err() || renderer.is_some_and(|renderer| renderer.join().is_err()) {
        tracing::error!("the view failed");
    }
    if let Some(stand_in) = &stand_in {
        let text = story::comparison(&stand_in.account(), &chains(&daemon, stand_in));
        // Standard output may be gone.
        let _ = io::stdout().write_all(text.as_bytes());
    }
    served
}

/// Runs a scenario without serving metrics. Returns the chains, and a comparison with the workload's own account.
///
/// # Errors
/// When the programs cannot be loaded, or the stand-in workload is not there.
pub fn run_scenario(scenario: Scenario, time: Duration) -> anyhow::Result<(Vec<Chain>, String)> {
    let daemon = Daemon::start(Options::default(), Arc::new(Config::without_budget()))?;
    until_found(&daemon);
    let stand_in = StandIn::start(None, scenario, scenario.baseline(Some(time)))?;
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::thread::sleep(EVALUATE_EVERY.min(time.saturating_sub(begin.elapsed())));
        daemon.evaluate()?;
    }
    let chains = chains(&daemon, &stand_in);
    let comparison = story::comparison(&stand_in.account(), &chains);
    Ok((chains, comparison))
}

/// The chains of the stand-in: the host may have others.
fn chains(daemon: &Daemon, stand_in: &StandIn) -> Vec<Chain> {
    let mut chains = daemon.findings().chains;
    chains.retain(|chain| stand_in.owns(chain.victim.pid));
    chains
}

fn print_story(daemon: &Daemon, stand_in: &StandIn, stopped: &Receiver<()>) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut story = Story::default();
    while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        let text = story.next(&stand_in.account(), &chains(daemon, stand_in));
        let _ = io::stdout().write_all(text.as_bytes());
    }
}

fn until_found(daemon: &Daemon) {
    let begin = Instant::now();
    while !daemon.status().is_ready() && begin.elapsed() < FIND_DEADLINE {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the demo as Ctrl-C does.
fn end_after(after: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        end_process();
    });
}

fn end_process() {
    if let Err(error) = kill(Pid::this(), Signal::SIGTERM) {
        tracing::error!(%error, "cannot end the demo");
    }
}
