//! What a rule found in one window, before it becomes or extends a chain.

use gpucause_abi::Nanos;
use gpucause_abi::Tid;
use gpucause_abi::snapshot::{TimeAccount, Wait};

use crate::case::Subject;
use crate::chain::{Cause, Culprit, Effect, Evidence, Step};
use crate::delta::ThreadDelta;
use crate::divide::Claim;
use crate::effect::Phases;
use crate::tell::tell;

/// What happened, in words: a template (see [`tell`]) and the names in it. Its numbers are known once the effect is divided.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sentence {
    template: &'static str,
    names: Vec<(&'static str, String)>,
}

impl Sentence {
    pub(crate) fn new<const N: usize>(
        template: &'static str,
        names: [(&'static str, &str); N],
    ) -> Self {
        Self { template, names: names.map(|(key, name)| (key, name.to_owned())).into() }
    }

    /// Adds a name, if there is one.
    pub(crate) fn and(mut self, key: &'static str, name: Option<&str>) -> Self {
        self.names.extend(name.map(|name| (key, name.to_owned())));
        self
    }

    /// With the numbers.
    pub(crate) fn tell(&self, evidence: &Evidence) -> String {
        let names: Vec<_> = self.names.iter().map(|(key, name)| (*key, &**name)).collect();
        tell(self.template, evidence, &names)
    }
}

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
    /// The size of the effect that it is a share of; 0 where none is divided.
    pub(crate) size: Nanos,
    /// The thread's time in the short window that the cause took, lost by the account's definition or not.
    pub(crate) taken: Box<TimeAccount>,
    /// What it took over a longer time, when that can be known.
    pub(crate) claim: Option<(Claim, Phases)>,
    /// Share of the victim's time that the cause took, 0 to 1.
    pub(crate) lost_share: f64,
    pub(crate) evidence: Evidence,
    pub(crate) path: Vec<Step>,
    pub(crate) sentence: Sentence,
    pub(crate) fix: String,
}

/// What a program does to itself: a chain of one arrow, with nobody else to blame.
#[derive(Debug)]
pub(crate) struct OwnDoing {
    pub(crate) cause: Cause,
    pub(crate) effect: Effect,
    pub(crate) explained: f64,
    pub(crate) size: Nanos,
    pub(crate) claim: Claim,
    /// Whether it is the cause in any window, and not only in one in which the program did the same throughout.
    pub(crate) at_any_time: bool,
    pub(crate) lost_share: f64,
    pub(crate) mechanism: &'static str,
    /// A template, see [`tell`].
    pub(crate) sentence: &'static str,
    pub(crate) fix: &'static str,
}

impl OwnDoing {
    /// As a finding on a process, with these numbers.
    pub(crate) fn told(
        self,
        index: usize,
        (subject, thread): (&Subject<'_>, &ThreadDelta),
        evidence: Evidence,
    ) -> Finding {
        let taken = (self.claim)(&subject.span(), thread, Phases::Feeding);
        let comm = subject.now.comm.to_text();
        Finding {
            cause: self.cause,
            effect: self.effect,
            subject: index,
            tid: Some(thread.tid),
            culprit: None,
            explained: self.explained,
            size: self.size,
            taken: taken.into(),
            claim: self.at_any_time.then_some((self.claim, Phases::Feeding)),
            lost_share: self.lost_share,
            path: vec![Step {
                from: name_of(subject),
                to: self.effect.label().into(),
                mechanism: self.mechanism.into(),
                seconds: taken.total().as_secs_f64(),
            }],
            sentence: Sentence::new(self.sentence, [("comm", &*comm)]),
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
