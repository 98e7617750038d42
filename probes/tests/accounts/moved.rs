//! Waits for a CPU of threads that are moved to another one as they run, wait and sleep.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::State;
use gpucause_probes::Options;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, gettid};

use crate::disturbance::undisturbed;
use crate::observe::{Observed, until};
use crate::offcpu::{FOR_CPU, tids};
use crate::shares::{in_state, started, waited};
use crate::workload::StandIns;

/// A busy process on each CPU.
const BUSY: [&str; 2] = ["busy-left", "busy-right"];
/// On which CPU threads stay for how many milliseconds: shorter and longer than a time slice, so that they are moved as they run, as
/// they wait, and after they waited.
const STAYS: [(usize, u64); 8] = [(0, 8), (1, 1), (0, 8), (1, 3), (0, 8), (1, 8), (0, 1), (1, 2)];

/// A process whose threads were moved, asleep.
struct Moved {
    process: ProcessSnapshot,
    /// For how long its threads waited for each CPU, by the kernel's count.
    waited_for: [u64; 2],
    /// For how long this process, which moves them, had a CPU meanwhile.
    mover_ran: u64,
}

/// For how long threads have waited for a CPU so far.
fn waits(pid: u32, threads: &[u64]) -> Result<u64> {
    let mut sum = 0;
    for tid in threads {
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let waited = text.split_whitespace().nth(1).with_context(|| path.clone())?;
        sum += waited.parse::<u64>().with_context(|| path.clone())?;
    }
    Ok(sum)
}

/// Moves threads to and fro until the sender is gone; for how long they waited for each CPU. One that waits is dequeued by its move,
/// when the kernel adds its wait for the CPU that it leaves. One that runs on the first CPU is preempted by this thread.
fn to_and_fro(pid: u32, threads: &[u64], ended: &Receiver<()>) -> Result<[u64; 2]> {
    run_first()?;
    sched_setaffinity(gettid(), &only(0)?)?;
    let mut waited_for = [0; 2];
    let mut before = waits(pid, threads)?;
    for (to, stay) in STAYS.into_iter().cycle() {
        for tid in threads {
            sched_setaffinity(Pid::from_raw(i32::try_from(*tid)?), &only(to)?)?;
        }
        let now = waits(pid, threads)?;
        waited_for[1 - to] += now - before;
        before = now;
        let stay = Duration::from_millis(stay);
        if ended.recv_timeout(stay) == Err(RecvTimeoutError::Disconnected) {
            waited_for[to] += waits(pid, threads)? - before;
            break;
        }
    }
    Ok(waited_for)
}

/// Has the calling thread run before all ordinary ones.
fn run_first() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    #[expect(unsafe_code, reason = "nix sets no scheduler")]
    // SAFETY: the parameter is valid for reads.
    let code = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    ensure!(code == 0, "cannot run before others: {}", io::Error::last_os_error());
    Ok(())
}

fn only(cpu: usize) -> Result<CpuSet> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    Ok(only)
}

/// For how long this process had a CPU so far.
fn ran() -> Result<u64> {
    let ran = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(u64::try_from(Duration::from(ran).as_nanos())?)
}

fn is_asleep(pid: u32, tid: u64) -> Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"))?;
    Ok(stat.rsplit_once(") ").context("stat is short")?.1.starts_with('S'))
}

impl Moved {
    fn take(observed: &Observed, stand_ins: &StandIns, arguments: &str) -> Result<Self> {
        let busy = |(cpu, name)| {
            let arguments =
                format!("--comm {name} split --seconds 60 --cpu {cpu} --shares host=100");
            stand_ins.start(&arguments)
        };
        let mover_began = ran()?;
        let _busy = BUSY.into_iter().enumerate().map(busy).collect::<Result<Vec<_>>>()?;
        let mut victim = started(observed, stand_ins, arguments)?;
        let pid = victim.pid();
        let mut threads = tids(pid)?;
        threads.retain(|tid| *tid != u64::from(pid));
        let (running, ended) = channel::<()>();
        let waited_for = std::thread::scope(|scope| {
            let threads = &threads;
            let mover = scope.spawn(move || to_and_fro(pid, threads, &ended));
            let result = victim.result();
            drop(running);
            let waited_for = mover.join().expect("the mover does not panic");
            result.and(waited_for)
        })?;
        for tid in threads {
            until(|| Ok(is_asleep(pid, tid)?.then_some(())), || format!("{tid} does not sleep"))?;
        }
        Ok(Self { process: observed.process(pid)?, waited_for, mover_ran: ran()? - mover_began })
    }

    /// Checks that the time its threads waited for a CPU is charged, and no more. This is exact to the nanosecond, as the parts of a wait begin
    /// and end by the same readings of the clock as the wait, except where clocks of CPUs differ and where the kernel did not report a switch.
    fn check_sums(&self) -> Result<()> {
        let lost = |reason| in_state(&self.process.dispatcher_time, State::Off(reason));
        let all: u64 = FOR_CPU.into_iter().map(lost).sum();
        ensure!(all > 500_000_000, "{all} ns show nothing");
        for reason in FOR_CPU {
            let lost = lost(reason);
            let (_, charged) = waited(&self.process, &[reason], "");
            // On a quiet host one that wakes up waits for moments only.
            ensure!(lost > 10_000_000, "{lost} ns of {reason:?} show nothing");
            ensure!(
                charged.abs_diff(lost) * 1000 <= all,
                "{charged} of {lost} ns of {reason:?} are charged: {:?}",
                self.process.waits
            );
        }
        Ok(())
    }

    /// Nobody is charged for a CPU that he did not have: neither those of the other CPU nor this process, which had one for the moves
    /// only.
    fn check_culprits(&self) -> Result<()> {
        let waits = &self.process.waits;
        let mover = fs::read_to_string("/proc/self/comm")?;
        let most = BUSY.into_iter().zip(self.waited_for).chain([(mover.trim(), self.mover_ran)]);
        for (name, most) in most {
            let (charged, all) = waited(&self.process, &FOR_CPU, name);
            ensure!(
                charged <= most + all / 100,
                "{name}: {charged} ns of {all}, instead of {most} at most: {waits:?}"
            );
        }
        // One that is moved again before another task gets its CPU has waited for one that is not known.
        let (unknown, all) = waited(&self.process, &FOR_CPU, "other");
        ensure!(all - unknown > 300_000_000, "{unknown} ns of {all} show nothing: {waits:?}");
        Ok(())
    }
}

/// Moves the threads of a stand-in, and checks what they were charged with.
fn check(arguments: &str, holds: impl Fn(&Moved) -> Result<()>) -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    undisturbed(&observed, || holds(&Moved::take(&observed, &stand_ins, arguments)?))
}

#[test]
fn each_wait_of_a_thread_that_is_moved_is_charged_once_and_to_those_who_had_its_cpu() -> Result<()>
{
    check("split --seconds 5 --round 3ms --shares launch=70,sleep=30", |moved| {
        moved.check_sums()?;
        moved.check_culprits()
    })
}

#[test]
fn each_wait_of_more_threads_than_a_cpu_has_places_for_is_charged_once_when_they_are_moved()
-> Result<()> {
    check(
        "split --seconds 5 --threads 12 --round 3ms --shares launch=70,sleep=30",
        Moved::check_sums,
    )
}
