//! A node that sends causal chains to an OTLP endpoint: `cargo run --example otlp_producer -- --endpoint URL --spool DIR --node NAME
//! --trace FILE --chains N --seconds S [--from N]`. Sender and spool are those of the exporter; the chains are those of a trace
//! file, over and over under ids of their own, so many over so many seconds. Each lasts three evaluations. `.ci/fleet/chains.py` runs
//! several.
//!
//! Prints the number of chains that have ended so far, and in the end a line of JSON: what became of the records, and the CPU time that
//! logging took, without that of making up chains. Ends when nothing waits any more.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "an example that cannot run says so by a panic"
)]
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpucause::otlp::{ChainLog, OtlpSettings, Process};
use gpucause_engine::chain::Chain;
use gpucause_investigations::any_format;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_observe::clock::cpu_time;
use gpucause_probes::allocator::limit_retained_memory;
use nix::time::{ClockId, clock_gettime};

/// Evaluations that see a chain.
const SEEN: usize = 3;
/// Ended chains that the engine still has.
const KEPT: usize = 100;

fn arguments() -> HashMap<String, String> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let pair = |pair: &[String]| match pair {
        [name, value] if name.starts_with("--") => (name[2..].to_owned(), value.clone()),
        other => panic!("{other:?} is no --NAME VALUE"),
    };
    words.chunks(2).map(pair).collect()
}

/// Begins and ends chains on time.
struct Producer {
    log: Arc<ChainLog>,
    templates: Vec<Chain>,
    node: String,
    chains: usize,
    from: usize,
    time: Duration,
}

impl Producer {
    /// The chain of a number, in the state of the evaluation at `tick`.
    fn chain(&self, number: usize, (begun, tick): (usize, usize), now: f64) -> Chain {
        let template = &self.templates[number % self.templates.len()];
        let age = (tick - begun) as f64 * EVALUATE_EVERY.as_secs_f64();
        let mut chain = template.clone();
        chain.id = format!("{number:x}-{}", template.id);
        (chain.first_seen, chain.last_seen) = (now - age, now);
        chain.ongoing = Some(tick < begun + SEEN);
        chain
    }

    /// Logs until all chains have ended; returns the CPU time of making them up.
    fn run(&self) -> Duration {
        let evaluations = (self.time.as_secs_f64() / EVALUATE_EVERY.as_secs_f64()).max(1.0);
        let per_evaluation = (self.chains - self.from) as f64 / evaluations;
        let (start, mut begun_at) = (Instant::now(), Vec::new());
        let process = Process { rank: Some(0), details: vec![("slurm_job".into(), "17".into())] };
        let (mut ended, mut made_up) = (0, Duration::ZERO);
        for tick in 0.. {
            let before = thread_time();
            let due = ((tick + 1) as f64 * per_evaluation).round() as usize;
            begun_at.resize(due.min(self.chains - self.from), tick);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
            let now_ended = begun_at.partition_point(|begun| tick >= begun + SEEN);
            let known = ended.min(now_ended).saturating_sub(KEPT)..begun_at.len();
            let chains =
                known.map(|index| self.chain(self.from + index, (begun_at[index], tick), now));
            let chains: Vec<_> = chains.collect();
            made_up += thread_time() - before;
            self.log.record(&chains, |_| Some(process.clone()));
            let before = thread_time();
            drop(chains);
            made_up += thread_time() - before;
            ended = now_ended;
            println!("{}", self.from + ended);
            if ended == self.chains - self.from {
                return made_up;
            }
            let next = start + EVALUATE_EVERY * u32::try_from(tick + 1).unwrap();
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        made_up
    }
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn main() {
    limit_retained_memory();
    let arguments = arguments();
    let argument =
        |name: &str| arguments.get(name).unwrap_or_else(|| panic!("--{name} is missing"));
    let number = |name: &str| argument(name).parse::<usize>().unwrap();
    let node = argument("node").clone();
    let recording = any_format::open(&PathBuf::from(argument("trace"))).unwrap();
    let templates: Vec<_> = recording.chains().unwrap().into_iter().map(|own| own.chain).collect();
    assert!(!templates.is_empty(), "the trace has no chains");
    let log = Arc::new(ChainLog::new(node.clone(), Some(argument("spool").into())));
    let endpoint = Some(argument("endpoint").parse().unwrap());
    log.configure(&OtlpSettings { endpoint, ..OtlpSettings::default() });
    let sending = Arc::clone(&log);
    // The daemon runs it like this.
    let sender = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(sending.run());
    });
    let producer = Producer {
        log: Arc::clone(&log),
        templates,
        node,
        chains: number("chains"),
        from: arguments.get("from").map_or(0, |from| from.parse().unwrap()),
        time: Duration::from_secs(number("seconds") as u64),
    };
    let (begin, cpu) = (Instant::now(), cpu_time().as_secs_f64());
    let made_up = producer.run();
    while log.counts().unwrap().queued_records > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    log.close();
    sender.join().unwrap();
    let (wall, cpu) =
        (begin.elapsed().as_secs_f64(), cpu_time().as_secs_f64() - cpu - made_up.as_secs_f64());
    let counts = log.counts().unwrap();
    let by_reason = |all: &[(&str, u64)]| -> HashMap<String, u64> {
        all.iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let outcome = serde_json::json!({
        "node": producer.node,
        "sent": counts.sent,
        "lost": by_reason(&counts.lost),
        "failures": by_reason(&counts.failures),
        "cpu_seconds": cpu,
        "wall_seconds": wall,
    });
    println!("{outcome}");
}
