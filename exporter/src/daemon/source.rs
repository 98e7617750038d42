//! The daemon as the data that the server serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::ObservationState;
use gpucause_observe::clock::monotonic_now;
use gpucause_observe::host_name::node_name;
use gpucause_observe::sampler::observer::Explained;
use gpucause_page::family::Sink;

use super::Daemon;
use crate::collector::{Content, Scope};
use crate::config::MetricsSettings;
use crate::flights::FlightRecords;
use crate::live_page::{Problem, Processes};
use crate::node_snapshot::node_snapshot;
use crate::routes::{Readiness, ScrapeError, Source};

impl Source for Daemon {
    fn collectors(&self) -> Vec<&'static str> {
        self.collectors.names()
    }

    fn metrics(&self) -> MetricsSettings {
        self.config().metrics.clone()
    }

    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let explained = self.sampler.page(monotonic_now());
        let explained = explained.map_err(|error| ScrapeError(Box::new(error)))?;
        let Explained { observation, findings } = &*explained;
        let content = Content { observation, findings, daemon: &self.shared.state() };
        Ok(self.collectors.write(content, scope, page)?)
    }

    fn chains(&self) -> Vec<Chain> {
        self.chains.chains()
    }

    fn processes(&self) -> Option<Vec<u32>> {
        self.chains.evaluated()
    }

    fn names(&self) -> BTreeMap<u32, String> {
        self.chains.names()
    }

    fn snapshot(&self) -> Option<Result<Vec<u8>, ScrapeError>> {
        let read = || self.observe().and_then(|own| Ok((own, self.kernel_names()?)));
        let read = read().map_err(|error| ScrapeError(Box::new(error)));
        Some(read.and_then(|(observation, kernels)| {
            let file = node_snapshot(&node_name(), &observation, &self.chains(), &kernels);
            file.map_err(|error| ScrapeError(Box::new(error)))
        }))
    }

    fn process_rows(&self) -> Processes {
        let live = self.chains.evaluated().map(|_| self.live.load(Ordering::Relaxed));
        Processes::of(self.chains.activities().as_ref(), live)
    }

    fn timeline(&self) -> Vec<TimelinePoint> {
        let mut points = self.chains.timeline();
        let state = self.observation_state();
        points.retain(|own| own.is_observed(state.earlier.iter().chain([&state.current])));
        points
    }

    fn flights(&self) -> Option<Arc<FlightRecords>> {
        self.shared.flights.get().cloned()
    }

    fn problem(&self) -> Option<Problem> {
        self.problem_slot().clone()
    }

    fn observation(&self) -> ObservationState {
        self.observation_state()
    }

    fn ready(&self) -> Readiness {
        let status = self.status();
        self.shared.observing.update(&status);
        if !status.enabled {
            return Readiness::Disabled;
        }
        if !status.is_ready() {
            return Readiness::NotReady("searching for the CUDA libraries in use".into());
        }
        if let Some(reason) = self.shared.observing.why_nothing(&status) {
            return Readiness::NotReady(reason);
        }
        Readiness::Ready
    }
}
