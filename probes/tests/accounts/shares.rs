//! A `split` workload's wall time in the accounts and as measured by its threads, cell by cell.

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::snapshot::{DispatcherSnapshot, ProcessSnapshot, TimeAccount};
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_fake_cuda::clock::monotonic_ns;
use serde_json::Value;

use crate::guest::is_emulated;
use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number};

/// How far a sum of cells may be from wall time: 0.5 %.
const OF_WALL: u64 = 200;
/// How far a share may be from the truth: 2 points.
const OF_SHARE: u64 = 50;

/// Waits for a CPU, which the kernel's statistics aggregate.
const QUEUED: State = State::Off(Reason::Preempted);
const RUNQUEUE: State = State::Off(Reason::Runqueue);

/// A workload that has done its work, and whose threads live on, with a snapshot between two times.
pub(crate) struct Measured {
    workload: Workload,
    truth: Value,
    pub(crate) process: ProcessSnapshot,
    /// On the monotonic clock, as the workload's times.
    between: [u64; 2],
}

/// Starts a workload that waits for the word, and gives it once the runtime has probes.
pub(crate) fn started(
    observed: &Observed,
    stand_ins: &StandIns,
    arguments: &str,
) -> Result<Workload> {
    let mut workload = stand_ins.start(&format!("{arguments} --wait --hold"))?;
    observed.wait_for_runtime(stand_ins)?;
    workload.go()?;
    Ok(workload)
}

/// Time that a process waited for those of this name, and for anybody, for some reasons.
pub(crate) fn waited(process: &ProcessSnapshot, reasons: &[Reason], name: &str) -> (u64, u64) {
    let mut times = (0, 0);
    for wait in process.waits.iter().filter(|wait| reasons.contains(&wait.reason)) {
        times.1 += wait.total.0;
        if wait.on.to_text() == name {
            times.0 += wait.total.0;
        }
    }
    times
}

/// Time that others than the thread and its busy neighbour had the CPU that the two share, and that is never idle, by the
/// kernel's statistics of both.
fn taken_by_others(thread: &Value) -> u64 {
    let own = number(thread, "/thread/cpu_ns") + number(thread, "/burners_run_ns");
    number(thread, "/thread/wall_ns").saturating_sub(own)
}

/// At least 95 % of the time for which a thread was preempted is its neighbour's, but for what others truly had.
pub(crate) fn check_culprit(process: &ProcessSnapshot, thread: &Value, name: &str) -> Result<()> {
    let (of_name, of_all) = waited(process, &[Reason::Preempted], name);
    let others = taken_by_others(thread);
    ensure!(
        (of_name + others) * 100 >= of_all * 95,
        "{name}: {of_name} of {of_all} ns, {others} ns taken by others: {:?}",
        process.waits
    );
    Ok(())
}

fn threads(truth: &Value) -> Result<&Vec<Value>> {
    truth["threads"].as_array().context("a result without threads")
}

/// In what phase a share is spent, and the reason that blocks in it are for.
fn cell_of(share: &str) -> (Phase, Option<Reason>) {
    let (phase, way) = match share {
        "host" => (Phase::Host, "spin"),
        "launch" => (Phase::Launch, "spin"),
        _ => match (share.strip_prefix("call-"), share.strip_prefix("sync-")) {
            (Some(way), _) => (Phase::Launch, way),
            (_, Some(way)) => (Phase::Sync, way),
            _ => (Phase::Host, share),
        },
    };
    let reason = match way {
        "futex" => Reason::Futex,
        "lock" => Reason::Lock,
        "sleep" => Reason::Sleep,
        "poll" | "pipe" => Reason::Poll,
        "net" => Reason::Net,
        "io" => Reason::Io,
        "page_fault" => Reason::PageFault,
        "ioctl" => Reason::GpuDriver,
        _ => return (phase, None),
    };
    (phase, Some(reason))
}

fn add(account: &mut TimeAccount, phase: Phase, state: State, ns: u64) {
    account.0[phase as usize][state.index()].0 += ns;
}

/// Where a thread's time went by its own clocks and the kernel's statistics of it.
fn true_account(thread: &Value, until: u64) -> Result<TimeAccount> {
    let mut account = TimeAccount::default();
    let (mut shares_wall, mut shares_queued) = (0, 0);
    for (share, spent) in thread["spent"].as_object().context("a thread without shares")? {
        let (phase, reason) = cell_of(share);
        let [wall, cpu, queued] =
            ["/wall_ns", "/cpu_ns", "/queued_ns"].map(|field| number(spent, field));
        // Without a reason to block, what is missing was taken from the whole machine.
        let rest = wall.saturating_sub(cpu + queued);
        add(&mut account, phase, State::Running, cpu);
        add(&mut account, phase, QUEUED, queued);
        add(&mut account, phase, reason.map_or(State::Running, State::Off), rest);
        shares_wall += wall;
        shares_queued += queued;
    }
    let (end, first) = (number(thread, "/thread/end_ns"), number(thread, "/first_call_ns"));
    let queued = number(thread, "/thread/schedstat/wait_ns").saturating_sub(shares_queued);
    add(&mut account, Phase::Host, QUEUED, queued);
    add(
        &mut account,
        Phase::Host,
        State::Running,
        (end - first).saturating_sub(shares_wall + queued),
    );
    // Then it waits with the others for the end.
    add(&mut account, Phase::Host, State::Off(Reason::Futex), until.saturating_sub(end));
    Ok(account)
}

/// The sum over phases.
pub(crate) fn in_state(account: &TimeAccount, state: State) -> u64 {
    Phase::ALL.iter().map(|&phase| account.at(phase, state).0).sum()
}

/// Returns true if a share of `wall` agrees with the truth.
fn is_share(seen: u64, truth: u64, wall: u64) -> bool {
    seen.abs_diff(truth) * OF_SHARE <= wall
}

/// Returns what is wrong with the cells of a thread. When a thread is woken on an idle CPU, the kernel counts the time until it
/// gets there as running, as it does not look at its clock again; the accounts have it in `runqueue`. In a phase with many
/// short waits that is some points, so running time may be less by that cell, and waits for a CPU more.
fn complaints(seen: &TimeAccount, truth: &TimeAccount) -> Vec<String> {
    let wall = truth.total().0;
    let mut complaints = Vec::new();
    for &phase in Phase::ALL {
        let queued = seen.at(phase, QUEUED).0;
        let runqueue = seen.at(phase, RUNQUEUE).0;
        for state in State::all().filter(|&state| state != RUNQUEUE) {
            let (Nanos(least), Nanos(truth)) = (seen.at(phase, state), truth.at(phase, state));
            let most = match state {
                State::Running => least + runqueue,
                QUEUED => queued + runqueue,
                State::Off(_) => least,
            };
            if !is_share(truth.clamp(least, most), truth, wall) {
                let (phase, state) = (phase.label(), state.label());
                complaints.push(format!("{phase}, {state}: {least} to {most} ns, not {truth}"));
            }
        }
    }
    complaints
}

impl Measured {
    pub(crate) fn take(observed: &Observed, stand_ins: &StandIns, arguments: &str) -> Result<Self> {
        Self::of(observed, started(observed, stand_ins, arguments)?)
    }

    pub(crate) fn of(observed: &Observed, mut workload: Workload) -> Result<Self> {
        let truth = workload.result()?;
        let last = threads(&truth)?.iter().map(|thread| number(thread, "/first_call_ns")).max();
        let last = last.context("no threads")?;
        // A slow snapshot says little about one point in time, but more the later it is. An emulated processor makes no other.
        let (process, between) = until(
            || {
                let before = monotonic_ns();
                let process = observed.process(workload.pid())?;
                let after = monotonic_ns();
                let is_short = (after - before) * OF_WALL < before - last || is_emulated();
                Ok(is_short.then_some((process, [before, after])))
            },
            || format!("no snapshot is short against the time since {last} ns"),
        )?;
        Ok(Self { workload, truth, process, between })
    }

    pub(crate) fn truth(&self) -> &Value {
        &self.truth
    }

    fn dispatcher(&self, thread: &Value) -> Result<&DispatcherSnapshot> {
        let tid = number(thread, "/tid");
        let found = self.process.dispatchers.iter().find(|known| u64::from(known.tid.0) == tid);
        found.with_context(|| format!("thread {tid} is in no account"))
    }

    /// The middle of the snapshot, when all threads were waiting.
    fn at(&self) -> u64 {
        self.between[0].midpoint(self.between[1])
    }

    /// Each thread's cells add up to its wall time, from its first call until now.
    pub(crate) fn check_sums(&self) -> Result<()> {
        for thread in threads(&self.truth)? {
            let first = number(thread, "/first_call_ns");
            let sum = self.dispatcher(thread)?.time.total().0;
            let [least, most] = self.between.map(|at| at - first);
            ensure!(
                sum + least / OF_WALL >= least && sum <= most + most / OF_WALL,
                "{sum} ns in all cells, {least} to {most} ns of wall time"
            );
        }
        Ok(())
    }

    /// Lets the threads end. What the process then has is what each lived, from its first call on.
    pub(crate) fn check_end(mut self, observed: &Observed) -> Result<()> {
        let asked = monotonic_ns();
        ensure!(self.workload.end()?.success(), "the workload failed");
        let gone = monotonic_ns();
        let (mut least, mut most) = (0, 0);
        for thread in threads(&self.truth)? {
            let first = number(thread, "/first_call_ns");
            (least, most) = (least + asked - first, most + gone - first);
        }
        let ended = observed.process(self.workload.pid())?;
        let sum = ended.dispatcher_time.total().0;
        ensure!(ended.dispatchers.is_empty(), "{:?}", ended.dispatchers);
        ensure!(
            sum + least / OF_WALL >= least && sum <= most + most / OF_WALL,
            "{sum} ns in all cells of threads that lived {least} to {most} ns"
        );
        Ok(())
    }

    /// Each cell of each thread is as the thread knows it, and so are running time and waits for a CPU of all, with what
    /// the kernel counts as running put right.
    pub(crate) fn check_shares(&self) -> Result<()> {
        let mut all = [TimeAccount::default(), TimeAccount::default()];
        for thread in threads(&self.truth)? {
            let truth = true_account(thread, self.at())?;
            let seen = self.dispatcher(thread)?.time;
            let wrong = complaints(&seen, &truth);
            ensure!(wrong.is_empty(), "{} in {} ns: {thread}", wrong.join("; "), truth.total().0);
            all[0].merge(&seen);
            all[1].merge(&truth);
        }
        let [seen, truth] = all;
        let (for_idle, _) = waited(&self.process, &[Reason::Runqueue], "idle");
        let running = in_state(&seen, State::Running) + for_idle;
        let queued = in_state(&seen, QUEUED) + in_state(&seen, RUNQUEUE) - for_idle;
        for (what, seen, state) in
            [("running", running, State::Running), ("queued", queued, QUEUED)]
        {
            let (true_ns, wall) = (in_state(&truth, state), truth.total().0);
            ensure!(is_share(seen, true_ns, wall), "{what} {seen} ns, not {true_ns}, of {wall}");
        }
        Ok(())
    }

    /// Time of all threads for a reason, in all phases.
    pub(crate) fn off(&self, reason: Reason) -> u64 {
        in_state(&self.process.dispatcher_time, State::Off(reason))
    }
}
