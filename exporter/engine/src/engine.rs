//! From one snapshot to the next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use crate::attribution::Attribution;
use crate::case::{Scene, Subject};
use crate::chain::{Chain, Place};
use crate::charged::Charged;
use crate::delta::Delta;
use crate::divide::{divide, divide_effects};
use crate::effect::measure;
use crate::finding::Finding;
use crate::history::{History, Look, leak_span};
use crate::ledger::Ledger;
use crate::long_calls::LongCalls;
use crate::past::Past;
use crate::rules::unexplained::rest;
use crate::rules::{LAST_RESORT, RULES, Rule};
use crate::settings::Settings;

pub use crate::ledger::{ChainCount, FOLDED, Stall};

/// Looks that the longer window spans.
const LONG: usize = 5;
/// How long before a snapshot was taken a process can have begun that is not in it: copying takes its time.
const COPYING: Nanos = Nanos(500_000_000);

/// All that is known at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The accounts.
    pub snapshot: Arc<Snapshot>,
    /// When it was taken, in seconds since the Unix epoch.
    pub unix_seconds: f64,
    /// Share of the time since the last moment in which each GPU of the host ran below its clock, by UUID: 0 for one that did
    /// not. Empty when nothing tells.
    pub throttled_gpus: HashMap<String, f64>,
    /// How long the CPU limit of each process's cgroup has stopped it so far.
    pub throttled_cgroups: HashMap<ProcId, Nanos>,
}

impl Moment {
    /// A moment of which nothing is known but the accounts.
    #[must_use]
    pub fn new(snapshot: Arc<Snapshot>, unix_seconds: f64) -> Self {
        let (throttled_gpus, throttled_cgroups) = Default::default();
        Self { snapshot, unix_seconds, throttled_gpus, throttled_cgroups }
    }
}

/// What is remembered from look to look.
#[derive(Debug, Default)]
pub struct Engine {
    settings: Settings,
    past: VecDeque<Past>,
    histories: HashMap<ProcId, History>,
    ledger: Ledger,
    charged: Charged,
    long_calls: LongCalls,
    looks: u64,
    /// Name of the host, where it is known.
    host: Option<String>,
}

impl Engine {
    /// An engine that has seen nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Names the host in what is told of it.
    #[must_use]
    pub fn on_host(self, name: &str) -> Self {
        Self { host: Some(name.to_owned()).filter(|name| !name.is_empty()), ..self }
    }

    /// Tells where processes run that ongoing chains name, by PID, and which CPUs the host has, such as `0-3`: commands of the
    /// chains then name them.
    pub fn place(&mut self, online_cpus: &str, places: &HashMap<u32, Place>) {
        self.ledger.place(online_cpus, places);
    }

    /// There is nothing to look at any more: chains have ended.
    pub fn end(&mut self) {
        self.ledger.end_unseen(None);
    }

    /// Goes on with other settings; chains stay. What was usual is found out anew when other ops count as launches: the rate
    /// of some cannot have dropped from that of others.
    pub fn set_settings(&mut self, settings: Settings) {
        if settings.launch_ops != self.settings.launch_ops {
            self.histories.values_mut().for_each(History::forget_pace);
        }
        self.settings = settings;
    }

    /// Looks at a moment. One that is not later than the last is passed over.
    pub fn look(&mut self, moment: Moment) {
        let now = moment.snapshot.taken_at;
        let Some(last) = self.past.back() else {
            self.past.push_back(moment.into());
            return;
        };
        if now <= last.at {
            return;
        }
        self.looks += 1;
        let past: &[Past] = self.past.make_contiguous();
        let mut scene = scene(&self.settings, &self.histories, past, &moment);
        scene.host = self.host.as_deref();
        self.long_calls.remember(&moment.snapshot, past, self.looks);
        let mut attribution = Attribution {
            past,
            moment: &moment,
            look: self.looks,
            ledger: &mut self.ledger,
            charged: &mut self.charged,
            long_calls: &mut self.long_calls,
        };
        for index in 0..scene.subjects.len() {
            let found = findings(&scene, index);
            attribution.charge(&scene, found);
        }
        let mut histories = HashMap::with_capacity(scene.subjects.len());
        for subject in scene.subjects.iter().filter(|subject| subject.dispatches()) {
            let id = subject.now.id;
            let mut history = self.histories.remove(&id).unwrap_or_default();
            let look = Look {
                delta: &subject.short,
                live: subject.now.memory.live(),
                healthy: !self.ledger.saw(id, now),
                settings: &self.settings,
            };
            history.remember(now, &look);
            histories.insert(id, history);
        }
        let known: HashSet<_> =
            moment.snapshot.processes.iter().map(|process| process.id).collect();
        self.ledger.end_unseen(Some(self.looks));
        self.ledger.tidy(self.looks, &self.settings, |id| known.contains(&id));
        let oldest = self.looks.saturating_sub(LONG as u64);
        let long_calls = &self.long_calls;
        self.charged.tidy(|id| {
            let first = long_calls.first_look(id).unwrap_or(oldest);
            known.contains(&id).then_some(first.min(oldest))
        });
        self.histories = histories;
        self.past.push_back(moment.into());
        if self.past.len() > LONG {
            self.past.pop_front();
        }
    }

    /// Chains, the worst first: by severity, then by time attributed.
    #[must_use]
    pub fn chains(&self) -> Vec<&Chain> {
        self.ledger.chains()
    }

    /// Adds what is told of processes that are told apart no more, now and later, to what is told of [`FOLDED`], so that no
    /// count of chains and no time is lost.
    pub fn fold(&mut self, processes: &HashSet<ProcId>) {
        self.ledger.fold(processes);
    }

    /// Chains by victim, cause, effect and severity, of processes that are observed, and of [`FOLDED`].
    pub fn counts(&self) -> impl ExactSizeIterator<Item = &ChainCount> {
        self.ledger.counts()
    }

    /// Time attributed and lost by victim and cause, of processes that are observed, and of [`FOLDED`].
    pub fn stalls(&self) -> impl ExactSizeIterator<Item = &Stall> {
        self.ledger.stalls()
    }
}

impl Past {
    /// Whether it is known how a process has fared since.
    pub(crate) fn knows(&self, process: &ProcessSnapshot) -> bool {
        let is_new = process.first_seen.0.saturating_add(COPYING.0) >= self.at.0;
        is_new || self.processes.contains_key(&process.id)
    }

    /// How long the CPU limit of a process's cgroup has stopped it since.
    pub(crate) fn throttled(&self, now: &HashMap<ProcId, Nanos>, process: ProcId) -> Nanos {
        let both = now.get(&process).zip(self.throttled_cgroups.get(&process));
        both.map_or(Nanos(0), |(now, before)| now.less(*before))
    }

    /// What a process did since. One that is not in the earlier accounts, and yet older than they are, has nothing to be
    /// compared with.
    pub(crate) fn delta<'a>(&'a self, now: &Snapshot, process: &'a ProcessSnapshot) -> Delta<'a> {
        let earlier = self.processes.get(&process.id);
        if !self.knows(process) {
            return Delta::default();
        }
        let from = if earlier.is_some() { self.at } else { process.first_seen };
        let wall = process.ended.unwrap_or(now.taken_at).min(now.taken_at).less(from);
        Delta::between(earlier, process, wall)
    }
}

fn scene<'a>(
    settings: &'a Settings,
    histories: &HashMap<ProcId, History>,
    past: &'a [Past],
    moment: &'a Moment,
) -> Scene<'a> {
    let now = &moment.snapshot;
    let last = past.last().map_or(Nanos(0), |last| last.at);
    let fresh = |process: &&ProcessSnapshot| process.ended.is_none_or(|ended| ended > last);
    let mut subjects = Vec::with_capacity(now.processes.len());
    subjects.extend(now.processes.iter().filter(fresh).map(|process| {
        let history = histories.get(&process.id);
        let delta = |earlier: Option<&'a Past>| {
            earlier.map(|earlier| earlier.delta(now, process)).unwrap_or_default()
        };
        let knows = |earlier: &&Past| earlier.processes.contains_key(&process.id);
        let mut subject = Subject {
            now: process,
            short: delta(past.last()),
            long: delta(past.iter().find(knows).or(past.last())),
            settled: history.is_some_and(History::settled),
            settled_looks: history.map_or(0, History::settled_looks),
            throttled: past
                .last()
                .map_or(Nanos(0), |last| last.throttled(&moment.throttled_cgroups, process.id)),
            live_memory: history
                .map(|history| history.live_over(now.taken_at, leak_span(settings)))
                .unwrap_or_default(),
            effects: Vec::new(),
        };
        if let Some(history) = history.filter(|_| subject.dispatches() && subject.settled) {
            subject.effects = measure(&subject, history, settings);
        }
        subject
    }));
    let mut workers: HashMap<ProcId, Vec<usize>> = HashMap::new();
    for (index, subject) in subjects.iter().enumerate() {
        if let Some(parent) = subject.now.parent {
            workers.entry(parent).or_default().push(index);
        }
    }
    Scene { settings, subjects, workers, throttled: &moment.throttled_gpus, host: None }
}

/// What is wrong with one process, its causes in the [order](crate::divide::ORDER) in which they get its time.
fn findings(scene: &Scene<'_>, index: usize) -> Vec<Finding> {
    let Some(subject) = scene.subjects.get(index).filter(|subject| subject.dispatches()) else {
        return Vec::new();
    };
    let enabled = |cause| scene.settings.rule(cause).enabled;
    let asked = |rule: &&&dyn Rule| {
        enabled(rule.declaration().cause) && (subject.settled || rule.at_start())
    };
    let judge =
        |rule: &&dyn Rule| rule.judge(scene, index).filter(|finding| enabled(finding.cause));
    let mut found = Vec::with_capacity(RULES.len() / 2);
    found.extend(RULES.iter().filter(asked).filter_map(judge));
    divide((subject.short.threads(), subject.short.wall), scene.settings, &mut found);
    if asked(&&LAST_RESORT) {
        found.extend(rest(scene, index, &found));
    }
    divide_effects(&mut found);
    found
}
