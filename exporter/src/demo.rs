//! `gpucause demo`: the exporter and a live table of what it observes. Where no CUDA process runs, a stand-in workload plays
//! one: its GPU libraries are simulated; its processes, their fight for a CPU, the probes and every number are real.

mod stand_in;
mod table;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gpucause_probes::Options;
use gpucause_probes::registry::Verdict;

use crate::cli::DemoArgs;
use crate::daemon::Daemon;
use crate::serve;
use crate::server::{Limits, Server};
use stand_in::StandIn;
use table::Table;

/// Between two states of the table.
const REFRESH: Duration = Duration::from_secs(2);
/// How long the libraries in use may take to be found.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// Runs until a signal or the end of `--duration`.
///
/// # Errors
/// When the port is taken, the programs cannot be loaded, or the stand-in workload is wanted and not there.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let server = Server::bind(&args.web.listen_addresses, Limits::default())?;
    let url = server.addresses().first().map(|address| {
        let host = if address.ip().is_unspecified() {
            format!("localhost:{}", address.port())
        } else {
            address.to_string()
        };
        format!("http://{host}{}", args.web.telemetry_path.as_str())
    });
    let daemon = Arc::new(Daemon::start(Options::default(), Arc::default())?);
    until_found(&daemon);
    let real = daemon.status().libraries.iter().filter(|l| l.verdict == Verdict::Attached).count();
    let stand_in = if real == 0 || args.stand_in {
        Some(StandIn::start(args.stand_in_dir.as_deref())?)
    } else {
        None
    };
    let heading = match &stand_in {
        Some(stand_in) => stand_in.explain(),
        None => format!(
            "Observing the CUDA processes of this host; libraries with probes: {real}. Lines appear as calls are made;\n\
             --stand-in adds a workload under contention."
        ),
    };
    let mut out = io::stdout();
    writeln!(out, "{heading}\nMetrics: {}   (Ctrl-C ends)\n", url.unwrap_or_default())?;
    let (stop, stopped) = channel::<()>();
    let printer = {
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || print_until(&daemon, &stopped))
    };
    if let Some(after) = args.duration {
        end_after(after);
    }
    let served = serve::until_signal(server, &daemon, args.web.telemetry_path.clone(), None);
    end(stop);
    if printer.join().is_err() {
        tracing::error!("the table failed");
    }
    drop(stand_in);
    served
}

fn end(stop: Sender<()>) {
    // Dropping the sender is the signal.
    drop(stop);
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
        if let Err(error) = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM) {
            tracing::error!(%error, "cannot end the demo");
        }
    });
}

fn print_until(daemon: &Daemon, stopped: &std::sync::mpsc::Receiver<()>) {
    let mut table = Table::default();
    while stopped.recv_timeout(REFRESH) == Err(RecvTimeoutError::Timeout) {
        let text = match daemon.observe() {
            Ok(observation) => table.next(&observation.snapshot),
            Err(error) => format!("{error}\n"),
        };
        // Standard output may be gone while the exporter is still wanted.
        let _ = io::stdout().write_all(text.as_bytes());
    }
}
