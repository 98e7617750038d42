//! Runs the daemon and its server until a signal.

mod reload;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gpucause_http::server::Server;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_observe::sampler::SampleError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::config::source::ConfigSource;
use crate::daemon::{Daemon, REAP_EVERY};
use crate::flight_recorder::FlightRecorder;
use crate::routes::{Readiness, Routes, Source as _, TelemetryPath, reload_channel};
use crate::service_manager::{Progress, ServiceManager, Task};
use crate::shutdown::shutdown_signal;
use crate::version;
use reload::Reloader;

/// Threads for scrapes, as many as the configuration can allow, and other blocking work. Idle threads end.
const BLOCKING_THREADS: usize = 20;
/// Time to send what waits for the OTLP endpoint when the daemon ends.
const LAST_SEND: Duration = Duration::from_secs(2);
/// First and last interval of polls whether the daemon is ready.
const READY_POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// How the configuration is reloaded.
#[derive(Debug)]
pub struct Reloads {
    /// Its source.
    pub source: ConfigSource,
    /// True if HTTP clients may request a reload.
    pub over_http: bool,
}

/// Serves until SIGTERM or SIGINT. With `reloads`, the configuration is reloaded when its file changes and on SIGHUP; with
/// `flights`, SIGUSR2 writes a trace file. Probes are detached when the last owner of `daemon` is dropped.
///
/// # Errors
/// When the runtime cannot be started or the sockets fail.
pub fn until_signal(
    server: Server,
    daemon: &Arc<Daemon>,
    telemetry_path: TelemetryPath,
    reloads: Option<Reloads>,
    flights: Option<FlightRecorder>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(async {
        let shutdown = shutdown_signal().context("cannot catch signals")?;
        for address in server.addresses() {
            tracing::info!(%address, version = version::VERSION, "listening");
        }
        daemon.export_access(server.access());
        daemon.set_url(&server.url().unwrap_or_default());
        let manager = ServiceManager::default();
        let progress = Progress::default();
        let source = Arc::clone(daemon);
        let mut routes = Routes::new(&server, source, telemetry_path);
        let reloading = match reloads {
            Some(Reloads { source, over_http }) => {
                let (handle, requests) = reload_channel();
                if over_http {
                    routes = routes.with_reload(handle);
                }
                let (daemon, limits) = (Arc::clone(daemon), server.limits_handle());
                let reloader = Reloader::new(source, daemon, limits, manager.clone())
                    .context("cannot catch SIGHUP")?;
                Some(tokio::spawn(reloader.run(requests)))
            }
            None => None,
        };
        let toggles = signal(SignalKind::user_defined1()).context("cannot catch SIGUSR1")?;
        let toggling = tokio::spawn(toggle_on_signal(Arc::clone(daemon), toggles));
        let reaping = tokio::spawn(reap(Arc::clone(daemon), progress.clone()));
        let evaluating = tokio::spawn(evaluate(Arc::clone(daemon), progress.clone()));
        let following =
            daemon.gpus().upstream().map(|upstream| tokio::spawn(Arc::clone(upstream).follow()));
        let asking = tokio::spawn(Arc::clone(daemon.peers()).run());
        let requests = signal(SignalKind::user_defined2()).context("cannot catch SIGUSR2")?;
        let recording = match flights {
            Some(recorder) => tokio::spawn(recorder.follow(requests)),
            None => tokio::spawn(refuse_records(requests)),
        };
        let notifying = tokio::spawn(notify_ready(Arc::clone(daemon), manager.clone()));
        let keeping_alive = tokio::spawn(manager.clone().keep_alive(progress));
        let logging = daemon.chain_log().map(|log| tokio::spawn(Arc::clone(log).run()));
        let served = server.serve(routes, shutdown).await.context("cannot serve");
        manager.stopping();
        let tasks = [toggling, reaping, evaluating, asking, recording, notifying, keeping_alive]
            .into_iter();
        for task in tasks.chain(reloading).chain(following) {
            task.abort();
        }
        if let Some(logging) = logging {
            close_log(daemon, logging).await;
        }
        served
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Logs that chains ended, and sends what it can; the rest waits for the next start.
async fn close_log(daemon: &Arc<Daemon>, logging: JoinHandle<()>) {
    let ending = Arc::clone(daemon);
    // An error is a panic, which is in the log.
    let _ = tokio::task::spawn_blocking(move || ending.end_chains()).await;
    if let Some(log) = daemon.chain_log() {
        log.close();
    }
    // Ignored: an endpoint that does not answer must not keep the daemon.
    let _ = tokio::time::timeout(LAST_SEND, logging).await;
}

/// SIGUSR1 toggles all probes.
async fn toggle_on_signal(daemon: Arc<Daemon>, mut signals: Signal) {
    while signals.recv().await.is_some() {
        daemon.toggle();
    }
}

/// Without a handler SIGUSR2 would end the process.
async fn refuse_records(mut signals: Signal) {
    while signals.recv().await.is_some() {
        tracing::warn!(
            signal = "SIGUSR2",
            "there is no flight recorder: --flight-recorder.dir is not set"
        );
    }
}

async fn reap(daemon: Arc<Daemon>, progress: Progress) {
    let mut ticks = tokio::time::interval(REAP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let reaper = Arc::clone(&daemon);
        match tokio::task::spawn_blocking(move || reaper.reap()).await {
            Ok(Ok(())) => {}
            Ok(Err(error @ SampleError::Panicked)) => {
                tracing::error!(%error, "dropping accounts of exited processes failed");
                continue;
            }
            Ok(Err(error)) => {
                daemon.show_problem(format!(
                    "accounts of exited processes were not dropped: {error}"
                ));
                tracing::warn!(%error, "accounts of exited processes were not dropped");
            }
            Err(error) => {
                tracing::error!(%error, "dropping accounts of exited processes failed");
                continue;
            }
        }
        progress.made(Task::Reap);
    }
}

async fn evaluate(daemon: Arc<Daemon>, progress: Progress) {
    let mut ticks = tokio::time::interval(EVALUATE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let evaluator = Arc::clone(&daemon);
        match tokio::task::spawn_blocking(move || evaluator.evaluate()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error @ SampleError::Panicked)) => {
                daemon.show_problem(format!("evaluating causal chains failed: {error}"));
                tracing::error!(%error, "evaluating causal chains failed");
                continue;
            }
            Ok(Err(error)) => {
                daemon.show_problem(format!("causal chains were not evaluated: {error}"));
                tracing::warn!(%error, "causal chains were not evaluated");
            }
            Err(error) => {
                tracing::error!(%error, "evaluating causal chains failed");
                continue;
            }
        }
        progress.made(Task::Evaluate);
    }
}

/// Intervals between polls whether the daemon is ready, with exponential backoff: each is a quarter of the time before it, and 20 ms.
fn pauses() -> impl Iterator<Item = Duration> {
    let (first, last) = READY_POLL;
    std::iter::successors(Some(first), move |pause| Some((*pause * 5 / 4).min(last)))
}

/// Notifies the service manager once the daemon is ready.
async fn notify_ready(daemon: Arc<Daemon>, manager: ServiceManager) {
    for pause in pauses() {
        if !matches!(daemon.ready(), Readiness::NotReady(_)) {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    let status = daemon.status();
    tracing::info!(mode = status.mode.label(), libraries = status.libraries.len(), "ready");
    manager.ready();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_for_readiness_are_frequent_at_first_and_rare_later() {
        let mut at = Duration::ZERO;
        let polls: Vec<Duration> = pauses()
            .map(|pause| {
                at += pause;
                at
            })
            .take_while(|at| *at <= Duration::from_secs(60))
            .collect();
        assert!(polls.len() <= 50, "{} polls in the first minute", polls.len());
        assert!(polls.iter().filter(|at| at.as_millis() <= 200).count() >= 3);
    }
}
