//! The victim waited for data, and the worker processes that prepare it did not idle meanwhile.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, Relation, State};

use super::share::best;
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject, waits_in};
use crate::chain::{Cause, Culprit, Evidence, Step};
use crate::delta::{Delta, NO_CPU, ThreadDelta};
use crate::divide::{Span, part, share};
use crate::effect::{Phases, ratio, total};
use crate::finding::{Finding, Sentence, name_of};

/// What a thread blocks in that waits for data of another.
const WAITS: [Reason; 4] = [Reason::Futex, Reason::Poll, Reason::Net, Reason::Other];
/// Share of their time that workers must have been busy.
const BUSY: f64 = 0.8;
pub(super) struct DataloaderStarvation;

/// What the main threads of all workers did that handed something over: other children of the process, such as a shell or
/// Python's resource tracker, have no part in this.
#[derive(Debug, Default)]
struct Workers {
    count: u64,
    wall: Nanos,
    running: Nanos,
    io: Nanos,
    without_cpu: Nanos,
    /// The one that was busiest.
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
    fn of(scene: &Scene<'_>, subject: &Subject<'_>) -> Self {
        let mut all = Self::default();
        let mut most = Nanos(0);
        for worker in scene.workers_of(subject.now.id) {
            let Some(thread) = worker.short.worker() else { continue };
            if worker.long.ended_waits().0 == 0 {
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

    fn busy_share(&self) -> f64 {
        ratio(sum([self.running, self.io, self.without_cpu]), self.wall)
    }

    /// What most of their busy time went into.
    fn mechanism(&self) -> &'static str {
        let parts = [
            (self.running, "computing"),
            (self.io, "reading from disk"),
            (self.without_cpu, "waiting for a CPU"),
        ];
        parts.into_iter().max_by_key(|&(time, _)| time).map_or("", |(_, what)| what)
    }
}

/// Share of its waits that the victim waited for data: ended by a worker, or by a thread of its own that was not busy itself
/// and so passed on what a worker had made. That thread, which pins memory, has waited for a worker as long: without such
/// waits it is one that had nothing to pass on.
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

/// What such waits took of a thread's time.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    let waits = part(&thread.time, |phase, state| match state {
        State::Off(reason) => WAITS.contains(&reason) && phases.contain(phase),
        State::Running => false,
    });
    share(waits, for_data(span.delta, phases))
}

impl Rule for DataloaderStarvation {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::DataloaderStarvation,
            reads: &[
                "gpucause_dispatcher_seconds_total",
                "gpucause_blocked_on_seconds_total",
                "gpucause_offcpu_duration_seconds",
            ],
            window: Window::Looks,
            needs: "waits that workers end are part of an effect, and the workers were busy for 80 % of their time",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let mut workers = Workers::of(scene, subject);
        if workers.count == 0 || workers.busy_share() < BUSY {
            return None;
        }
        let cause = Cause::DataloaderStarvation;
        let share = best(
            scene,
            subject,
            cause,
            |effect| effect.offcpu(&WAITS).share(for_data(effect.delta(subject), effect.phases)),
            |effect, thread| {
                let delta = effect.delta(subject);
                claim(&Span { delta, throttled: Nanos(0) }, thread, effect.phases).total()
            },
        )?;
        // A worker is forked with its parent's name, and may have given itself another since.
        let waits = subject.waits(share.effect, &WAITS);
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
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let mechanism = workers.mechanism();
        // Of workers that are done at the same time, only those whose batches come first end a wait, and only those are known
        // to hand something over.
        let sentence = "{comm} waited for data for {lost_share|percent} of its time: the {workers|count} \
                        {workers|worker/workers} that it waited for {workers|was/were} busy {workers_busy_share|percent} of \
                        the time, above all {what}. That is {explained_share|percent} of the time that is missing.";
        let names = [("comm", &*comm), ("what", mechanism)];
        // A worker that was forked often has its parent's name.
        let told = |worker: &Culprit| format!("{} ({})", worker.comm, worker.pid);
        let from = workers.busiest.as_ref().map_or_else(|| "workers".into(), told);
        Some(Finding {
            cause,
            effect: share.effect.effect,
            subject: index,
            tid: Some(share.tid),
            explained: share.explained,
            size: share.effect.excess,
            taken: share.taken(subject, claim).into(),
            claim: Some((claim, share.effect.phases)),
            lost_share: share.lost_share,
            path: vec![
                Step {
                    from: mechanism.into(),
                    to: from.clone(),
                    mechanism: "kept the workers busy".into(),
                    seconds: sum([workers.running, workers.io, workers.without_cpu]).as_secs_f64(),
                },
                Step {
                    from,
                    to: victim.clone(),
                    mechanism: "had no data ready".into(),
                    seconds: share.time.as_secs_f64(),
                },
                Step {
                    from: victim,
                    to: share.effect.effect.label().into(),
                    mechanism: "blocked".into(),
                    seconds: share.time.as_secs_f64(),
                },
            ],
            culprit: workers.busiest,
            sentence: Sentence::new(sentence, names),
            fix: match mechanism {
                "reading from disk" => "Keep the dataset on a faster disk or in memory, read larger blocks, or use more workers.",
                "waiting for a CPU" => "Give the workers more CPUs, or run fewer of them: they wait for each other.",
                _ => "Use more workers, or make what they compute for each sample cheaper; cache what does not change.",
            }
            .into(),
            evidence,
        })
    }
}
