//! The kernel killed the process, or one of its workers, because memory ran out.

use gpucause_abi::Nanos;

use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct OomKill;

impl Rule for OomKill {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::OomKill,
            reads: &["gpucause_oom_kills_total"],
            window: Window::Looks,
            needs: "the kernel chose the process or one of its workers to be killed",
        }
    }

    fn at_start(&self) -> bool {
        true
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let killed = |subject: &Subject<'_>| subject.short.oom_kills();
        let workers: u64 = scene.workers_of(subject.now.id).map(killed).sum();
        let own = killed(subject);
        if own + workers == 0 {
            return None;
        }
        let evidence = Evidence::default()
            .with("oom_kills", own as f64)
            .with("oom_kills_of_workers", workers as f64);
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let (sentence, share) = if own > 0 {
            ("The kernel killed {comm} because memory ran out.", 1.0)
        } else {
            (
                "The kernel killed {oom_kills_of_workers|count} of the workers of {comm} because memory ran out.",
                scene.settings.severities.high,
            )
        };
        Some(Finding {
            cause: Cause::OomKill,
            effect: Effect::ProcessKilled,
            subject: index,
            tid: None,
            culprit: None,
            explained: 1.0,
            size: Nanos(0),
            taken: Box::default(),
            claim: None,
            lost_share: share,
            path: vec![Step {
                from: "out of memory".into(),
                to: victim,
                mechanism: "killed".into(),
                seconds: 0.0,
            }],
            sentence: Sentence::new(sentence, [("comm", &*comm)]),
            fix: "Raise the memory limit of the cgroup or use fewer or smaller workers; the kernel log says who used what.".into(),
            evidence,
        })
    }
}
