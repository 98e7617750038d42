//! What a rule found in one window, before it becomes or extends a chain.

use gpucause_abi::Nanos;
use gpucause_abi::Tid;
use gpucause_abi::snapshot::Wait;

use crate::case::Subject;
use crate::chain::{Cause, Culprit, Effect, Evidence, Step};
use crate::tell::tell;

/// A finding.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    pub(crate) effect: Effect,
    /// Position of the victim among the subjects.
    pub(crate) subject: usize,
    /// The thread; the leader when `None`.
    pub(crate) tid: Option<Tid>,
    pub(crate) culprit: Option<Culprit>,
    /// Share of the effect, 0 to 1.
    pub(crate) explained: f64,
    /// The victim's time in the short window that the cause took, lost by the account's definition or not.
    pub(crate) attributed: Nanos,
    /// The part of it that is lost by [`State::is_lost_in`](gpucause_abi::state::State::is_lost_in).
    pub(crate) lost: Nanos,
    /// Share of the victim's time that the cause took, 0 to 1.
    pub(crate) lost_share: f64,
    pub(crate) evidence: Evidence,
    pub(crate) path: Vec<Step>,
    pub(crate) sentence: String,
    pub(crate) fix: String,
}

/// What a program does to itself: a chain of one arrow, with nobody else to blame.
#[derive(Debug)]
pub(crate) struct OwnDoing {
    pub(crate) cause: Cause,
    pub(crate) effect: Effect,
    pub(crate) tid: Tid,
    pub(crate) explained: f64,
    pub(crate) attributed: Nanos,
    pub(crate) lost_share: f64,
    pub(crate) mechanism: &'static str,
    /// A template, see [`tell`].
    pub(crate) sentence: &'static str,
    pub(crate) fix: &'static str,
}

impl OwnDoing {
    /// As a finding on a process, with these numbers.
    pub(crate) fn told(self, index: usize, subject: &Subject<'_>, evidence: Evidence) -> Finding {
        let comm = subject.now.comm.to_text();
        Finding {
            cause: self.cause,
            effect: self.effect,
            subject: index,
            tid: Some(self.tid),
            culprit: None,
            explained: self.explained,
            attributed: self.attributed,
            // On a CPU, or waiting for the GPU: no state that is lost.
            lost: Nanos(0),
            lost_share: self.lost_share,
            path: vec![Step {
                from: name_of(subject),
                to: self.effect.label().into(),
                mechanism: self.mechanism.into(),
                seconds: self.attributed.as_secs_f64(),
            }],
            sentence: tell(self.sentence, &evidence, &[("comm", &comm)]),
            fix: self.fix.into(),
            evidence,
        }
    }
}

/// Whom a wait was for, when that is a task.
pub(crate) fn culprit_of(wait: &Wait) -> Option<Culprit> {
    let tgid = wait.tgid?;
    Some(Culprit { pid: tgid.0, comm: wait.on.to_text(), ..Culprit::default() })
}

/// The victim's name in a sentence.
pub(crate) fn name_of(subject: &Subject<'_>) -> String {
    format!("{} ({})", subject.now.comm.to_text(), subject.now.tgid)
}
