//! The victim waited for data, and the worker processes that prepare it did not idle meanwhile.

use gpucause_abi::Nanos;
use gpucause_abi::state::{Phase, Reason, Relation, State};

use super::share::{best, lost};
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Culprit, Evidence, Step};
use crate::delta::{NO_CPU, ThreadDelta};
use crate::effect::{Measured, ratio};
use crate::finding::{Finding, name_of};
use crate::tell::tell;

/// What a thread blocks in that waits for data of another.
const WAITS: [Reason; 4] = [Reason::Futex, Reason::Poll, Reason::Net, Reason::Other];
/// Share of their time that workers must have been busy.
const BUSY: f64 = 0.8;

pub(super) struct DataloaderStarvation;

/// What the main threads of all workers did.
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
        let all = reasons.iter().map(|&r| thread.time.at(Phase::Host, State::Off(r)).0);
        Nanos(all.sum())
    };
    let running = thread.time.at(Phase::Host, State::Running);
    [running, off(&[Reason::Io, Reason::PageFault]), off(&NO_CPU)]
}

fn sum(parts: [Nanos; 3]) -> Nanos {
    Nanos(parts.iter().map(|part| part.0).sum())
}

impl Workers {
    fn of(scene: &Scene<'_>, subject: &Subject<'_>) -> Self {
        let mut all = Self::default();
        let mut most = Nanos(0);
        for worker in scene.workers_of(subject.now.id) {
            let Some(thread) = &worker.short.worker else { continue };
            let parts = busy(thread);
            let [running, io, without_cpu] = parts;
            all.count += 1;
            all.wall.0 += thread.wall.0;
            all.running.0 += running.0;
            all.io.0 += io.0;
            all.without_cpu.0 += without_cpu.0;
            if sum(parts) > most {
                most = sum(parts);
                let comm = worker.now.comm.to_text();
                all.busiest = Some(Culprit { pid: worker.now.tgid.0, comm });
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

/// Time that the victim waited for data: ended by a worker, or by a thread of its own that was not busy itself and so
/// passed on what a worker had made.
fn waited(subject: &Subject<'_>, effect: &Measured) -> Nanos {
    let waits = subject.waits(effect, &WAITS);
    let all: u64 = waits.iter().map(|wait| wait.total.0).sum();
    let for_data = waits.iter().map(|wait| match wait.relation {
        Relation::Worker => wait.total.0,
        Relation::Thread => wait.total.less(wait.held).0,
        _ => 0,
    });
    effect.offcpu(&WAITS).share(ratio(Nanos(for_data.sum()), Nanos(all)))
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
            needs: "waits that workers end explain the effect, and the workers were busy for 80 % of their time",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let workers = Workers::of(scene, subject);
        if workers.count == 0 || workers.busy_share() < BUSY {
            return None;
        }
        let cause = Cause::DataloaderStarvation;
        let mut share =
            best(scene, subject, cause, |e| waited(subject, e), |thread| lost(thread, &WAITS))?;
        let for_data = ratio(share.time, share.effect.offcpu(&WAITS));
        share.lost = share.lost.share(for_data);
        share.lost_share *= for_data;
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
        let sentence = "{comm} waited for data for {lost_share|percent} of its time: its {workers|count} workers were busy \
                        {workers_busy_share|percent} of theirs, most of it {what}. That is {explained_share|percent} of the \
                        time that is missing.";
        let names = [("comm", &*comm), ("what", mechanism)];
        let from = workers.busiest.as_ref().map_or("workers", |worker| &worker.comm).to_owned();
        Some(Finding {
            cause,
            effect: share.effect.effect,
            subject: index,
            tid: Some(share.tid),
            explained: share.explained,
            lost: share.lost,
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
            sentence: tell(sentence, &evidence, &names),
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
