//! What a rule found in one window, before it becomes or extends a chain.

use gpucause_abi::Nanos;
use gpucause_abi::Tid;
use gpucause_abi::snapshot::Wait;

use crate::case::Subject;
use crate::chain::{Cause, Culprit, Effect, Evidence, Step};

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
    /// Time lost in the short window.
    pub(crate) lost: Nanos,
    /// Share of the victim's time that was lost, 0 to 1.
    pub(crate) lost_share: f64,
    pub(crate) evidence: Evidence,
    pub(crate) path: Vec<Step>,
    pub(crate) sentence: String,
    pub(crate) fix: String,
}

/// Whom a wait was for, when that is a task.
pub(crate) fn culprit_of(wait: &Wait) -> Option<Culprit> {
    let tgid = wait.tgid?;
    Some(Culprit { pid: tgid.0, comm: wait.on.to_text() })
}

/// The victim's name in a sentence.
pub(crate) fn name_of(subject: &Subject<'_>) -> String {
    format!("{} ({})", subject.now.comm.to_text(), subject.now.tgid)
}
