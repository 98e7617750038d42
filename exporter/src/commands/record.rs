//! `gpucause record`: writes single events and the accounts of this host's CUDA processes to a trace file.

mod args;
mod session;
mod status_line;

use std::fs;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_observe::clock::WallClock;
use gpucause_observe::host_name::node_name;
use gpucause_probes::Options;
use gpucause_probes::host_clock::clock_error;
use gpucause_probes::recorder::RingSize;
use gpucause_trace::recording::PIDS;
use gpucause_trace::trace::{CLOCK_ERROR, Start, Writer, check};
use tokio::time::MissedTickBehavior;

use crate::commands::top::without_calls;
use crate::config::Config;
use crate::daemon::{Daemon, REAP_EVERY};
use crate::pid_flag::{has_not_ended, require_process};
use crate::privileges;
use crate::shutdown::shutdown_signal;
use crate::version;
use session::Session;
use status_line::StatusLine;

pub use args::RecordArgs;
pub(crate) use args::STATUS;

/// Between two reads of the ring, which holds some seconds of events.
const DRAIN_EVERY: Duration = Duration::from_millis(100);

/// Between two checks whether probes are attached, and for how long recording waits for it.
const ATTACHED_EVERY: Duration = Duration::from_millis(10);
const ATTACHED_WITHIN: Duration = Duration::from_secs(30);

/// Between two removals of old stacks from the kernel's maps.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// After this time a process that made no call is reported: it may be the wrong one.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Records until a signal, the end of `--duration`, or that of all processes of `--pid`.
///
/// # Errors
/// When this kernel cannot record, or the file cannot be written.
pub fn run(args: &RecordArgs) -> anyhow::Result<()> {
    privileges::require()?;
    for pid in &args.pids {
        require_process(*pid)?;
    }
    // A file that cannot be written is reported before anything is loaded into the kernel. It is created, and an old one removed,
    // once recording works.
    check(&args.db, args.force)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let mut stop = {
        let _entered = runtime.enter();
        Box::pin(shutdown_signal().context("cannot catch signals")?)
    };
    let db = args.db.display();
    writeln!(io::stderr(), "{db}: attaching probes").context("cannot print the state")?;
    let options = Options { recorder: Some(RingSize::default()), ..args.probe.options() };
    let daemon = Arc::new(Daemon::start(options, Arc::new(Config::without_budget()))?);
    daemon.log_only(&args.pids);
    let recorder = daemon.recorder()?;
    ensure!(
        runtime.block_on(attached(&daemon, &mut stop)),
        "interrupted before probes were attached: nothing was recorded"
    );
    if let Some(reason) = daemon.why_nothing() {
        bail!("nothing can be recorded: {reason}");
    }
    recorder.set(&args.settings())?;
    let clock = WallClock::now();
    let writer = Writer::create(&args.db, &start(args, clock))?;
    let length = args
        .duration
        .map_or_else(|| ": Ctrl-C ends it".into(), |duration| format!(" for {duration:?}"));
    writeln!(io::stderr(), "{db}: recording{length}").context("cannot print the state")?;
    let mut session = Session::new(writer, recorder, Arc::clone(&daemon), clock, &args.pids);
    let mut line = StatusLine::new(args.size_limit.0, args.duration);
    let begin = Instant::now();
    let followed = runtime.block_on(follow(&mut session, &mut stop, args, &mut line));
    let seconds = begin.elapsed().as_secs_f64();
    line.completing();
    // The file is completed whatever went wrong.
    let summary = session.finish();
    drop(line);
    let ended = followed? == End::Processes;
    let summary = summary?;
    if ended {
        writeln!(io::stderr(), "{db}: every process of --pid has ended")
            .context("cannot print the state")?;
    }
    let is_empty = summary.finished.events + summary.finished.pruned_events == 0;
    let is_silent = is_empty
        && !args.pids.is_empty()
        && args.pids.iter().all(|pid| summary.silent.contains(pid));
    if summary.snapshots == 0 && is_empty || is_silent {
        // The file would read as if nothing was wrong.
        fs::remove_file(&args.db).with_context(|| format!("cannot remove {db}"))?;
    }
    let was_interrupted =
        !ended && args.duration.is_none_or(|duration| seconds < duration.as_secs_f64());
    let at_once = was_interrupted && seconds < EVALUATE_EVERY.as_secs_f64();
    if let Some(why) =
        nothing_recorded(summary.snapshots, (is_empty, is_silent), (seconds, at_once))
    {
        bail!("nothing was recorded: {why}");
    }
    writeln!(io::stderr(), "{summary}").context("cannot print the summary")
}

/// Why nothing was recorded in this time, if nothing was. It may have been interrupted at once.
fn nothing_recorded(
    snapshots: u64,
    (is_empty, is_silent): (bool, bool),
    (seconds, at_once): (f64, bool),
) -> Option<String> {
    match (snapshots, is_silent) {
        _ if !is_empty => None,
        (0, _) if at_once => Some("interrupted before anything was observed".into()),
        (_, true) => Some(format!(
            "no process of --pid has made a CUDA call in {seconds:.1} s - `gpucause top` lists those that do"
        )),
        (0, false) => Some(format!("no process has made a CUDA call in {seconds:.1} s")),
        _ => None,
    }
}

/// Waits until the libraries in use have probes, so that no time without is recorded; false when interrupted.
async fn attached(daemon: &Daemon, stop: &mut (impl Future<Output = ()> + Unpin)) -> bool {
    let ready = async {
        while !daemon.status().is_ready() {
            tokio::time::sleep(ATTACHED_EVERY).await;
        }
    };
    tokio::select! {
        biased;
        () = stop => false,
        // Later ones have a gap that the log reports.
        _ = tokio::time::timeout(ATTACHED_WITHIN, ready) => true,
    }
}

/// A session that begins now.
fn start(args: &RecordArgs, clock: WallClock) -> Start {
    Start {
        node: args.node.clone().unwrap_or_else(node_name),
        recorder: format!("gpucause {}", version::VERSION),
        started_ns: clock.unix_nanos(gpucause_observe::clock::monotonic_now()),
        details: details(args),
        size_limit: Some(args.size_limit.0),
        overwrite: args.force,
    }
}

/// Details of the session for the file.
fn details(args: &RecordArgs) -> Vec<(String, String)> {
    let kernel = nix::sys::utsname::uname();
    let release =
        kernel.map_or_else(|_| String::new(), |own| own.release().to_string_lossy().into());
    let settings = args.settings();
    let details = [
        ("kernel", release),
        ("calls_from_ns", settings.calls_from.0.to_string()),
        ("off_cpu_from_ns", settings.off_cpu_from.0.to_string()),
        ("sample_rest", settings.sample_rest.to_string()),
    ];
    let pids = args.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let pids = (!pids.is_empty()).then_some((PIDS, pids));
    // Without a time daemon the error is unknown.
    let clock = clock_error().map(|error| (CLOCK_ERROR, error.0.to_string()));
    details
        .into_iter()
        .chain(pids)
        .chain(clock)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Why a recording ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// By a signal or `--duration`.
    Asked,
    /// The processes of `--pid` have ended.
    Processes,
}

async fn follow(
    session: &mut Session,
    stop: &mut (impl Future<Output = ()> + Unpin),
    args: &RecordArgs,
    line: &mut StatusLine,
) -> anyhow::Result<End> {
    let end = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut warn = Instant::now().checked_add(SILENT_AFTER);
    let mut ticks = tokio::time::interval(DRAIN_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut evaluate, mut reap, mut forget) = (Instant::now(), Instant::now(), Instant::now());
    loop {
        tokio::select! {
            () = &mut *stop => return Ok(End::Asked),
            _ = ticks.tick() => {}
        }
        let now = Instant::now();
        // First: an evaluation forgets ended processes, and forgetting stacks reuses their numbers.
        session.drain()?;
        if line.is_due(now) {
            line.update(now, session.recorded()?);
        }
        if now >= evaluate {
            session.evaluate()?;
            evaluate = (evaluate + EVALUATE_EVERY).max(now);
        }
        if warn.is_some_and(|at| now >= at) {
            warn = None;
            for pid in session.silent() {
                tracing::warn!("{}", without_calls(*pid, "the recording"));
            }
        }
        if now >= forget {
            session.clear_stacks();
            forget = now + FORGET_EVERY;
        }
        if now >= reap {
            session.reap();
            reap = now + REAP_EVERY;
        }
        if end.is_some_and(|end| now >= end) {
            return Ok(End::Asked);
        }
        if !args.pids.is_empty() && !args.pids.iter().any(|pid| has_not_ended(*pid)) {
            return Ok(End::Processes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_of_nothing_was_interrupted_only_where_it_ended_early() {
        let why = nothing_recorded;
        for is_silent in [false, true] {
            assert!(why(0, (true, is_silent), (0.4, true)).unwrap().starts_with("interrupted"));
        }
        for (snapshots, at_once) in [(0, false), (3, false), (3, true)] {
            let text = why(snapshots, (true, true), (0.1, at_once)).unwrap();
            assert!(text.contains("no process of --pid has made a CUDA call in 0.1 s"), "{text}");
        }
        let nobody = why(0, (true, false), (19.0, false)).unwrap();
        assert_eq!(nobody, "no process has made a CUDA call in 19.0 s");
        assert_eq!(why(1, (true, false), (1.0, true)), None);
        assert_eq!(why(0, (false, true), (0.4, true)), None, "waits of a worker are something");
    }
}
