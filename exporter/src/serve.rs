//! Running: the daemon behind the server, until a signal ends it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::chains::EVALUATE_EVERY;
use crate::config::reload::{ConfigSource, Reloader};
use crate::daemon::{Daemon, REAP_EVERY};
use crate::flight_recorder::FlightRecorder;
use crate::sampler::SampleError;
use crate::server::{
    Readiness, Server, Source as _, TelemetryPath, reload_channel, shutdown_signal,
};
use crate::service_manager::{Chore, Progress, ServiceManager};
use crate::version;

/// Threads for scrapes, as many as the configuration can allow at a time, and for what else blocks. Idle ones end.
const BLOCKING_THREADS: usize = 20;
/// Between two looks whether the daemon has become ready: at first, and at last, when it may never be.
const READY_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// How the configuration is to be reloaded.
#[derive(Debug)]
pub struct Reloads {
    /// Where it comes from.
    pub source: ConfigSource,
    /// Whether clients may ask for it.
    pub over_http: bool,
}

/// Serves until SIGTERM or SIGINT. With `reloads`, SIGHUP reloads the configuration, and so does a change of its file; with `flights`, SIGUSR2 makes a record. The probes go when the last owner of `daemon` does.
///
/// # Errors
/// When the runtime cannot be started or the sockets fail.
pub fn until_signal(
    mut server: Server,
    daemon: &Arc<Daemon>,
    telemetry_path: TelemetryPath,
    reloads: Option<Reloads>,
    flights: Option<FlightRecorder>,
) -> anyhow::Result<()> {
    raise_file_limit();
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
        let manager = ServiceManager::default();
        let progress = Progress::default();
        let reloading = match reloads {
            Some(Reloads { source, over_http }) => {
                let (handle, requests) = reload_channel();
                if over_http {
                    server = server.with_reload(handle);
                }
                let (daemon, limits) = (Arc::clone(daemon), server.limits_handle());
                let reloader = Reloader::new(source, daemon, limits, manager.clone())
                    .context("cannot catch SIGHUP")?;
                Some(tokio::spawn(reloader.run(requests)))
            }
            None => None,
        };
        let kills = signal(SignalKind::user_defined1()).context("cannot catch SIGUSR1")?;
        let switching = tokio::spawn(follow_switch(Arc::clone(daemon), kills));
        let reaping = tokio::spawn(reap(Arc::clone(daemon), progress.clone()));
        let looking = tokio::spawn(look(Arc::clone(daemon), progress.clone()));
        let following =
            daemon.gpus().upstream().map(|upstream| tokio::spawn(Arc::clone(upstream).follow()));
        let asked = signal(SignalKind::user_defined2()).context("cannot catch SIGUSR2")?;
        let recording = match flights {
            Some(recorder) => tokio::spawn(recorder.follow(asked)),
            None => tokio::spawn(refuse_records(asked)),
        };
        let telling = tokio::spawn(tell_ready(Arc::clone(daemon), manager.clone()));
        let living = tokio::spawn(manager.clone().keep_alive(progress));
        let source = Arc::clone(daemon);
        let served = server.serve(source, telemetry_path, shutdown).await.context("cannot serve");
        manager.stopping();
        let tasks = [switching, reaping, looking, recording, telling, living].into_iter();
        for task in tasks.chain(reloading).chain(following) {
            task.abort();
        }
        served
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Every attached library takes a few descriptors, and so does every connection: the usual soft limit of 1024 is kept low
/// for programs that use `select`, which this one does not.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// SIGUSR1 is the switch of all probes.
async fn follow_switch(daemon: Arc<Daemon>, mut signals: Signal) {
    while signals.recv().await.is_some() {
        daemon.toggle();
    }
}

/// Whoever asks for a record where none is kept is told so, and ends nothing.
async fn refuse_records(mut signals: Signal) {
    while signals.recv().await.is_some() {
        tracing::warn!(signal = "SIGUSR2", "no events are kept: --flight-recorder.dir is not set");
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
                tracing::error!(%error, "dropping accounts of ended processes failed");
                continue;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "accounts of ended processes were not dropped");
            }
            Err(error) => {
                tracing::error!(%error, "dropping accounts of ended processes failed");
                continue;
            }
        }
        progress.made(Chore::Reap);
    }
}

async fn look(daemon: Arc<Daemon>, progress: Progress) {
    let mut ticks = tokio::time::interval(EVALUATE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looker = Arc::clone(&daemon);
        match tokio::task::spawn_blocking(move || looker.evaluate()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error @ SampleError::Panicked)) => {
                tracing::error!(%error, "looking for causal chains failed");
                continue;
            }
            Ok(Err(error)) => tracing::warn!(%error, "causal chains were not looked for"),
            Err(error) => {
                tracing::error!(%error, "looking for causal chains failed");
                continue;
            }
        }
        progress.made(Chore::Look);
    }
}

/// Between looks whether the daemon has become ready, ever longer.
fn pauses() -> impl Iterator<Item = Duration> {
    let (first, last) = READY_EVERY;
    std::iter::successors(Some(first), move |pause| Some((*pause * 2).min(last)))
}

/// Tells the service manager once the libraries in use are attached to.
async fn tell_ready(daemon: Arc<Daemon>, manager: ServiceManager) {
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
    fn a_daemon_that_never_becomes_ready_is_asked_seldom_and_one_that_does_soon() {
        let mut at = Duration::ZERO;
        let looks: Vec<Duration> = pauses()
            .map(|pause| {
                at += pause;
                at
            })
            .take_while(|at| *at <= Duration::from_secs(60))
            .collect();
        assert!(looks.len() <= 40, "{} looks in the first minute", looks.len());
        assert!(looks.iter().filter(|at| at.as_millis() <= 200).count() >= 3);
    }
}
