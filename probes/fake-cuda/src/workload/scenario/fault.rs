//! A loop that feeds a GPU: healthy first, then with a fault of known strength.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gpucause_fake_cuda::clock;
use serde_json::{Value, json};

use super::{join, ns};
use crate::cli::{Common, FaultOptions};
use crate::fault::{self, Culprit, Faults, Losses, Name, Neighbours};
use crate::gpu::Gpu;
use crate::process::{pin, set_comm, thread_id};
use crate::session;
use crate::thread_stats::ThreadStats;

const NAME: &str = "demo-trainer";
/// Time for the observer to find the libraries, without --wait.
const FIND_NS: u64 = 500_000_000;
/// Helper threads that wake up all the time on another CPU, and how often.
const HELPERS: usize = 4;
const HELPER_EVERY_NS: u64 = 1_000_000;

fn say(line: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the facts that are known when the fault begins.
fn head(options: &FaultOptions, culprit: Option<&Culprit>) -> Value {
    json!({
        "pid": std::process::id(),
        "tid": thread_id(),
        "cause": options.name.cause(),
        "culprit": Culprit::to_json(culprit),
        "strength": options.strength,
    })
}

fn truth(losses: &Losses) -> Result<Value> {
    let (at, lost) = (clock::monotonic_ns(), losses.so_far()?);
    let waited = losses.waited_for_cpu_seconds()?;
    let known = json!({ "at_ns": at, "at_unix": unix_seconds(), "waited_for_cpu_seconds": waited });
    Ok(join(known, lost))
}

/// Prints the loss so far periodically, until the result has it.
struct TruthReporter(Arc<Mutex<bool>>);

impl TruthReporter {
    /// Start before the dispatcher thread gets real-time priority: on its CPU the new thread might never run.
    fn start(losses: Losses, options: &FaultOptions) -> Result<Self> {
        let over = Arc::new(Mutex::new(false));
        let (seen, every_ns, other) = (Arc::clone(&over), options.every, options.other_cpu());
        thread::Builder::new().name("truth".into()).spawn(move || {
            let _ = other.and_then(pin);
            loop {
                clock::sleep(every_ns);
                // Held while printing, so that nothing follows the result.
                let over = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if *over
                    || truth(&losses).and_then(|truth| say(&json!({ "truth": truth }))).is_err()
                {
                    return;
                }
            }
        })?;
        Ok(Self(over))
    }

    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// A hanging call never returns to the loop: another thread prints the result and ends the process.
fn end_beside(losses: Losses, options: &FaultOptions, head: Value) -> Result<()> {
    let after_ns = ns(options.seconds);
    thread::Builder::new().name("end".into()).spawn(move || {
        clock::sleep(after_ns);
        let written = truth(&losses).and_then(|truth| say(&join(head, truth)));
        std::process::exit(i32::from(written.is_err()));
    })?;
    Ok(())
}

fn helpers(cpu: usize) -> Result<()> {
    for index in 0..HELPERS {
        thread::Builder::new().name(format!("helper-{index}")).spawn(move || {
            let _ = pin(cpu);
            loop {
                clock::sleep(HELPER_EVERY_NS);
            }
        })?;
    }
    Ok(())
}

pub(crate) fn run(common: &Common, options: &FaultOptions) -> Result<()> {
    let mut faults = Faults::new(common, options)?;
    let mut noise = fault::noise(options)?;
    set_comm(common.comm.as_deref().unwrap_or(NAME))?;
    let mut gpu = Gpu::open(common)?;
    faults.open(&gpu)?;
    session::ready(common, &[thread_id()], &head(options, None))?;
    if !common.wait {
        clock::sleep(FIND_NS);
    }
    let pace = faults.pace();
    gpu.set_pace(&pace)?;
    gpu.step(&pace)?;
    faults.prepare(&mut gpu)?;
    noise.as_mut().map_or(Ok(()), Neighbours::go)?;
    if let Ok(other) = options.other_cpu() {
        helpers(other)?;
    }
    let losses = faults.losses();
    let reporter = TruthReporter::start(losses.clone(), options)?;
    options.settle(options.cpu()?)?;
    until(ns(options.baseline), || faults.step(&mut gpu, false))?;

    let head = head(options, faults.culprit().as_ref());
    let head = join(head, json!({ "culprits": faults.culprits() }));
    let start = ThreadStats::now()?;
    faults.inject(&mut gpu)?;
    let at = json!({ "at_unix": unix_seconds(), "at_ns": clock::monotonic_ns() });
    say(&json!({ "injected": join(head.clone(), at) }))?;
    if matches!(options.name, Name::Hang | Name::HangIoctl) {
        end_beside(losses, options, head.clone())?;
    }
    until(ns(options.seconds), || faults.step(&mut gpu, true))?;
    let thread = ThreadStats::now()?.since(&start);
    reporter.end();
    let result = join(join(head, truth(&faults.losses())?), json!({ "thread": thread }));
    session::finish(common, &result)
}

fn until(length_ns: u64, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let end = clock::monotonic_ns().saturating_add(length_ns);
    while clock::monotonic_ns() < end {
        step()?;
    }
    Ok(())
}
