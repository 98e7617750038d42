//! Cost of the probes, as ratios of interleaved runs in one process tree: absolute times depend on the machine, ratios
//! carry over. Run with `make bench`.
//!
//! The probed function is `cudaLaunchKernel` of this very program, which a child process calls. It is compared with the
//! same call under an empty session program, and under one that sends each call through a ring buffer to a live reader.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

mod caller;
#[path = "../../tests/support/guest.rs"]
#[allow(dead_code, reason = "made for tests, which need more of it")]
mod guest;
mod real;
mod recorded;
mod rival;
mod samples;
mod switcher;
#[path = "../../tests/support/workload.rs"]
#[allow(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    reason = "made for tests, which need more of it"
)]
mod workload;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::Tgid;
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_probes::feature::AttachMode;
use gpucause_probes::verdict::ProgramVerdict;
use gpucause_probes::{Options, Probes, registry::LibraryVerdict};

use caller::Child;
use rival::Rival;

const ROUNDS: usize = 9;
const CALLS: u64 = 300_000;
const SWITCHES: u64 = 200_000;
const HIT_ROUNDS: usize = 3;
const HITS: u64 = 20_000;
/// Emulated machines are slow.
const DEADLINE: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (task, argument) = (arguments.next(), arguments.next());
    match (task.as_deref(), argument.as_deref().and_then(|n| n.parse().ok())) {
        (Some("call"), Some(count)) => return caller::run(count),
        (Some("real"), Some(count)) => return caller::run_real(count),
        (Some("switch"), Some(count)) => return switcher::run(count),
        (Some("samples"), _) => return samples::run(),
        (Some("switches"), _) => return switches(),
        _ => {}
    }
    if let ("hit", Some(mode)) = (task.as_deref().unwrap_or_default(), argument) {
        let known = AttachMode::ALL.into_iter().find(|known| known.label() == mode);
        return hit(known.with_context(|| format!("no mode {mode}"))?);
    }
    let one = calls()?;
    real::run(one)?;
    recorded::run()?;
    samples::run()?;
    switches()
}

/// Nanoseconds a call or switch took, by run.
struct Series {
    name: &'static str,
    runs: Vec<f64>,
}

impl Series {
    fn new(name: &'static str) -> Self {
        Self { name, runs: Vec::new() }
    }

    fn median(&self) -> f64 {
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn report(&self, what: &str) {
        let (low, high) =
            self.runs.iter().fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), &run| {
                (low.min(run), high.max(run))
            });
        println!(
            "  {:<12} {:>8.1} ns per {what}  ({low:.1} to {high:.1})",
            self.name,
            self.median()
        );
    }
}

/// Returns what one probed call takes beyond one without a probe.
fn calls() -> Result<f64> {
    println!("one probed call: {ROUNDS} interleaved rounds of {CALLS} calls");
    let mut plain = Series::new("no probe");
    let mut empty = Series::new("empty");
    let mut ours = Series::new("gpucause");
    let mut ring = Series::new("ring buffer");
    let mut lost = 0;
    for _ in 0..ROUNDS {
        plain.runs.push(Child::start("call", CALLS)?.go()?);
        {
            let child = Child::start("call", CALLS)?;
            let _rival = Rival::calls("empty_session")?;
            empty.runs.push(child.go()?);
        }
        ours.runs.push(observed_calls()?);
        {
            let child = Child::start("call", CALLS)?;
            let rival = Rival::calls("ring_session")?;
            let reader = rival.read()?;
            ring.runs.push(child.go()?);
            lost += CALLS - reader.stop(CALLS)?;
        }
    }
    for series in [&plain, &empty, &ours, &ring] {
        series.report("call");
    }
    let net = |series: &Series| series.median() - plain.median();
    println!("  gpucause / empty       {:.2}   (must be <= 1.35)", net(&ours) / net(&empty));
    println!("  gpucause / ring buffer {:.2}   (must be <= 0.50)", net(&ours) / net(&ring));
    println!("  the ring buffer lost {lost} of {} calls, gpucause none", CALLS * ROUNDS as u64);
    Ok(net(&ours))
}

/// Returns the time of a call that gpucause observes, while launches of its kernel are timed apart.
fn observed_calls() -> Result<f64> {
    let probes = Probes::start(Options::default())?;
    let child = Child::start("call", CALLS)?;
    await_attached(&probes).context("gpucause did not attach to this program")?;
    let pid = child.tgid();
    let took = std::thread::scope(|scope| {
        let timing = scope.spawn(|| time_kernel(&probes, pid));
        let took = child.go();
        timing.join().map_err(|_| anyhow::anyhow!("the kernel was not timed"))??;
        took
    })?;
    ensure_counted(&probes, pid, CALLS)?;
    let processes = probes.snapshot()?.processes;
    let of_child = processes.iter().filter(|process| process.tgid == pid);
    let timed: u64 = of_child.flat_map(|p| &p.launch_times).map(|t| t.1.count()).sum();
    ensure!(timed > CALLS / 2, "{timed} of {CALLS} launches were timed by kernel");
    Ok(took)
}

fn ensure_counted(probes: &Probes, pid: Tgid, calls: u64) -> Result<()> {
    let processes = probes.snapshot()?.processes;
    let of_child = processes.iter().filter(|process| process.tgid == pid);
    let counted: u64 = of_child.flat_map(|p| &p.calls).map(|c| c.durations.count()).sum();
    ensure!(counted == calls, "{counted} of {calls} calls were counted");
    Ok(())
}

/// Prints the cost of a call in this mode, relative to one with an empty program: for `make test-kernels`.
fn hit(mode: AttachMode) -> Result<()> {
    let (mut plain, mut empty, mut ours) =
        (Series::new("no probe"), Series::new("empty"), Series::new("gpucause"));
    for _ in 0..HIT_ROUNDS {
        plain.runs.push(Child::start("call", HITS)?.go()?);
        let child = Child::start("call", HITS)?;
        let rival = Rival::empty(mode)?;
        empty.runs.push(child.go()?);
        drop(rival);
        let probes = Probes::start(Options { mode: Some(mode), ..Options::default() })?;
        let child = Child::start("call", HITS)?;
        await_attached(&probes).context("gpucause did not attach to this program")?;
        let pid = child.tgid();
        ours.runs.push(child.go()?);
        ensure_counted(&probes, pid, HITS)?;
    }
    for series in [&plain, &empty, &ours] {
        series.report("call");
    }
    let net = |series: &Series| series.median() - plain.median();
    ensure!(net(&empty) > 0.0 && net(&ours) > 0.0, "a call takes less with a probe than without");
    println!("COST {} {:.2}", mode.label(), net(&ours) / net(&empty));
    Ok(())
}

/// Has the child's kernel timed apart as soon as it is launched, as the daemon has the hottest.
fn time_kernel(probes: &Probes, pid: Tgid) -> Result<()> {
    until(|| {
        let launched =
            |process: &ProcessSnapshot| process.tgid == pid && process.kernel_launches() > 0;
        let process = probes.launches().ok().and_then(|all| all.into_iter().find(launched));
        let kernel = process.and_then(|process| Some((process.id, process.kernels.first()?.0)));
        kernel.is_some_and(|(id, kernel)| probes.time_kernel(id, kernel).unwrap_or(false))
    })
}

fn switches() -> Result<()> {
    println!("one untracked context switch: {ROUNDS} interleaved rounds of {SWITCHES} switches");
    let mut plain = Series::new("no program");
    let mut empty = Series::new("empty");
    let mut ours = Series::new("gpucause");
    for _ in 0..ROUNDS {
        plain.runs.push(Child::start("switch", SWITCHES)?.go()?);
        {
            let _rival = Rival::host(&["empty_switch"])?;
            empty.runs.push(Child::start("switch", SWITCHES)?.go()?);
        }
        {
            let probes = Probes::start(Options::default())?;
            ensure!(probes.status().programs.iter().all(|p| p.verdict == ProgramVerdict::Attached));
            until(|| probes.status().is_ready())?;
            ours.runs.push(Child::start("switch", SWITCHES)?.go()?);
        }
    }
    for series in [&plain, &empty, &ours] {
        series.report("switch");
    }
    println!(
        "  gpucause - empty       {:.1} ns   (must be <= 100)",
        ours.median() - empty.median()
    );
    let stats = rival::Statistics::enable()?;
    let probes = Probes::start(Options::default())?;
    Child::start("switch", SWITCHES)?.go()?;
    for (program, nanos) in stats.cost_of(&["sched_switch", "sched_waking"])? {
        println!("  {program:<12} {nanos:>8.1} ns per run by the kernel's bpf_stats");
    }
    drop(probes);
    Ok(())
}

fn await_attached(probes: &Probes) -> Result<()> {
    until(|| {
        probes.status().libraries.iter().any(|library| {
            library.verdict == LibraryVerdict::Attached && library.path.ends_with(this_program())
        })
    })
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(Into::into))
        .unwrap_or_default()
}

fn until(mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < DEADLINE, "not within {} s", DEADLINE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
