//! Off-CPU time against what the kernel's own statistics say of the thread, and the reason that it is charged to.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::hist::Histogram;
use gpucause_abi::record::REASONS;
use gpucause_abi::snapshot::{ProcessSnapshot, StallSnapshot};
use gpucause_abi::state::{Reason, Role, Switch};
use gpucause_probes::Options;
use serde_json::Value;

use crate::disturbance::undisturbed;
use crate::guest::is_emulated;
use crate::observe::{Observed, counted, until};
use crate::workload::{StandIns, number, op};

/// Waits for a CPU; every other reason is a wait for something else.
pub(crate) const FOR_CPU: [Reason; 2] = [Reason::Preempted, Reason::Runqueue];

fn is_within(value: u64, truth: u64, tolerance: f64) -> bool {
    value.abs_diff(truth) as f64 <= truth as f64 * tolerance
}

/// Off-CPU intervals of the threads of a role, for some reasons.
fn offcpu(process: &ProcessSnapshot, role: Role, reasons: &[Reason]) -> Histogram {
    let mut all = Histogram::default();
    for (of_role, reason, intervals) in &process.offcpu {
        if *of_role == role && reasons.contains(reason) {
            all.merge(intervals);
        }
    }
    all
}

fn runqueue(process: &ProcessSnapshot, role: Role) -> Histogram {
    let own = process.runqueue.iter().find(|(of_role, _)| *of_role == role);
    own.map(|(_, waits)| waits.clone()).unwrap_or_default()
}

fn launch_stalls(process: &ProcessSnapshot) -> StallSnapshot {
    let launch = op("cudaLaunchKernel");
    let none = StallSnapshot {
        op: launch,
        cold: false,
        nested: false,
        calls: 0,
        offcpu: [Nanos(0); REASONS],
    };
    process.stalls.iter().find(|stall| stall.op == launch && !stall.cold).cloned().unwrap_or(none)
}

/// Kernel statistics of a thread.
struct Statistics {
    at: Instant,
    run_ns: u64,
    wait_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Statistics {
    fn read(pid: u32, tid: u64) -> Result<Self> {
        let task = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let status = fs::read_to_string(task.join("status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name} in {task:?}"))?.trim().parse()?)
        };
        let schedstat = fs::read_to_string(task.join("schedstat"))?;
        let mut numbers = schedstat.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().context("schedstat is short")?.context("schedstat");
        Ok(Self {
            run_ns: next()?,
            wait_ns: next()?,
            at: Instant::now(),
            voluntary: field("voluntary_ctxt_switches:")?,
            involuntary: field("nonvoluntary_ctxt_switches:")?,
        })
    }
}

/// A stretch of a thread's life: the kernel's statistics and the accounts at both ends.
struct Stretch {
    statistics: [Statistics; 2],
    accounts: [ProcessSnapshot; 2],
}

impl Stretch {
    fn kernel(&self, of: impl Fn(&Statistics) -> u64) -> u64 {
        let [start, end] = &self.statistics;
        of(end) - of(start)
    }

    fn seen(&self, of: impl Fn(&ProcessSnapshot) -> u64) -> u64 {
        let [start, end] = &self.accounts;
        of(end) - of(start)
    }
}

impl Stretch {
    /// Takes a stretch of a thread that shares its CPU with a busy process, until it has lost two seconds.
    fn on_a_busy_core(observed: &Observed, stand_ins: &StandIns) -> Result<Self> {
        let workload = stand_ins.start("contend --cpu 1 --seconds 60 --burners 1")?;
        let pid = workload.pid();
        let known = || Ok(observed.images(pid)?.pop().filter(|p| launch_stalls(p).calls > 5));
        until(known, || format!("process {pid} is never preempted"))?;
        let [_, tid] = tids(pid)?[..] else { bail!("process {pid} has not two threads") };
        let lost = |process: &ProcessSnapshot| offcpu(process, Role::Dispatcher, Reason::ALL).sum.0;
        let statistics = || anyhow::Ok((Statistics::read(pid, tid)?, observed.process(pid)?));
        let (first, before) = statistics()?;
        let goal = lost(&before) + 2_000_000_000;
        let reached = || Ok(Some(statistics()?).filter(|(_, process)| lost(process) > goal));
        let (last, after) = until(reached, || format!("process {pid} does not lose 2 s"))?;
        Ok(Self { statistics: [first, last], accounts: [before, after] })
    }

    fn check(&self) -> Result<()> {
        let [first, last] = &self.statistics;
        let wall = u64::try_from((last.at - first.at).as_nanos())?;
        let off = wall - self.kernel(|s| s.run_ns);
        let waited = self.kernel(|s| s.wait_ns);
        let seen = self.seen(|p| offcpu(p, Role::Dispatcher, Reason::ALL).sum.0);
        let for_cpu = self.seen(|p| offcpu(p, Role::Dispatcher, &FOR_CPU).sum.0);
        let queued = self.seen(|p| runqueue(p, Role::Dispatcher).sum.0);
        ensure!(is_within(seen, off, 0.02), "off the CPU {seen} of {off} ns in {wall} ns");
        ensure!(is_within(seen, waited, 0.02), "off the CPU {seen} of {waited} ns of schedstat");
        ensure!(for_cpu as f64 >= seen as f64 * 0.98, "for the CPU {for_cpu} of {seen} ns");
        ensure!(is_within(queued, waited, 0.02), "in the run queue {queued} of {waited} ns");
        let switches = |kind| self.seen(|p| p.switches(Role::Dispatcher, kind));
        let voluntary = (switches(Switch::Voluntary), self.kernel(|s| s.voluntary));
        let involuntary = (switches(Switch::Involuntary), self.kernel(|s| s.involuntary));
        // The readings at either end are not simultaneous.
        for (kind, (seen, truth)) in [("voluntary", voluntary), ("involuntary", involuntary)] {
            ensure!(seen.abs_diff(truth) <= 3, "{seen} of {truth} {kind} switches");
        }
        Ok(())
    }
}

#[test]
fn a_thread_on_a_busy_core_waits_for_it_as_long_as_the_kernel_says() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    undisturbed(&observed, || Stretch::on_a_busy_core(&observed, &stand_ins)?.check())
}

pub(crate) fn tids(pid: u32) -> Result<Vec<u64>> {
    let mut tids = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        tids.push(task?.file_name().to_string_lossy().parse()?);
    }
    tids.sort_unstable();
    Ok(tids)
}

const COUNT: u64 = 100;

/// Every way to block, and the reason that it must be charged to.
const WAYS: [(&str, Reason); 9] = [
    ("futex", Reason::Futex),
    ("lock", Reason::Lock),
    ("sleep", Reason::Sleep),
    ("poll", Reason::Poll),
    ("pipe", Reason::Poll),
    ("net", Reason::Net),
    ("io", Reason::Io),
    ("page_fault", Reason::PageFault),
    ("ioctl", Reason::GpuDriver),
];

fn is_on_disk(reason: Reason) -> bool {
    matches!(reason, Reason::Io | Reason::PageFault)
}

/// Major and minor number of the running kernel.
fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Emulated machines have no disk. The `ioctl` takes a semaphore of the kernel before Linux 6.6.
fn ways() -> impl Iterator<Item = (&'static str, Reason)> {
    let takes_semaphore = kernel_version() < (6, 6);
    let ways = WAYS.into_iter().filter(|&(_, reason)| !(is_emulated() && is_on_disk(reason)));
    ways.map(move |(way, reason)| match reason {
        Reason::GpuDriver if takes_semaphore => (way, Reason::KernelLock),
        reason => (way, reason),
    })
}

/// A process that blocked [`COUNT`] times for 2 ms, and the truth about it.
struct Blocked {
    way: &'static str,
    reason: Reason,
    process: ProcessSnapshot,
    stalls: StallSnapshot,
    truth: Value,
}

fn time_blocked(times: impl Fn(Reason) -> u64) -> u64 {
    Reason::ALL.iter().filter(|reason| !FOR_CPU.contains(reason)).map(|&reason| times(reason)).sum()
}

impl Blocked {
    fn run(
        observed: &Observed,
        stand_ins: &StandIns,
        (way, reason): (&'static str, Reason),
        place: &str,
    ) -> Result<Self> {
        let arguments = format!("--hold block --kind {way} --{place} --count {COUNT} --each 2ms");
        let mut workload = stand_ins.start(&arguments)?;
        let truth = workload.result()?;
        let process = observed.process(workload.pid())?;
        ensure!(workload.end()?.success(), "the workload failed");
        let stalls = launch_stalls(&process);
        Ok(Self { way, reason, process, stalls, truth })
    }

    /// Checks that the thread was off the CPU in its blocks for this long, by its own clocks, and blocked for all of it except
    /// the waits for a CPU that the kernel's statistics know. They count a wait from when the thread is in a run queue,
    /// not from its wakeup. That is some microseconds later, more where the CPUs are virtual and busy, and too much for
    /// a statement about single waits of the disk: there are thousands, of some 25 us each.
    fn check_time(&self, times: impl Fn(Reason) -> u64) -> Result<()> {
        let off = number(&self.truth, "/blocked_offcpu_ns");
        let waited = number(&self.truth, "/thread/schedstat/wait_ns");
        let blocked = off - waited;
        let seen = times(self.reason);
        let all = Reason::ALL.iter().map(|&reason| times(reason)).sum::<u64>();
        let way = self.way;
        // A wakeup takes an emulated processor a tenth of a block.
        let least = if is_emulated() { 0.9 } else { 0.97 };
        ensure!(all as f64 >= off as f64 * 0.97, "{way}: off the CPU {all} of {off} ns");
        let known = format!(
            "{way}: blocked {seen} of {blocked} ns, off the CPU {all} of {off} ns, waited {waited} ns"
        );
        ensure!(seen as f64 <= blocked as f64 * 1.03, "{known}");
        ensure!(is_on_disk(self.reason) || seen as f64 >= blocked as f64 * least, "{known}");
        Ok(())
    }

    fn check_share(&self, times: impl Fn(Reason) -> u64) -> Result<()> {
        let (right, all) = (times(self.reason), time_blocked(times));
        ensure!(right as f64 >= all as f64 * 0.95, "{}: {right} of {all} ns", self.way);
        Ok(())
    }

    fn overlap(&self, reason: Reason) -> u64 {
        self.stalls.offcpu[reason as usize].0
    }

    fn check_inside(&self) -> Result<()> {
        let (way, stalls) = (self.way, &self.stalls);
        self.check_share(|reason| self.overlap(reason))?;
        self.check_time(|reason| self.overlap(reason))?;
        // The launch that warms up does not block, and may be preempted. A virtual disk may have read before its reader waits.
        let least = if is_on_disk(self.reason) { 1 } else { COUNT };
        ensure!((least..=COUNT + 1).contains(&stalls.calls), "{way}: {stalls:?}");
        let calls = self.process.calls.iter();
        let of_launches = calls.filter(|call| call.op == stalls.op && !call.cold);
        let stalled = of_launches.map(|call| call.stalled.count()).sum::<u64>();
        ensure!(stalled == stalls.calls, "{way}: {stalled} durations of {stalls:?}");
        let within = stalls.offcpu.iter().map(|ns| ns.0).sum::<u64>();
        let calls = self.process.call_durations(stalls.op).sum.0;
        ensure!(within <= calls, "{way}: {within} ns off the CPU in {calls} ns of calls");
        if matches!(way, "lock" | "pipe" | "net" | "ioctl") {
            let asleep = offcpu(&self.process, Role::Helper, &[Reason::Sleep]).sum.0;
            ensure!(asleep > COUNT * 1_900_000, "{way}: the helper slept {asleep} ns");
            ensure!(self.overlap(Reason::Sleep) == 0, "{way}: the helper's sleep: {stalls:?}");
        }
        Ok(())
    }

    fn check_between(&self) -> Result<()> {
        let time = |reason| offcpu(&self.process, Role::Dispatcher, &[reason]).sum.0;
        self.check_share(time)?;
        self.check_time(time)?;
        // A call may wait for a page of its own; a single block would be ten times this.
        let inside = time_blocked(|reason| self.overlap(reason));
        ensure!(inside < time(self.reason) / 1000, "{}: {:?}", self.way, self.stalls);
        let launches = counted(&self.process)[&self.stalls.op];
        ensure!(launches == COUNT + 1, "{}: {launches} launches", self.way);
        Ok(())
    }
}

#[test]
fn time_blocked_inside_calls_is_charged_to_its_reason_and_to_the_calls() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    for way in ways() {
        undisturbed(&observed, || {
            Blocked::run(&observed, &stand_ins, way, "inside-call")?.check_inside()
        })?;
    }
    Ok(())
}

#[test]
fn time_blocked_between_calls_is_charged_to_its_reason_and_to_no_call() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    for way in ways() {
        undisturbed(&observed, || {
            Blocked::run(&observed, &stand_ins, way, "between-calls")?.check_between()
        })?;
    }
    let idle = observed.images(keeper.pid())?;
    assert!(idle.is_empty(), "a process that made no call has accounts: {idle:?}");
    Ok(())
}
