//! The victim waited for data while the worker processes that prepare it were busy.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, Relation, State};

use super::Rule;
use super::share::best;
use crate::chain::{Cause, Culprit, Evidence, Step};
use crate::context::{Context, Process, waits_in};
use crate::delta::{Delta, NO_CPU, ThreadDelta};
use crate::detection::{Detection, Sentence, name_of};
use crate::divide::{Span, part, share};
use crate::effect::{Phases, ratio, total};

/// Reasons of waits for data.
const WAITS: [Reason; 4] = [Reason::Futex, Reason::Poll, Reason::Net, Reason::Other];
/// Least busy share of the workers' time.
const MIN_BUSY: f64 = 0.8;

/// Main threads of workers that ended a wait of the victim: other child processes, such as a shell or Python's resource tracker, do
/// not count.
#[derive(Debug, Default)]
struct Workers {
    count: u64,
    wall: Nanos,
    running: Nanos,
    io: Nanos,
    without_cpu: Nanos,
    busiest: Option<Culprit>,
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
        let mut most = Nanos(0);
        for worker in context.workers_of(process.now.id) {
            let Some(thread) = worker.short.worker() else { continue };
            if worker.long.measures().ended_waits.0 == 0 {
                continue;
            }
            let parts = busy(&thread);
            let [running, io, without_cpu] = parts;
            all.count += 1;
            let sums = [&mut all.wall, &mut all.running, &mut all.io, &mut all.without_cpu];
            for (sum, part) in sums.into_iter().zip([thread.wall, running, io, without_cpu]) {
                sum.0 = sum.0.saturating_add(part.0);
            }
            if sum(parts) > most {
                most = sum(parts);
                let comm = worker.now.comm.to_text();
                all.busiest = Some(Culprit { pid: worker.now.tgid.0, comm, ..Culprit::default() });
            }
        }
        all
    }

    fn busy(&self) -> Nanos {
        sum([self.running, self.io, self.without_cpu])
    }

    fn busy_share(&self) -> f64 {
        ratio(self.busy(), self.wall)
    }

    /// What they were busy with, the largest part first.
    fn parts(&self) -> [(Nanos, &'static str); 3] {
        let mut parts = [
            (self.running, "computing"),
            (self.io, "reading from disk"),
            (self.without_cpu, "waiting for a CPU"),
        ];
        parts.sort_by_key(|&(time, _)| std::cmp::Reverse(time));
        parts
    }
}

/// What to do about the first part, and about another of at least a third.
fn fix(parts: &[(Nanos, &'static str)], busy: Nanos) -> String {
    let advice = |what| match what {
        "reading from disk" => {
            "Move the dataset to a faster disk or into memory, read larger blocks, or use more workers."
        }
        "waiting for a CPU" => {
            "Give the workers more CPUs, or run fewer of them: they compete with each other."
        }
        _ => {
            "Use more workers, or make the preprocessing of a sample cheaper; cache what does not change."
        }
    };
    let named = parts
        .iter()
        .enumerate()
        .filter(|&(index, &(time, _))| index == 0 || ratio(time, busy) >= 1.0 / 3.0);
    named.map(|(_, &(_, what))| advice(what)).collect::<Vec<_>>().join(" ")
}

/// Share of the victim's waits that were for data: ended by a worker, or by an idle thread of the victim that passed on what a worker
/// prepared, such as the one that pins memory. The latter count up to the time that workers ended: such a thread waits for a worker
/// for as long.
fn for_data(delta: &Delta<'_>, phases: Phases) -> f64 {
    let (mut workers, mut passed_on, mut all) = (Nanos(0), Nanos(0), Nanos(0));
    let add = |sum: &mut Nanos, time: Nanos| sum.0 = sum.0.saturating_add(time.0);
    for wait in waits_in(delta, None, phases, &WAITS) {
        add(&mut all, wait.total);
        match wait.relation {
            Relation::Worker => add(&mut workers, wait.total),
            Relation::Thread => add(&mut passed_on, wait.total.less(wait.held)),
            _ => {}
        }
    }
    ratio(Nanos(workers.0.saturating_add(passed_on.min(workers).0)), all)
}

/// Waits for data as part of a thread's time.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    let waits = part(&thread.time, |phase, state| match state {
        State::Off(reason) => WAITS.contains(&reason) && phases.contain(phase),
        State::Running => false,
    });
    share(waits, for_data(span.delta, phases))
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
    if workers.count == 0 || workers.busy_share() < MIN_BUSY {
        return None;
    }
    let cause = Cause::DataloaderStarvation;
    let share = best(
        context,
        process,
        cause,
        |effect| effect.offcpu(&WAITS).share(for_data(effect.delta(process), effect.phases)),
        |effect, thread| {
            let delta = effect.delta(process);
            claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
        },
    )?;
    // A forked worker has its parent's name until it sets its own.
    let waits = process.waits(share.effect, &WAITS);
    let named = waits.iter().find(|wait| wait.relation == Relation::Worker);
    if let (Some(worker), Some(wait)) = (&mut workers.busiest, named) {
        worker.comm = wait.on.to_text();
    }
    let evidence = share.evidence().and(
        &Evidence::default()
            .with("workers", workers.count as f64)
            .with("workers_busy_share", workers.busy_share())
            .with("workers_running_seconds", workers.running.as_secs_f64())
            .with("workers_io_seconds", workers.io.as_secs_f64())
            .with("workers_without_cpu_seconds", workers.without_cpu.as_secs_f64()),
    );
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let (parts, busy) = (workers.parts(), workers.busy());
    // A worker whose batch is never waited for ends no wait and is not counted.
    // Not all of it counts as lost: a wait in poll may be healthy.
    let sentence = "Waiting for data took {lost_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
                    {explained_share|percent} of its {effect}. The {workers|count} {workers|worker/workers} that it waited for \
                    {workers|was/were} busy {workers_busy_share|percent} of the time: \
                    computing {workers_running_seconds|seconds}, reading from disk {workers_io_seconds|seconds}, \
                    waiting for a CPU {workers_without_cpu_seconds|seconds}.";
    let names = [("comm", &*comm)];
    let name = |worker: &Culprit| format!("{} ({})", worker.comm, worker.pid);
    let from = workers.busiest.as_ref().map_or_else(|| "workers".into(), name);
    let busy_with = parts.iter().filter(|&&(time, _)| ratio(time, busy) >= 0.1);
    let mut path: Vec<_> = busy_with
        .map(|&(time, what)| Step::new(what, &from, "kept the workers busy", time))
        .collect();
    path.push(Step::new(from, &victim, "had no data ready", share.time));
    path.push(Step::new(victim, share.effect.effect.label(), "blocked", share.time));
    Some(Detection {
        path,
        culprit: workers.busiest,
        sentence: Sentence::new(sentence, names),
        fix: fix(&parts, busy),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}
