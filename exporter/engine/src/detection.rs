//! Detection of a cause by a rule in one window, before it starts or extends a chain.

use gpucause_abi::Nanos;
use gpucause_abi::Tid;
use gpucause_abi::snapshot::{TimeAccount, Wait};

use crate::chain::{Cause, Culprit, Effect, Evidence, Severity, Step};
use crate::claim::Claim;
use crate::context::{Context, Process};
use crate::delta::ThreadDelta;
use crate::phases::Phases;
use crate::settings::Settings;
use crate::template::render;
use crate::worker_time::WorkerTime;

/// Part of a window that a process which ended in it must have lived for its shares to say as much.
const LAST_LIFE: f64 = 0.25;

/// A template (see [`render`]) and the names in it. The numbers are final once the effect is divided.
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

    pub(crate) fn and(mut self, key: &'static str, name: Option<&str>) -> Self {
        self.names.extend(name.map(|name| (key, name.to_owned())));
        self
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Detection {
    pub(crate) cause: Cause,
    pub(crate) effect: Effect,
    /// Index of the victim among the processes.
    pub(crate) process: usize,
    /// The victim thread; the leader when `None`.
    pub(crate) tid: Option<Tid>,
    pub(crate) culprit: Option<Culprit>,
    /// Share of the effect, 0 to 1.
    pub(crate) explained: f64,
    /// Size of that effect; 0 when it is not divided among causes.
    pub(crate) size: Nanos,
    /// Time of the thread in the short window that the cause took, lost or not.
    pub(crate) taken: Box<TimeAccount>,
    /// Computes what it took in other windows, if that is possible.
    pub(crate) claim: Option<(Claim, Phases)>,
    /// Share of the victim's time that the cause took, 0 to 1.
    pub(crate) taken_share: f64,
    /// The highest severity that it may have.
    pub(crate) most: Severity,
    /// True if it may have a higher severity where CPUs are idle that the victim may not run on.
    pub(crate) is_worse_beside_idle_cpus: bool,
    /// For how many windows before this one it held, where it is known to last; it is then charged with no earlier ones.
    pub(crate) lasted: Option<u64>,
    pub(crate) evidence: Evidence,
    pub(crate) path: Vec<Step>,
    pub(crate) sentence: Sentence,
    pub(crate) fix: String,
    /// Time of a data loader's workers in the short window; the fix is chosen by their time in the whole chain.
    pub(crate) workers: Option<Box<WorkerTime>>,
}

impl Detection {
    /// A cause that takes no time and has no culprit.
    pub(crate) fn new(cause: Cause, effect: Effect, process: usize, evidence: Evidence) -> Self {
        Self {
            cause,
            effect,
            process,
            tid: None,
            culprit: None,
            explained: 1.0,
            size: Nanos(0),
            taken: Box::default(),
            claim: None,
            taken_share: 0.0,
            most: Severity::Critical,
            is_worse_beside_idle_cpus: false,
            lasted: None,
            evidence,
            path: Vec::new(),
            sentence: Sentence::default(),
            fix: String::new(),
            workers: None,
        }
    }

    /// Returns true if the window, or the part of it that the process lived, is so short that its shares say less than those of the window
    /// before. Hangs and kills need no window.
    pub(crate) fn is_cut_short(&self, context: &Context<'_>) -> bool {
        let is_rest = |process: &Process<'_>| {
            let (lived, window) = (process.short.wall, context.window);
            process.now.ended.is_some() && lived < window.share(LAST_LIFE)
        };
        let is_short =
            context.came_early || context.processes.get(self.process).is_some_and(is_rest);
        is_short && !self.effect.is_urgent()
    }

    /// The severity of its window. `idle` are CPUs that had nothing to do and that the victim may not run on, where they are known.
    pub(crate) fn severity(&self, settings: &Settings, idle: Option<&str>) -> Severity {
        let severity = settings.severities.of(self.taken_share);
        let has_idle = idle.is_some_and(|cpus| !cpus.is_empty());
        match self.is_worse_beside_idle_cpus && has_idle {
            true => severity,
            false => severity.min(self.most),
        }
    }

    /// The sentence. `{effect}` in it is what the share is of.
    pub(crate) fn render(&self) -> String {
        let Sentence { template, names } = &self.sentence;
        let names = names.iter().map(|(key, name)| (*key, &**name));
        let names: Vec<_> = names.chain([("effect", self.effect.describe())]).collect();
        render(template, &self.evidence, &names)
    }
}

/// A cause within the program itself: a chain of one step without a culprit.
#[derive(Debug)]
pub(crate) struct SelfInflicted {
    pub(crate) cause: Cause,
    pub(crate) effect: Effect,
    pub(crate) explained: f64,
    pub(crate) size: Nanos,
    pub(crate) claim: Claim,
    /// True if `claim` also holds for earlier windows, in which the program may have behaved otherwise.
    pub(crate) claims_earlier: bool,
    pub(crate) taken_share: f64,
    pub(crate) mechanism: &'static str,
    /// A template, see [`render`].
    pub(crate) sentence: &'static str,
    pub(crate) fix: &'static str,
}

impl SelfInflicted {
    pub(crate) fn into_detection(
        self,
        index: usize,
        (process, thread): (&Process<'_>, &ThreadDelta),
        evidence: Evidence,
    ) -> Detection {
        let taken = (self.claim)(&process.span(), thread, Phases::Feeding);
        let comm = process.now.comm.to_text();
        Detection {
            tid: Some(thread.tid),
            explained: self.explained,
            size: self.size,
            taken: taken.into(),
            claim: self.claims_earlier.then_some((self.claim, Phases::Feeding)),
            taken_share: self.taken_share,
            path: vec![Step::new(
                name_of(process),
                self.effect.label(),
                self.mechanism,
                taken.total(),
            )],
            sentence: Sentence::new(self.sentence, [("comm", &*comm)]),
            fix: self.fix.into(),
            ..Detection::new(self.cause, self.effect, index, evidence)
        }
    }
}

/// The task that a wait was for, if it was one.
pub(crate) fn culprit_of(wait: &Wait) -> Option<Culprit> {
    let tgid = wait.tgid?;
    Some(Culprit { pid: tgid.0, comm: wait.on.to_text(), ..Culprit::default() })
}

/// The victim's name in a chain's path.
pub(crate) fn name_of(process: &Process<'_>) -> String {
    format!("{} ({})", process.now.comm.to_text(), process.now.tgid)
}
