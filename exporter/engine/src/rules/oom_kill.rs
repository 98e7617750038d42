//! The OOM killer killed the process or one of its workers.

use gpucause_abi::Nanos;

use super::Rule;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::context::{Context, Process};
use crate::detection::{Detection, Sentence, name_of};

pub(super) const RULE: Rule = Rule {
    cause: Cause::OomKill,
    reads: &["gpucause_oom_kills_total"],
    needs: "the OOM killer chose the process or one of its workers",
    during_warm_up: true,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
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
        taken_share: share,
        path: vec![Step::new("out of memory", victim, "killed", Nanos(0))],
        sentence: Sentence::new(sentence, [("comm", &*comm)]),
        fix: "Raise the memory limit of the cgroup or use fewer or smaller workers; the kernel log shows who used what.".into(),
        ..Detection::new(Cause::OomKill, Effect::ProcessKilled, index, evidence)
    })
}
