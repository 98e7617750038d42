//! Time to make a page from a copy of the kernel maps, at the default level and at the full one, in each form: families by the collectors,
//! written as they come, and compressed as a scraper asks for it. The processes are made up, and all runs in this process: it needs no
//! privileges, and measures the exporter's own part of a scrape without the kernel's. Forms take turns, so that a busy host slows all of them.
//!
//! Beside the time on the clock stands the CPU time of all threads, which other programs on the host hardly change.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot run says so by a panic"
)]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "../daemon/measure.rs"]
#[allow(dead_code, reason = "made for another benchmark, which needs more of it")]
mod measure;

use flate2::Compression;
use flate2::write::GzEncoder;
use gpucause::collector::{Collectors, Scope, Selection};
use gpucause_fixture::{crowd, ops};
use gpucause_observe::observation::Observation;
use gpucause_observe::series::cardinality_limit::CardinalityLimit;
use gpucause_page::exposition::classic_buckets::Policy;
use gpucause_page::exposition::gzip::Gzip;
use gpucause_page::exposition::{ClassicBuckets, Format};
use gpucause_page::metric::Level;
use measure::{Memory, cpu_time, memory, quantile};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Nearly as many as the kernel maps hold: most of them are aggregated.
const MANY: u32 = 10_000;
/// How many processes are tracked individually by default.
const TRACKED: usize = 1_024;

#[derive(Clone, Copy)]
enum Packing {
    Plain,
    Gzip,
    /// By another compressor, as one stream, to compare with.
    OneStream(u32),
}

const FORMATS: [(&str, Format); 3] =
    [("text", Format::Text), ("OpenMetrics", Format::OpenMetrics), ("protobuf", Format::Protobuf)];
const PACKINGS: [(&str, Packing); 3] =
    [("", Packing::Plain), (", gzip", Packing::Gzip), (", one stream", Packing::OneStream(1))];

/// Counts what is written.
#[derive(Default)]
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A page.
#[derive(Clone, Copy)]
struct Form {
    level: Level,
    format: Format,
    packing: Packing,
}

impl Form {
    fn write(self, collectors: &Collectors, observation: &Observation, sink: &mut dyn Write) {
        let scope = Scope { selection: Selection::All, level: self.level };
        let buckets = ClassicBuckets::of(self.format, self.level, Policy::Auto);
        let mut writer = self.format.writer(self.level, buckets, sink);
        collectors.write(observation, &scope, &mut writer).unwrap();
        writer.finish().unwrap();
    }

    /// The bytes of the page.
    fn written(self, collectors: &Collectors, observation: &Observation) -> usize {
        let mut length = Length::default();
        match self.packing {
            Packing::Plain => self.write(collectors, observation, &mut length),
            Packing::Gzip => {
                let mut gzip = Gzip::new(&mut length).unwrap();
                self.write(collectors, observation, &mut gzip);
                gzip.finish().unwrap();
            }
            Packing::OneStream(level) => {
                let mut encoder = GzEncoder::new(&mut length, Compression::new(level));
                self.write(collectors, observation, &mut encoder);
                encoder.finish().unwrap();
            }
        }
        length.0
    }
}

/// Times on the clock and of CPUs.
#[derive(Default)]
struct Times(Vec<Duration>, Vec<Duration>);

impl Times {
    fn of<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let pid = std::process::id();
        let (begin, before) = (Instant::now(), cpu_time(pid));
        let made = work();
        self.0.push(begin.elapsed());
        self.1.push(cpu_time(pid) - before);
        made
    }

    fn report(mut self, what: &str, bytes: usize) {
        self.0.sort_unstable();
        self.1.sort_unstable();
        let at = |times: &[Duration], q| quantile(times, q).as_secs_f64() * 1e3;
        println!(
            "  {what:<34} {:6.1} ms at best, {:6.1} ms median, {:6.1} ms p99   {:6.1} ms CPU, {:6.1} ms at best   {:6.2} MB",
            at(&self.0, 0.0),
            at(&self.0, 0.5),
            at(&self.0, 0.99),
            at(&self.1, 0.5),
            at(&self.1, 0.0),
            bytes as f64 / 1e6
        );
    }
}

fn page(observation: &Observation, rounds: usize) {
    let collectors = Collectors::default();
    let mut gathering = Times::default();
    let mut forms = Vec::new();
    for level in [Level::Standard, Level::Full] {
        for (name, format) in FORMATS {
            for (packed, packing) in PACKINGS {
                let form = Form { level, format, packing };
                forms.push((format!("{level}: {name}{packed}"), form, Times::default(), 0));
            }
        }
    }
    for _ in 0..rounds {
        gathering.of(|| collectors.collect(observation));
        for (_, form, times, bytes) in &mut forms {
            *bytes = times.of(|| form.written(&collectors, observation));
        }
    }
    gathering.report("families of full alone", 0);
    for (name, _, times, bytes) in forms {
        times.report(&name, bytes);
    }
    let Memory { resident, peak, .. } = memory(std::process::id());
    println!(
        "  memory {resident:.1} MiB resident, {peak:.1} MiB at most, the copy of the maps included"
    );
}

fn many() {
    let mut processes = crowd::processes(MANY, &ops::OPS);
    let mut cardinality = CardinalityLimit::default();
    cardinality.set_limit(TRACKED);
    let (mut assigning, mut splitting) = (Times::default(), Times::default());
    assigning.of(|| cardinality.assign(&processes));
    let overflow = splitting.of(|| cardinality.take_overflow(&mut processes));
    println!("{MANY} processes, {TRACKED} of them tracked individually");
    assigning.report("assignment", 0);
    splitting.report("sum of the others", 0);
    let mut observation = crowd::observation(processes);
    (observation.processes_live, observation.processes_aggregated) =
        (MANY.into(), cardinality.aggregated_total());
    observation.overflow = overflow;
    page(&observation, 5);
}

fn main() {
    for (count, rounds) in [(64, 100), (1_000, 15)] {
        println!("{count} processes x {} ops", ops::OPS.len());
        page(&crowd::observation(crowd::processes(count, &ops::OPS)), rounds);
    }
    many();
}
