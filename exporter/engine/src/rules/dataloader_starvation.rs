//! The victim waited for data while the worker processes that prepare it were busy.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{Phase, Reason, Relation, State};

use super::Rule;
use super::share::best;
use crate::chain::{Cause, Culprit, Evidence, Step};
use crate::claim::Span;
use crate::context::{Context, Measured, Process, waits_in};
use crate::delta::{Delta, NO_CPU, ThreadDelta};
use crate::detection::{Detection, Sentence, name_of};
use crate::effect::{DATA_WAITS, futex_for_data};
use crate::phases::Phases;
use crate::times::{at_most, part, ratio, share, total};
use crate::worker_time::{Competitor, WorkerTime};

const DESCRIPTORS: [Reason; 2] = [Reason::Poll, Reason::Net];
/// Least busy share of the workers' time.
const MIN_BUSY: f64 = 0.8;

/// Main threads of workers that ended a wait of the victim: other child processes, such as a shell or Python's resource tracker, do
/// not count.
#[derive(Debug, Default)]
struct Workers {
    /// Child processes that are observed.
    children: u64,
    /// Workers that ever ended a wait.
    count: u64,
    /// Workers that ended a wait in the long window. A worker whose batch is never waited for ends no wait.
    waited_for: u64,
    /// Workers of `waited_for` that kept the victim waiting in this window: they are busy. While a wait goes on, all of them count.
    late: usize,
    wall: Nanos,
    time: WorkerTime,
    /// Busy ones that were waited for in the long window.
    busy: u64,
    /// The one of these that was waited for longest.
    latest: Option<Culprit>,
}

fn busy(thread: &ThreadDelta) -> [Nanos; 3] {
    let off = |reasons: &[Reason]| {
        total(reasons.iter().map(|&r| thread.time.at(Phase::Host, State::Off(r))))
    };
    let running = thread.time.at(Phase::Host, State::Running);
    [running, off(&[Reason::Io, Reason::PageFault]), off(&NO_CPU)]
}

fn sum(parts: [Nanos; 3]) -> Nanos {
    total(parts.into_iter())
}

impl Workers {
    fn of(context: &Context<'_>, process: &Process<'_>) -> Self {
        let mut all = Self::default();
        let mut waited_for = Vec::new();
        for worker in context.workers_of(process.now.id) {
            let Some(thread) = worker.short.worker() else { continue };
            all.children += 1;
            all.count += u64::from(worker.now.measures.ended_waits.0 > 0);
            let [now, lately] = [&worker.short, &worker.long].map(|own| own.measures().ended_waits);
            if lately.0 == 0 {
                continue;
            }
            let parts = busy(&thread);
            all.waited_for += 1;
            all.wall.0 = all.wall.0.saturating_add(thread.wall.0);
            all.time.add(&WorkerTime::new(parts, thread.wall));
            add_competitors(&mut all.time, context, (process, worker));
            let is_busy = ratio(sum(parts), thread.wall) >= MIN_BUSY;
            all.busy += u64::from(is_busy);
            let ended = if now.0 > 0 { now } else { lately };
            waited_for.push(((is_busy, now.0 > 0), ended, worker.now));
        }
        // First those that are busy, since another child may end waits of other threads, and of these those that ended a wait now.
        if let Some(&(kind, _, worker)) = waited_for.iter().max_by_key(|own| (own.0, own.1)) {
            all.late = waited_for.iter().filter(|own| own.0 == kind).count();
            let comm = worker.comm.to_text();
            all.latest = Some(Culprit { pid: worker.tgid.0, comm, ..Culprit::default() });
        }
        all
    }

    fn busy(&self) -> Nanos {
        sum([self.time.running, self.time.io, self.time.without_cpu])
    }

    fn busy_share(&self) -> f64 {
        ratio(self.busy(), self.wall)
    }

    /// Returns the parts of the workers' busy time, the largest first.
    fn parts(&self) -> [(Nanos, &'static str); 3] {
        let mut parts = [
            (self.time.running, "computing"),
            (self.time.io, "reading from disk"),
            (self.time.without_cpu, "waiting for a CPU"),
        ];
        parts.sort_by_key(|&(time, _)| std::cmp::Reverse(time));
        parts
    }
}

/// Adds who had the CPU while the main thread of a worker waited for one.
fn add_competitors(
    time: &mut WorkerTime,
    context: &Context<'_>,
    (process, worker): (&Process<'_>, &Process<'_>),
) {
    let own = |pid: u32| {
        let workers = context.workers_of(process.now.id).map(|own| own.now.tgid.0);
        workers.chain([process.now.tgid.0]).any(|own| own == pid)
    };
    // Waits are kept by name: of two jobs whose workers have the same, either may have had the CPU.
    let is_ambiguous = |wait: &Wait| {
        let named = context.processes.iter().filter(|other| other.now.comm == wait.on);
        let (ours, theirs): (Vec<_>, Vec<_>) = named.partition(|other| own(other.now.tgid.0));
        !ours.is_empty() && !theirs.is_empty()
    };
    let main = worker.now.tgid.0;
    for wait in worker.short.waits() {
        let is_main = wait.tid.is_none_or(|tid| tid.0 == main);
        let Some(tgid) = wait.tgid.filter(|_| is_main && NO_CPU.contains(&wait.reason)) else {
            continue;
        };
        if wait.relation == Relation::Thread || own(tgid.0) {
            if !is_ambiguous(wait) {
                time.add_competitor(Competitor::Job, wait.total);
            }
        } else if !is_ambiguous(wait) {
            let feeds = context.feeder(tgid.0).map(|feeder| feeder.comm);
            let program = Competitor::Program { pid: tgid.0, comm: wait.on.to_text(), feeds };
            time.add_competitor(program, wait.total);
        }
    }
}

/// Share of the victim's waits for this reason that a worker ended.
fn from_workers(delta: &Delta<'_>, phases: Phases, reason: Reason) -> f64 {
    let (mut workers, mut all) = (Nanos(0), Nanos(0));
    for wait in waits_in(delta, None, phases, &[reason]) {
        all.0 = all.0.saturating_add(wait.total.0);
        if wait.relation == Relation::Worker {
            workers.0 = workers.0.saturating_add(wait.total.0);
        }
    }
    ratio(workers, all)
}

/// Waits for data that are part of an effect.
fn data_in(process: &Process<'_>, effect: &Measured) -> Nanos {
    let (delta, phases) = (effect.delta(process), effect.phases);
    let futex = effect.offcpu(&[Reason::Futex]).min(futex_for_data(delta, effect.tid, phases));
    let of_workers =
        |&reason: &Reason| effect.offcpu(&[reason]).share(from_workers(delta, phases, reason));
    total(DESCRIPTORS.iter().map(of_workers).chain([futex]))
}

/// Waits for data as part of a thread's time.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    let waited = |reason| {
        part(&thread.time, |phase, state| state == State::Off(reason) && phases.contain(phase))
    };
    let futex = waited(Reason::Futex);
    let mut claim = at_most(futex, futex_for_data(span.delta, Some(thread.tid), phases));
    for reason in DESCRIPTORS {
        claim.merge(&share(waited(reason), from_workers(span.delta, phases, reason)));
    }
    claim
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::DataloaderStarvation,
    reads: &[
        "gpucause_dispatcher_seconds_total",
        "gpucause_blocked_on_seconds_total",
        "gpucause_offcpu_duration_seconds",
    ],
    needs: "waits that workers end are part of an effect, and the workers are busy for 80 % of their time",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let mut workers = Workers::of(context, process);
    if workers.waited_for == 0 || workers.busy_share() < MIN_BUSY {
        return None;
    }
    let cause = Cause::DataloaderStarvation;
    let share = best(
        context,
        process,
        cause,
        |effect| data_in(process, effect),
        |effect, thread| {
            let delta = effect.delta(process);
            claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
        },
    )?;
    // A forked worker has its parent's name until it sets its own.
    let waits = process.waits(share.effect, &DATA_WAITS);
    let named = waits.iter().find(|wait| wait.relation == Relation::Worker);
    if let (Some(worker), Some(wait)) = (&mut workers.latest, named) {
        worker.comm = wait.on.to_text();
    }
    let evidence = share.evidence().and(
        &Evidence::default()
            .with("child_processes", workers.children as f64)
            .with("workers", workers.count as f64)
            .with("workers_waited_for", workers.waited_for as f64)
            .with("workers_window_seconds", process.long.wall.as_secs_f64())
            .with("workers_busy_share", workers.busy_share())
            .with("workers_running_seconds", workers.time.running.as_secs_f64())
            .with("workers_io_seconds", workers.time.io.as_secs_f64())
            .with("workers_without_cpu_seconds", workers.time.without_cpu.as_secs_f64()),
    );
    workers.time.set_workers(workers.busy);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let (parts, busy) = (workers.parts(), workers.busy());
    // Not all of it counts as lost: a wait in poll may be healthy.
    // The job may have workers that it never waited for: no number of them is a total.
    let sentence = "Waiting for data took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
                    {explained_share|percent} of its {effect}. It waited for {workers_waited_for|count} \
                    {workers_waited_for|worker/workers} in the last {workers_window_seconds|seconds} \
                    ({workers|count} so far, of {child_processes|count} child processes), \
                    busy {workers_busy_share|percent} of the time: \
                    computing {workers_running_seconds|seconds}, reading from disk {workers_io_seconds|seconds}, \
                    waiting for a CPU {workers_without_cpu_seconds|seconds}.";
    let names = [("comm", &*comm)];
    let others = match workers.late.saturating_sub(1) {
        0 => String::new(),
        1 => " and 1 other".into(),
        others => format!(" and {others} others"),
    };
    let name = |worker: &Culprit| format!("{} ({}){others}", worker.comm, worker.pid);
    let from = workers.latest.as_ref().map_or_else(|| "workers".into(), name);
    let busy_with = parts.iter().filter(|&&(time, _)| ratio(time, busy) >= 0.1);
    let mut path: Vec<_> = busy_with
        .map(|&(time, what)| Step::new(what, &from, "kept the workers busy", time))
        .collect();
    for (name, seconds) in workers.time.top_competitors() {
        let step = Step::new(name, &from, "had the CPU of the workers", Nanos(0));
        path.push(Step { seconds, ..step });
    }
    path.push(Step::new(from, &victim, share.mechanism("had no data ready"), share.time));
    let blocked = share.mechanism("blocked");
    path.push(Step::new(victim, share.effect.effect.label(), blocked, share.time));
    Some(Detection {
        path,
        culprit: workers.latest,
        sentence: Sentence::new(sentence, names),
        workers: Some(workers.time.into()),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}
