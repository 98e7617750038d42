//! Serves the page of a made-up node of eight training ranks of 30 operations, whose counters grow, in every format and at every level:
//! `cargo run --example serve_ranks`. The first line that it prints is its address. Needs no probes; `rules/prometheus_memory.py`
//! measures with it what a page costs a Prometheus.

#![allow(clippy::unwrap_used, reason = "an example that cannot run says so by a panic")]
#![allow(clippy::print_stdout, reason = "an example prints")]

use gpucause::collector::{Collectors, Content, Scope};
use gpucause::routes::{Readiness, Routes, ScrapeError, Source};
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_fixture::rank;
use gpucause_http::server::{Limits, Server};
use gpucause_observe::observation::Observation;
use gpucause_page::family::Sink;
use std::sync::Arc;
use std::time::Instant;

const RANKS: u32 = 8;

/// Since when the ranks work.
struct Ranks(Instant);

fn grow(histogram: &mut Histogram, times: u64) {
    histogram.sum.0 *= times;
    histogram.slots = histogram.slots.iter().map(|(slot, count)| (slot, count * times)).collect();
}

fn rank_after(id: u32, times: u64) -> ProcessSnapshot {
    let mut rank = rank::rank(id);
    for call in &mut rank.calls {
        grow(&mut call.durations, times);
    }
    for (_, _, durations) in &mut rank.offcpu {
        grow(durations, times);
    }
    for (_, _, durations) in &mut rank.copies {
        grow(durations, times);
    }
    for (_, latencies) in &mut rank.runqueue {
        grow(latencies, times);
    }
    grow(&mut rank.launch_gap, times);
    for stall in &mut rank.stalls {
        stall.calls *= times;
        stall.offcpu.iter_mut().for_each(|time| time.0 *= times);
    }
    for time in rank.dispatcher_time.0.iter_mut().flatten() {
        *time = Nanos(time.0 * times);
    }
    rank
}

impl Ranks {
    fn observation(&self) -> Observation {
        let times = 1 + self.0.elapsed().as_secs();
        let mut observation =
            rank::observation((1..=RANKS).map(|id| rank_after(id, times)).collect());
        for kernels in observation.kernels.values_mut() {
            kernels.times.iter_mut().for_each(|(_, durations)| grow(durations, times));
        }
        observation
    }
}

impl Source for Ranks {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let observation = &self.observation();
        let findings = &rank::findings(observation);
        let content = Content { findings, ..Content::from(observation) };
        Ok(Collectors::default().write(content, scope, page)?)
    }

    fn chains(&self) -> Vec<Chain> {
        Vec::new()
    }

    fn observation(&self) -> ObservationState {
        Period::attached(0.0).into()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}

fn main() {
    let limits = Limits { permits: 16, ..Limits::default() };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], limits).unwrap();
    println!("{}", server.addresses()[0]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (source, path) = (Arc::new(Ranks(Instant::now())), "/metrics".parse().unwrap());
    let routes = Routes::new(&server, source, path);
    runtime.block_on(server.serve(routes, std::future::pending())).unwrap();
}
