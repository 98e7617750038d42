//! Quantiles of launches and of off-CPU time, as each real Prometheus that rules are tested by computes them of classic buckets and of
//! native histograms, against the values themselves. The page is made up: needs no probes.
//!
//! `GPUCAUSE_PROMETHEUS` names the programs, separated by spaces; without it they are the installed one and those that
//! `.ci/prometheus` unpacks.

use gpucause::collector::{Collectors, Scope};
use gpucause::routes::{Readiness, Routes, ScrapeError, Source};
use gpucause_abi::Nanos;
use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::snapshot::CallSnapshot;
use gpucause_abi::state::{Reason, Role};
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_fixture::poll::until;
use gpucause_fixture::prometheus_server::{Prometheus, native_histograms, version};
use gpucause_fixture::rank;
use gpucause_http::server::{Limits, Server};
use gpucause_page::exposition::bucket_bounds::BOUNDS;
use gpucause_page::exposition::native::MAX_ERROR;
use gpucause_page::family::Sink;
use gpucause_page::metric::{LAUNCH_DURATION, Metric, OFFCPU_DURATION};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many values each scrape adds. No quantile here lies between two of them.
const VALUES: usize = 1_001;

/// Durations in nanoseconds, ascending: most around `middle`, one in twenty up to a thousand times that.
fn values(middle: u64) -> Vec<u64> {
    let mut state = middle;
    let mut below = |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut values: Vec<u64> = (0..VALUES)
        .map(|number| match number % 20 {
            0 => middle * (2 + below(1_000)),
            _ => middle / 2 + below(middle),
        })
        .collect();
    values.sort_unstable();
    values
}

/// The value of a quantile: of the rank that Prometheus looks for.
fn exact(values: &[u64], q: f64) -> u64 {
    let rank = (q * VALUES as f64).ceil();
    values[rank as usize - 1]
}

/// Each value so many times.
fn histogram(values: &[u64], times: u64) -> Histogram {
    let mut slots = BTreeMap::new();
    for &value in values {
        *slots.entry(u16::try_from(slot_of(Nanos(value))).unwrap()).or_insert(0) += times;
    }
    Histogram {
        sum: Nanos(values.iter().sum::<u64>() * times),
        max: Nanos(values[VALUES - 1]),
        slots: slots.into_iter().collect(),
    }
}

const LAUNCH_MIDDLE: u64 = 9_000;
const OFFCPU_MIDDLE: u64 = 140_000;

/// A process that makes the same launches between any two scrapes, and waits as often.
struct Known(AtomicU64);

impl Source for Known {
    fn collectors(&self) -> Vec<&'static str> {
        Collectors::default().names()
    }

    fn scrape(&self, scope: &Scope, page: &mut dyn Sink) -> Result<(), ScrapeError> {
        let times = 1 + self.0.fetch_add(1, Ordering::SeqCst);
        let mut process = rank::rank(1);
        let op = op_of_symbol("cudaLaunchKernel").unwrap();
        let launches = histogram(&values(LAUNCH_MIDDLE), times);
        process.calls = vec![CallSnapshot::unstalled(op, false, launches)];
        let waits = histogram(&values(OFFCPU_MIDDLE), times);
        process.offcpu = vec![(Role::Dispatcher, Reason::Futex, waits)];
        Collectors::default().write(&rank::observation(vec![process]), scope, page)?;
        Ok(())
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

/// Serves until the tests end.
fn serve() -> SocketAddr {
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], Limits::default()).unwrap();
    let address = server.addresses()[0];
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let path = "/metrics".parse().unwrap();
        let source = Arc::new(Known(AtomicU64::new(0)));
        let routes = Routes::new(&server, source, path);
        runtime.block_on(server.serve(routes, std::future::pending())).unwrap();
    });
    address
}

/// The programs, each with its version: 2.42 is (2, 42).
fn programs() -> Vec<(String, (u32, u32))> {
    let named = std::env::var("GPUCAUSE_PROMETHEUS").ok();
    let names: Vec<String> = named.map_or_else(
        || {
            let target = Path::new(env!("CARGO_BIN_EXE_gpucause")).ancestors().nth(2).unwrap();
            let of = |suite| target.join(format!("prometheus-{suite}/usr/bin/prometheus"));
            let later = ["trixie", "sid"].map(|suite| of(suite).to_str().unwrap().to_owned());
            [vec!["prometheus".to_owned()], later.into()].concat()
        },
        |names| names.split_whitespace().map(str::to_owned).collect(),
    );
    assert!(!names.is_empty(), "GPUCAUSE_PROMETHEUS names no program");
    names
        .into_iter()
        .map(|name| (version(&name), name))
        .map(|(version, name)| (name, version))
        .collect()
}

/// Scrapes the page every second.
fn scraping(program: &(String, (u32, u32)), target: SocketAddr, native: bool) -> Prometheus {
    let (name, version) = program;
    let (setting, flags) = native_histograms(*version, native);
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: gpucause\n  {setting}\n  \
         static_configs: [{{targets: ['{target}']}}]\n"
    );
    Prometheus::of(name, &config, flags)
}

/// The finite number that a query has, once there were scrapes enough.
fn number(prometheus: &Prometheus, query: &str) -> f64 {
    until(query, || prometheus.value(query).filter(|number| number.is_finite()))
}

/// Seconds between which the quantile of classic buckets lies when `exact` is right.
fn classic_bucket(metric: &Metric, exact: Nanos) -> (f64, f64) {
    let bounds = || BOUNDS.iter().filter(|bound| bound.is_of(metric));
    let lower = bounds().rfind(|bound| bound.upper < exact);
    let upper = bounds().find(|bound| exact <= bound.upper).unwrap();
    (lower.map_or(0.0, |bound| bound.upper.as_secs_f64()), upper.upper.as_secs_f64())
}

fn assert_quantiles(version: (u32, u32), classic: &Prometheus, native: &Prometheus) {
    let of_dispatchers = "{role=\"dispatcher\",reason=\"all\"}";
    for (metric, selector, middle) in
        [(&LAUNCH_DURATION, "", LAUNCH_MIDDLE), (&OFFCPU_DURATION, of_dispatchers, OFFCPU_MIDDLE)]
    {
        let (name, values) = (metric.name, values(middle));
        for q in [0.5, 0.9, 0.99] {
            let exact = Nanos(exact(&values, q));
            let seconds = exact.as_secs_f64();
            let quantile = |series: &str| {
                format!("histogram_quantile({q}, sum by (pid, le) (rate({series}{selector}[1m])))")
            };
            let estimate = number(classic, &quantile(&format!("{name}_bucket")));
            let (lower, upper) = classic_bucket(metric, exact);
            println!(
                "{version:?} {name} p{q}: {seconds} s; classic {estimate}, {lower} to {upper}"
            );
            assert!(
                (lower..=upper).contains(&estimate),
                "{version:?}, classic buckets of {name}, p{q}: {estimate} s; {seconds} s is within {lower} to {upper}"
            );
            let estimate = number(native, &quantile(name));
            println!("{version:?} {name} p{q}: {seconds} s; native {estimate}");
            assert!(
                (estimate / seconds - 1.0).abs() <= MAX_ERROR,
                "{version:?}, native histogram of {name}, p{q}: {estimate} s, not {seconds} s"
            );
        }
        let mean = values.iter().sum::<u64>() as f64 / VALUES as f64 / 1e9;
        for (prometheus, query) in [
            (
                classic,
                format!(
                    "sum(rate({name}_sum{selector}[1m])) / sum(rate({name}_count{selector}[1m]))"
                ),
            ),
            (
                native,
                format!(
                    "sum(histogram_sum(rate({name}{selector}[1m])) / histogram_count(rate({name}{selector}[1m])))"
                ),
            ),
        ] {
            let own = number(prometheus, &query);
            assert!(
                (own / mean - 1.0).abs() < 0.001,
                "{version:?}, {query}: {own} s, not {mean} s"
            );
        }
        let classic_too = native.series(&format!("{name}_bucket{selector}"));
        assert!(
            classic_too.is_empty(),
            "{version:?}: native histograms come without classic buckets"
        );
    }
}

#[test]
fn quantiles_of_classic_buckets_and_of_native_histograms_are_those_of_the_values() {
    let target = serve();
    // All before the first is asked: each takes some seconds before its first scrape.
    let all: Vec<_> = programs()
        .into_iter()
        .map(|program| {
            let [classic, native] = [false, true].map(|native| scraping(&program, target, native));
            (program, classic, native)
        })
        .collect();
    for (program, classic, native) in &all {
        assert_quantiles(program.1, classic, native);
        for prometheus in [classic, native] {
            assert_eq!(prometheus.value("min_over_time(up[1m])"), Some(1.0), "{program:?}");
            prometheus.assert_that_it_complained_of_nothing();
        }
    }
}
