//! A server whose page is that of the fixture.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use gpucause::collector::Scope;
use gpucause::flights::{FlightFile, FlightRecords};
use gpucause::node_snapshot::node_snapshot;
use gpucause::routes::{Readiness, Routes, ScrapeError, Source};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_http::server::{Limits, Server};
use gpucause_http::token_file::TokenFile;
use gpucause_http::web_config::LiveWebConfig;
use gpucause_page::family::Sink;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::snapshot;

/// Name of the thread that serves.
pub(crate) const THREAD: &str = "test server";

#[derive(Default)]
struct Fixture {
    /// How long a page takes to be made.
    takes: Duration,
    /// True if its page has no processes.
    is_idle: bool,
    flights: Option<Arc<FlightRecords>>,
}

impl Source for Fixture {
    fn collectors(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn scrape(&self, _: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        std::thread::sleep(self.takes);
        let families = if self.is_idle { Vec::new() } else { snapshot::families() };
        Ok(families.into_iter().try_for_each(|family| page.own(family))?)
    }

    fn chains(&self) -> Vec<Chain> {
        vec![snapshot::chain()]
    }

    fn snapshot(&self) -> Option<Result<Vec<u8>, ScrapeError>> {
        let file = node_snapshot("gpu", &snapshot::observation(), &self.chains(), &[]);
        Some(Ok(file.unwrap()))
    }

    fn flights(&self) -> Option<Arc<FlightRecords>> {
        self.flights.clone()
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

/// A server on a port of its own, until dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) access: Arc<LiveWebConfig>,
    /// Where the file of its token is.
    pub(crate) runtime: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

/// Serves as a web configuration file says.
pub(crate) fn serve(file: &Path) -> Running {
    start(LiveWebConfig::load(file).unwrap(), Limits::default())
}

pub(crate) fn start(access: LiveWebConfig, limits: Limits) -> Running {
    start_slow(access, limits, Duration::ZERO)
}

/// Serves a page without processes.
pub(crate) fn serve_idle(file: &Path) -> Running {
    let fixture = Fixture { is_idle: true, ..Fixture::default() };
    run(LiveWebConfig::load(file).unwrap(), Limits::default(), fixture)
}

/// Serves with a flight recorder, whose records are all this file.
pub(crate) fn serve_with_flights(file: &Path, record: &Path) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let name = "flight-gpu-1-1.000-request.db";
    std::fs::copy(record, dir.path().join(name)).unwrap();
    let records = Arc::new(FlightRecords::in_dir(dir.path().to_owned(), 9));
    let mut requests = records.accept_requests();
    std::thread::spawn(move || {
        while let Some(request) = requests.blocking_recv() {
            request.answer(Ok(FlightFile { name: name.into(), bytes: 1, written: 1.0 }));
        }
        drop(dir);
    });
    let fixture = Fixture { flights: Some(records), ..Fixture::default() };
    run(LiveWebConfig::load(file).unwrap(), Limits::default(), fixture)
}

/// Starts a server whose pages take a while.
pub(crate) fn start_slow(access: LiveWebConfig, limits: Limits, takes: Duration) -> Running {
    run(access, limits, Fixture { takes, ..Fixture::default() })
}

fn run(access: LiveWebConfig, limits: Limits, fixture: Fixture) -> Running {
    let server = Server::bind(&["0.0.0.0:0".parse().unwrap()], limits).unwrap();
    let server = server.with_access(Arc::new(access));
    let access = Arc::clone(server.access());
    let address = SocketAddr::from(([127, 0, 0, 1], server.addresses()[0].port()));
    let runtime = tempfile::tempdir().unwrap();
    let token_file = TokenFile::create_in(runtime.path(), &[address].into()).unwrap();
    let server = server.with_token_file(token_file);
    let (stop, stopped) = oneshot::channel::<()>();
    let named = std::thread::Builder::new().name(THREAD.to_owned());
    let serving = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let until = async {
            let _ = stopped.await;
        };
        let path = "/metrics".parse().unwrap();
        let routes = Routes::new(&server, Arc::new(fixture), path);
        runtime.block_on(server.serve(routes, until)).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
    };
    let thread = named.spawn(serving).unwrap();
    Running { address, access, runtime, stop: Some(stop), thread: Some(thread) }
}
