//! Turns detections into chains.

use gpucause_abi::state::Reason;
use gpucause_engine::chain::{Cause, Chain, Course, Culprit, Effect, Evidence, Step, Victim};
use gpucause_engine::render_template;
use gpucause_engine::settings::Severities;

use super::{RuleContext, Waits, seconds, share};
use gpucause_trace::recording::{NodeChain, ProcessIndex};

pub(super) struct Detection<'a> {
    pub(super) cause: Cause,
    pub(super) effect: Effect,
    pub(super) process: ProcessIndex,
    pub(super) tid: u32,
    pub(super) culprit: Option<Culprit>,
    /// Share of the effect, 0 to 1.
    pub(super) explained: f64,
    pub(super) lost_ns: u64,
    /// The evaluated time span.
    pub(super) span_ns: u64,
    pub(super) evidence: Evidence,
    /// Actor and mechanism; `None` where the victim itself is the cause.
    pub(super) from: Option<(String, &'static str)>,
    /// Activity of the victim meanwhile.
    pub(super) mechanism: &'static str,
    /// A template, see [`render_template`], in which `comm` is the victim.
    pub(super) sentence: &'static str,
    pub(super) names: Vec<(&'a str, String)>,
    pub(super) fix: String,
    /// When it was first and last seen, in nanoseconds since the Unix epoch.
    pub(super) seen: (i64, i64),
}

impl Detection<'_> {
    /// One whose cause is not known (yet), and that lost no time.
    pub(super) fn unexplained(
        effect: Effect,
        (process, tid): (ProcessIndex, u32),
        (span_ns, seen): (u64, (i64, i64)),
        evidence: Evidence,
    ) -> Self {
        Self {
            cause: Cause::Unexplained,
            effect,
            process,
            tid,
            culprit: None,
            explained: 0.0,
            lost_ns: 0,
            span_ns,
            evidence,
            from: None,
            mechanism: "not known",
            sentence: "",
            names: Vec::new(),
            fix: String::new(),
            seen,
        }
    }
}

impl RuleContext<'_> {
    pub(super) fn chain(&self, detection: Detection<'_>) -> Option<NodeChain> {
        let process = self.file.lists.get(detection.process)?;
        let (cause, effect) = (detection.cause, detection.effect);
        let lost_share = share(detection.lost_ns, detection.span_ns).min(1.0);
        let unexplained = cause == Cause::Unexplained;
        let attributed_seconds = if unexplained { 0.0 } else { seconds(detection.lost_ns) };
        let evidence = detection.evidence.with("lost_share", lost_share);
        let evidence = evidence.with(Chain::ATTRIBUTED, attributed_seconds);
        let victim = format!("{} ({})", process.comm, process.pid);
        let step = |from: String, to: String, mechanism: &str| Step {
            from,
            to,
            mechanism: mechanism.into(),
            seconds: seconds(detection.lost_ns),
        };
        let mut path = Vec::new();
        if let Some((from, mechanism)) = detection.from {
            path.push(step(from, victim.clone(), mechanism));
        }
        path.push(step(victim, effect.label().into(), detection.mechanism));
        let mut names: Vec<_> =
            detection.names.iter().map(|(name, value)| (*name, value.as_str())).collect();
        names.push(("comm", &process.comm));
        let sentence = render_template(detection.sentence, &evidence, &names);
        let of_node = match self.file.lists.nodes.get(usize::from(process.node.0)) {
            Some(node) if self.file.lists.node_count() > 1 => format!("{}:", node.name),
            _ => String::new(),
        };
        let (first, last) = detection.seen;
        let id = format!(
            "{of_node}{:x}-{}-{}-{cause}-{effect}",
            first / 100_000_000,
            process.pid,
            detection.tid
        );
        let chain = Chain {
            id,
            cause,
            effect,
            severity: Severities::default().of(if unexplained { 0.0 } else { lost_share }),
            victim: Victim {
                pid: process.pid,
                tid: detection.tid,
                comm: process.comm.clone(),
                ..Victim::default()
            },
            culprit: detection.culprit,
            explained: detection.explained,
            lost_seconds: if cause.loses_time() { attributed_seconds } else { 0.0 },
            evidence,
            path,
            sentence,
            fix: detection.fix,
            first_seen: first as f64 / 1e9,
            last_seen: last as f64 / 1e9,
            losses: Vec::new(),
            ongoing: None,
            code: Vec::new(),
            course: Course::default(),
        };
        Some(NodeChain { node: process.node, chain })
    }

    pub(super) fn culprit(&self, process: ProcessIndex, task: u32) -> Option<Culprit> {
        let lists = &self.file.lists;
        let node = lists.get(process)?.node;
        let comm = lists.task_name(node, task).unwrap_or("unknown").to_owned();
        let owner = lists.process_of_thread(node, task).and_then(|owner| lists.get(owner));
        Some(Culprit { pid: owner.map_or(task, |owner| owner.pid), comm, ..Culprit::default() })
    }

    /// The chain of a detection whose cause is known.
    pub(super) fn blame(&self, detection: Detection<'_>, blamed: &Blamed<'_>) -> Option<NodeChain> {
        let Blamed { cause, time, of, waits, sentences: [disk, task, nobody] } = *blamed;
        let explained = share(time, of);
        let comm = &self.file.lists.get(detection.process)?.comm;
        let preemptor =
            self.preemptor(detection.process, waits).filter(|_| cause != Cause::BlockIo);
        let mut evidence = detection
            .evidence
            .with("explained_seconds", seconds(time))
            .with("explained_share", explained);
        let mut names = detection.names;
        if let Some((culprit, time)) = &preemptor {
            evidence = evidence.with("culprit_seconds", seconds(*time));
            names.push(("culprit", culprit.comm.clone()));
        }
        let culprit = preemptor.map(|(culprit, _)| culprit);
        let sentence = match (cause, &culprit) {
            (Cause::BlockIo, _) => disk,
            (_, Some(_)) => task,
            (_, None) => nobody,
        };
        self.chain(Detection {
            cause,
            explained,
            lost_ns: time,
            evidence,
            from: Some(actor(cause, culprit.as_ref())),
            mechanism: "off the CPU",
            sentence,
            names,
            fix: fix(cause, culprit.as_ref(), comm),
            culprit,
            ..detection
        })
    }

    /// The task that had the CPU for at least half of the time that the victim waited for one.
    fn preemptor(&self, process: ProcessIndex, waits: &Waits) -> Option<(Culprit, u64)> {
        let reasons = [Reason::Preempted, Reason::Runqueue];
        let (task, time) = waits.worst(&reasons)?;
        if share(time, waits.of(&reasons)) < super::EXPLAINED {
            return None;
        }
        Some((self.culprit(process, task)?, time))
    }
}

/// A detection with a cause, and its evidence.
pub(super) struct Blamed<'a> {
    pub(super) cause: Cause,
    /// The time that it explains.
    pub(super) time: u64,
    /// The whole time that `time` is a part of.
    pub(super) of: u64,
    pub(super) waits: &'a Waits,
    /// For a disk, a culprit, and a CPU that nobody in particular had.
    pub(super) sentences: [&'static str; 3],
}

/// Actor and mechanism of a cause.
pub(super) fn actor(cause: Cause, culprit: Option<&Culprit>) -> (String, &'static str) {
    match (cause, culprit) {
        (Cause::BlockIo, _) => ("block device".into(), "reads and writes"),
        (Cause::CpuPreemption, Some(culprit)) => (culprit.comm.clone(), "preempted"),
        (Cause::CpuPreemption, None) => ("other tasks".into(), "preempted"),
        (_, Some(culprit)) => (culprit.comm.clone(), "kept it waiting for a CPU"),
        (_, None) => ("other tasks".into(), "kept it waiting for a CPU"),
    }
}

/// Returns the fix to try.
pub(super) fn fix(cause: Cause, culprit: Option<&Culprit>, comm: &str) -> String {
    match (cause, culprit) {
        (Cause::BlockIo, _) => "Keep the files of the dispatcher thread in memory or on a faster disk, or read them ahead in another thread.".into(),
        (_, Some(culprit)) => format!(
            "Keep {} off the CPUs of {comm}: give it a CPU set or a lower CPUWeight, or pin the dispatcher thread to dedicated CPUs.",
            culprit.comm
        ),
        (_, None) => format!(
            "The CPUs of {comm} are oversubscribed: run fewer tasks on them, or pin the dispatcher thread to dedicated CPUs."
        ),
    }
}
