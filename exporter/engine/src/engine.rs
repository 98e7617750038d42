//! From one snapshot to the next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use gpucause_abi::snapshot::{ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId};

use crate::case::{Scene, Subject};
use crate::chain::Chain;
use crate::delta::Delta;
use crate::effect::measure;
use crate::finding::Finding;
use crate::history::History;
use crate::ledger::Ledger;
use crate::rules::{LAST_RESORT, RULES};
use crate::settings::Settings;

pub use crate::ledger::{ChainCount, Stall};

/// Looks that the longer window spans.
const LONG: usize = 5;

/// All that is known at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The accounts.
    pub snapshot: Arc<Snapshot>,
    /// When it was taken, in seconds since the Unix epoch.
    pub unix_seconds: f64,
    /// Share of the time since the last moment in which a GPU ran below its clock, by UUID; empty when nothing tells.
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
    past: VecDeque<Moment>,
    histories: HashMap<ProcId, History>,
    ledger: Ledger,
    looks: u64,
}

impl Engine {
    /// An engine that has seen nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Goes on with other settings; chains stay.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Looks at a moment. One that is not later than the last is passed over.
    pub fn look(&mut self, moment: Moment) {
        let now = moment.snapshot.taken_at;
        let Some(last) = self.past.back() else {
            self.past.push_back(moment);
            return;
        };
        if now <= last.snapshot.taken_at {
            return;
        }
        self.looks += 1;
        let first = self.past.front().unwrap_or(last);
        let scene = scene(&self.settings, &self.histories, [first, last], &moment);
        for finding in findings(&scene) {
            self.ledger.take(&scene, finding, (self.looks, now, moment.unix_seconds));
        }
        let mut histories = HashMap::with_capacity(scene.subjects.len());
        for subject in scene.subjects.iter().filter(|subject| subject.dispatches()) {
            let id = subject.now.id;
            let mut history = self.histories.remove(&id).unwrap_or_default();
            let healthy = !self.ledger.saw(id, now);
            let live = subject.now.memory.live();
            history.remember(now, &subject.short, &self.settings.launch_ops, (live, healthy));
            histories.insert(id, history);
        }
        let known: Vec<_> = scene.subjects.iter().map(|subject| subject.now.id).collect();
        self.ledger.tidy(self.looks, &self.settings, |id| known.contains(&id));
        self.histories = histories;
        self.past.push_back(moment);
        if self.past.len() > LONG {
            self.past.pop_front();
        }
    }

    /// Chains, the worst first: by severity, then by time lost.
    #[must_use]
    pub fn chains(&self) -> Vec<&Chain> {
        self.ledger.chains()
    }

    /// Chains by victim, cause, effect and severity, of processes that are observed.
    #[must_use]
    pub fn counts(&self) -> &[ChainCount] {
        self.ledger.counts()
    }

    /// GPU-feeding time lost by victim and cause, of processes that are observed.
    #[must_use]
    pub fn stalls(&self) -> &[Stall] {
        self.ledger.stalls()
    }
}

fn by_id(snapshot: &Snapshot) -> HashMap<ProcId, &ProcessSnapshot> {
    snapshot.processes.iter().map(|process| (process.id, process)).collect()
}

/// The time of the window in which the process was there.
fn wall(before: &Snapshot, now: &Snapshot, process: &ProcessSnapshot) -> Nanos {
    let from = before.taken_at.max(process.first_seen);
    process.ended.unwrap_or(now.taken_at).min(now.taken_at).less(from)
}

fn scene<'a>(
    settings: &'a Settings,
    histories: &HashMap<ProcId, History>,
    [first, last]: [&Moment; 2],
    moment: &'a Moment,
) -> Scene<'a> {
    let now = &moment.snapshot;
    let (oldest, latest) = (by_id(&first.snapshot), by_id(&last.snapshot));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the settings bound it to a million seconds above zero"
    )]
    let leak_span = Nanos((settings.leak_seconds * 1e9) as u64);
    let fresh = |process: &&ProcessSnapshot| {
        process.ended.is_none_or(|ended| ended > last.snapshot.taken_at)
    };
    let subjects = now.processes.iter().filter(fresh).map(|process| {
        let history = histories.get(&process.id);
        let delta = |before: &Snapshot, known: &HashMap<ProcId, &ProcessSnapshot>| {
            let earlier = known.get(&process.id).copied();
            Delta::between(earlier, process, wall(before, now, process))
        };
        let mut subject = Subject {
            now: process,
            short: delta(&last.snapshot, &latest),
            long: delta(&first.snapshot, &oldest),
            usual_launch_rate: history.and_then(History::usual_launch_rate),
            usual_offcpu: history.map(History::usual_offcpu).unwrap_or_default(),
            live_memory: history
                .map(|history| history.live_over(now.taken_at, leak_span))
                .unwrap_or_default(),
            effects: Vec::new(),
        };
        if subject.dispatches() {
            subject.effects = measure(&subject, settings);
        }
        subject
    });
    let throttled = moment.throttled_cgroups.iter().map(|(&id, so_far)| {
        let before = last.throttled_cgroups.get(&id).copied().unwrap_or(*so_far);
        (id, so_far.less(before).0)
    });
    Scene {
        settings,
        subjects: subjects.collect(),
        throttled: &moment.throttled_gpus,
        cgroup_throttled: throttled.collect(),
    }
}

fn findings(scene: &Scene<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    for (index, _) in scene.subjects.iter().enumerate().filter(|(_, s)| s.dispatches()) {
        let enabled =
            |rule: &&&dyn crate::rules::Rule| scene.settings.rule(rule.declaration().cause).enabled;
        let mut found: Vec<_> =
            RULES.iter().filter(enabled).filter_map(|rule| rule.judge(scene, index)).collect();
        if found.is_empty() && enabled(&&LAST_RESORT) {
            found.extend(LAST_RESORT.judge(scene, index));
        }
        all.append(&mut found);
    }
    all
}
