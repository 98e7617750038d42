//! The OOM killer killed the process or one of its workers.

use gpucause_abi::Nanos;

use super::{Declaration, Rule};
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::context::{Context, Process};
use crate::detection::{Detection, Sentence, name_of};

pub(super) struct OomKill;

impl Rule for OomKill {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::OomKill,
            reads: &["gpucause_oom_kills_total"],
            needs: "the OOM killer chose the process or one of its workers",
        }
    }

    fn during_warm_up(&self) -> bool {
        true
    }

    fn evaluate(&self, context: &Context<'_>, index: usize) -> Option<Detection> {
        let process = context.processes.get(index)?;
        let killed = |process: &Process<'_>| process.short.measures().oom_kills;
        let workers: u64 = context.workers_of(process.now.id).map(killed).sum();
        let own = killed(process);
        if own + workers == 0 {
            return None;
        }
        let evidence = Evidence::default()
            .with("oom_kills", own as f64)
            .with("oom_kills_of_workers", workers as f64);
        let (comm, victim) = (process.now.comm.to_text(), name_of(process));
        let (sentence, share) = if own > 0 {
            ("The OOM killer of the kernel killed {comm}.", 1.0)
        } else {
            (
                "The OOM killer of the kernel killed {oom_kills_of_workers|count} {oom_kills_of_workers|worker/workers} of {comm}.",
                context.settings.severities.high,
            )
        };
        Some(Detection {
            cause: Cause::OomKill,
            effect: Effect::ProcessKilled,
            process: index,
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
            fix: "Raise the memory limit of the cgroup or use fewer or smaller workers; the kernel log shows who used what.".into(),
            evidence,
        })
    }
}
