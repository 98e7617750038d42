//! Chains over time: a repeated detection extends its chain instead of starting another.

mod first;

use std::collections::{BTreeMap, HashMap, HashSet};

use gpucause_abi::{Nanos, ProcId};

use crate::chain::{
    Cause, Chain, CodeShare, Culprit, Effect, HostCpus, LimitUser, Located, Loss, Place, Severity,
    Victim, losses,
};
use crate::chain_totals::{ChainCount, Stall};
use crate::commands::{self, Host, waited_for_idle_cpu};
use crate::context::Context;
use crate::detection::Detection;
use crate::recent_losses::RecentLosses;
use crate::rules::own_threads::{idle_elsewhere, with_numbers};
use crate::settings::Settings;
use crate::worker_time::WorkerTime;

use first::chain_of;

/// Stands for all processes that are aggregated into `other`. No process has this id: they count from 1.
pub const OTHER_PROCESS: ProcId = ProcId(0);

/// Consecutive ticks that a chain may go unseen for and still be ongoing: a window can have too few calls.
const MAX_UNSEEN: u64 = 2;

/// Detections with the same key belong to the same chain. A hang is separate from what slowed the process before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    process: ProcId,
    cause: Cause,
    hang: bool,
}

/// In seconds: for how long texts stay those of a window with the chain's culprit while later ones have another or none.
const HELD_FOR: f64 = 30.0;

/// A chain and what is needed to extend it.
#[derive(Debug)]
struct Entry {
    key: Key,
    chain: Chain,
    last_seen: Nanos,
    last_tick: u64,
    /// The sentence without its window.
    sentence: String,
    /// The fix without commands.
    advice: String,
    workers: WorkerTime,
    recent: RecentLosses,
    /// Who uses most of what a limit leaves, as last measured.
    user: Option<LimitUser>,
}

/// State of the chain that a detection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// No chain unless detected again.
    Pending,
    /// A new chain, or one that is extended.
    Active {
        /// Ticks since the chain was last charged; the maximum for a new chain.
        unseen: u64,
    },
}

/// Time that a cause took since its chain was last charged, the lost part of it, and the tasks that took it.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) attributed: Nanos,
    pub(crate) lost: Nanos,
    pub(crate) losses: Vec<Loss>,
}

/// All chains in memory.
#[derive(Debug, Default)]
pub(crate) struct ChainStore {
    entries: Vec<Entry>,
    /// Index of the latest chain of each key.
    latest: HashMap<Key, usize>,
    /// Detections that were seen once, and at which tick.
    pending: HashMap<Key, u64>,
    counts: BTreeMap<(ProcId, Cause, Effect, Severity), ChainCount>,
    stalls: BTreeMap<(ProcId, Cause), Stall>,
    /// Processes that are aggregated into `other` and may still be in a later snapshot.
    aggregated: HashSet<ProcId>,
    host: Host,
}

impl ChainStore {
    /// Chains, the [worst first](Chain::worst_first).
    pub(crate) fn chains(&self) -> Vec<&Chain> {
        let mut chains: Vec<_> = self.entries.iter().map(|entry| &entry.chain).collect();
        chains.sort_by(|a, b| a.worst_first(b, Chain::ALWAYS));
        chains
    }

    /// The number of ongoing chains, and the highest severity of their last windows.
    pub(crate) fn ongoing(&self) -> (u32, Option<Severity>) {
        let ongoing = self.entries.iter().filter(|entry| entry.chain.ongoing == Some(true));
        ongoing.fold((0, None), |(count, worst), entry| {
            (count + 1, worst.max(Some(entry.chain.last_severity())))
        })
    }

    pub(crate) fn counts(&self) -> impl ExactSizeIterator<Item = &ChainCount> {
        self.counts.values()
    }

    pub(crate) fn stalls(&self) -> impl ExactSizeIterator<Item = &Stall> {
        self.stalls.values()
    }

    /// Adds the counts and times of these processes, now and later, to [`OTHER_PROCESS`].
    pub(crate) fn aggregate(&mut self, processes: &HashSet<ProcId>) {
        self.aggregated.extend(processes);
        let counts = self.counts.extract_if(.., |(process, ..), _| processes.contains(process));
        for (_, count) in counts.collect::<Vec<_>>() {
            self.add_count(&count);
        }
        let stalls = self.stalls.extract_if(.., |(process, _), _| processes.contains(process));
        for (_, stall) in stalls.collect::<Vec<_>>() {
            self.add_stall(&stall);
        }
    }

    /// The id that a process is exported under.
    fn exported_as(&self, process: ProcId) -> ProcId {
        if self.aggregated.contains(&process) { OTHER_PROCESS } else { process }
    }

    fn key(context: &Context<'_>, detection: &Detection) -> Option<Key> {
        let process = context.processes.get(detection.process)?.now.id;
        Some(Key { process, cause: detection.cause, hang: detection.effect == Effect::Hang })
    }

    /// The open chain of a key.
    fn open(&mut self, key: Key, now: Nanos, settings: &Settings) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(*self.latest.get(&key)?)?;
        let is_open = now.less(entry.last_seen).as_secs_f64() <= settings.keep_open_seconds;
        is_open.then_some(entry)
    }

    /// Returns the status of a detection: active if it is part of a chain. A small loss must be detected at two ticks in a row.
    pub(crate) fn status(
        &mut self,
        context: &Context<'_>,
        detection: &Detection,
        (tick, now): (u64, Nanos),
    ) -> Status {
        let Some(key) = Self::key(context, detection) else { return Status::Pending };
        if let Some(entry) = self.open(key, now, context.settings) {
            return Status::Active { unseen: tick.saturating_sub(entry.last_tick + 1) };
        }
        let severity = detection.severity(context.settings, None);
        let is_small = severity < Severity::High || detection.is_cut_short(context);
        let seen = self.pending.insert(key, tick);
        if is_small && detection.lasted.is_none() && seen.is_none_or(|seen| seen + 1 != tick) {
            return Status::Pending;
        }
        self.pending.remove(&key);
        Status::Active { unseen: u64::MAX }
    }

    /// Records an [active](Self::status) detection and its cost.
    pub(crate) fn record(
        &mut self,
        context: &Context<'_>,
        mut detection: Detection,
        cost: Cost,
        (tick, now, unix): (u64, Nanos, f64),
    ) {
        let Some(process) = context.processes.get(detection.process) else { return };
        let Some(key) = Self::key(context, &detection) else { return };
        let is_cut_short = detection.is_cut_short(context);
        detection.explained = detection.explained.clamp(0.0, 1.0);
        let evidence = std::mem::take(&mut detection.evidence);
        detection.evidence = evidence.with(Chain::WINDOW, window_of(context, &detection));
        let taken = (cost.attributed, cost.lost);
        let host = std::mem::take(&mut self.host);
        let open = self.open(key, now, context.settings);
        let idle = open.map(|entry| idle_elsewhere(&entry.chain.victim.place, &host.cpus));
        let severity = detection.severity(context.settings, idle.as_deref());
        if let Some(entry) = self.open(key, now, context.settings) {
            let severity = (!is_cut_short).then_some(severity);
            let worse = severity > Some(entry.chain.severity);
            if entry.extend(detection, &cost, severity, (tick, now, unix)) {
                entry.write_texts(&host);
            } else {
                entry.write_sentence();
            }
            let count = worse.then(|| ChainCount::of(key.process, &entry.chain));
            let stall = Stall::of(key.process, &entry.chain, taken);
            self.host = host;
            self.add_stall(&stall);
            if let Some(count) = count {
                self.add_count(&count);
            }
            return;
        }
        let victim = Victim {
            pid: process.now.tgid.0,
            tid: detection.tid.map_or(process.now.tgid.0, |tid| tid.0),
            comm: process.now.comm.to_text(),
            started: Some(process.now.started_boottime.as_secs_f64()).filter(|at| *at > 0.0),
            place: Place::default(),
        };
        let mut workers = detection.workers.take();
        if let Some(workers) = &mut workers {
            detection.fix = workers.advice();
        }
        let sentence = detection.render();
        let advice = detection.fix.clone();
        let recent = RecentLosses::new(&cost.losses, unix);
        // The shares of a moment say little.
        let severity = if is_cut_short { severity.min(Severity::Low) } else { severity };
        let mut chain = chain_of(detection, victim, severity, cost, unix);
        self.make_unique(&mut chain.id);
        self.add_stall(&Stall::of(key.process, &chain, taken));
        self.add_count(&ChainCount::of(key.process, &chain));
        let workers = workers.map(|workers| *workers).unwrap_or_default();
        let mut entry = Entry {
            key,
            chain,
            last_seen: now,
            last_tick: tick,
            sentence,
            advice,
            workers,
            recent,
            user: None,
        };
        entry.write_texts(&host);
        self.host = host;
        self.latest.insert(key, self.entries.len());
        self.entries.push(entry);
    }

    /// Returns true if a chain of the process was seen in this snapshot. A `host_code` chain of severity low does not count: a loop that
    /// spends its time between launches evenly does so by its nature, and that is its usual pace.
    pub(crate) fn was_seen(&self, process: ProcId, now: Nanos) -> bool {
        let is_usual = |chain: &Chain| {
            chain.cause == Cause::HostCode && chain.last_severity() == Severity::Low
        };
        let mut own = self.entries.iter().filter(|entry| entry.key.process == process);
        own.any(|entry| entry.last_seen == now && !is_usual(&entry.chain))
    }

    /// Ends chains that were not seen for some ticks; all chains when there are no more ticks (`None`).
    pub(crate) fn end_unseen(&mut self, tick: Option<u64>) {
        let Self { entries, host, .. } = self;
        for entry in entries.iter_mut().filter(|entry| entry.chain.ongoing == Some(true)) {
            if tick.is_none_or(|tick| tick > entry.last_tick + MAX_UNSEEN) {
                entry.chain.ongoing = Some(false);
                entry.write_texts(host);
            }
        }
    }

    /// Sets the address of the exporter in commands.
    pub(crate) fn set_url(&mut self, url: &str) {
        url.clone_into(&mut self.host.url);
    }

    /// Sets the number of processes that feed GPUs.
    pub(crate) fn set_jobs(&mut self, jobs: usize) {
        self.host.jobs = jobs;
    }

    /// Sets where the tasks of ongoing chains run, by id of the chain, and the CPUs of the host.
    pub(crate) fn set_places(&mut self, cpus: HostCpus, places: &HashMap<String, Located>) {
        self.host.cpus = cpus;
        for entry in self.entries.iter_mut().filter(|e| e.chain.ongoing == Some(true)) {
            let is_lock = entry.chain.cause.has_holder();
            let Chain { id, victim, culprit, .. } = &mut entry.chain;
            let Some(located) = places.get(id) else { continue };
            if let Some(place) = &located.victim {
                victim.place.clone_from(place);
            }
            if let Some(user) = &located.user {
                *culprit = user.culprit_of(victim.pid).cloned();
                entry.user = Some(user.clone());
            } else if located.victim.is_some() && entry.user.take().is_some() {
                *culprit = None;
            } else if let Some(culprit) = culprit {
                if let Some(place) = &located.culprit {
                    culprit.place.clone_from(place);
                }
                let thread = located.thread.as_ref();
                culprit.tid = thread.map(|thread| thread.tid).or(culprit.tid.filter(|_| is_lock));
                // A thread of the victim's own process goes by its own name.
                let other = thread.filter(|_| culprit.pid != victim.pid);
                culprit.thread = other.map(|thread| thread.comm.clone()).unwrap_or_default();
            }
            entry.write_texts(&self.host);
        }
    }

    /// Sets where the victims of ongoing chains spend their time, by id of the chain. Others keep what is known.
    pub(crate) fn set_code(&mut self, mut code: HashMap<String, Vec<CodeShare>>) {
        for entry in self.entries.iter_mut().filter(|e| e.chain.ongoing == Some(true)) {
            if let Some(code) = code.remove(&entry.chain.id) {
                entry.chain.code = code;
                entry.write_sentence();
            }
        }
    }

    /// Removes detections that were not repeated, chains above the limit, and counts of processes that are gone.
    pub(crate) fn tidy(&mut self, tick: u64, settings: &Settings, lives: impl Fn(ProcId) -> bool) {
        self.pending.retain(|_, seen| *seen == tick);
        let excess = self.entries.len().saturating_sub(settings.max_chains);
        if excess > 0 {
            self.entries.sort_by_key(|entry| entry.last_seen);
            self.entries.drain(..excess);
            let indexes = self.entries.iter().enumerate().map(|(index, entry)| (entry.key, index));
            self.latest = indexes.collect();
        }
        let is_exported = |process| process == OTHER_PROCESS || lives(process);
        self.counts.retain(|&(process, ..), _| is_exported(process));
        self.stalls.retain(|&(process, _), _| is_exported(process));
        self.aggregated.retain(|&process| lives(process));
    }

    /// Two images of one process, or a clock that steps back, can give the same id twice.
    fn make_unique(&self, id: &mut String) {
        let plain = id.clone();
        let taken = |id: &str| self.entries.iter().any(|entry| entry.chain.id == id);
        let mut number = 1u64;
        while taken(id) {
            number += 1;
            *id = format!("{plain}-{number}");
        }
    }

    pub(crate) fn add_count(&mut self, added: &ChainCount) {
        let process = self.exported_as(added.process);
        let key = (process, added.cause, added.effect, added.severity);
        match self.counts.get_mut(&key) {
            Some(count) => {
                count.count += added.count;
                count.last_id.clone_from(&added.last_id);
            }
            None => {
                self.counts.insert(key, ChainCount { process, ..added.clone() });
            }
        }
    }

    pub(crate) fn add_stall(&mut self, added: &Stall) {
        let process = self.exported_as(added.process);
        match self.stalls.get_mut(&(process, added.cause)) {
            Some(stall) => {
                stall.attributed.0 = stall.attributed.0.saturating_add(added.attributed.0);
                stall.lost.0 = stall.lost.0.saturating_add(added.lost.0);
                stall.last_id.clone_from(&added.last_id);
                stall.last_attributed = added.last_attributed;
                stall.last_lost = added.last_lost;
            }
            None => {
                let stall = Stall { process, ..added.clone() };
                self.stalls.insert((process, added.cause), stall);
            }
        }
    }
}

impl Entry {
    /// Extends the chain by another detection. Its severity is the worst of all windows, its effect that of the first window with
    /// this severity, the rest that of the last window with this effect and, for a time, with the culprit that took most lately: the
    /// culprit of a small loss is not blamed for a later, larger one. A window that was cut short has no severity and only adds to
    /// sums. Returns whether the commands may change.
    fn extend(
        &mut self,
        mut detection: Detection,
        cost: &Cost,
        severity: Option<Severity>,
        (tick, now, unix): (u64, Nanos, f64),
    ) -> bool {
        if let Some(later) = detection.workers.take() {
            self.workers.add(&later);
            detection.fix = self.workers.advice();
        }
        let chain = &mut self.chain;
        (self.last_tick, self.last_seen) = (tick, now);
        let (window, measured) = (detection.evidence.get(Chain::WINDOW), chain.last_seen);
        chain.last_seen = chain.last_seen.max(unix);
        chain.lost_seconds += cost.lost.as_secs_f64();
        let mut taken = cost.losses.clone();
        losses::fit(&mut taken, chain.lost_seconds - losses::total(&chain.losses));
        losses::add(&mut chain.losses, &taken);
        let attributed = chain.attributed_seconds() + cost.attributed.as_secs_f64();
        let worse = severity.filter(|severity| *severity > chain.severity);
        let mut other = worse.is_some();
        self.recent.add(&cost.losses, unix);
        let held =
            severity.is_none() || worse.is_none() && is_held(chain, &detection, &self.recent, unix);
        if let Some(severity) = worse {
            chain.severity = severity;
            chain.effect = detection.effect;
        }
        if detection.effect == chain.effect && !held {
            chain.course.measured_at = None;
            self.sentence = detection.render();
            chain.explained = detection.explained;
            let no_culprit = waited_for_idle_cpu(&detection.evidence);
            chain.evidence = detection.evidence;
            chain.path = detection.path;
            other |= self.advice != detection.fix;
            self.advice = detection.fix;
            let shared = matches!(chain.cause, Cause::CpuPreemption | Cause::RunqueueWait);
            if worse.is_some() || no_culprit || shared || detection.culprit.is_some() {
                let now = detection.culprit.as_ref().map(Culprit::process);
                other |= chain.culprit.as_ref().map(Culprit::process) != now;
                let previous = std::mem::replace(&mut chain.culprit, detection.culprit);
                let thread = |own: &Option<Culprit>| own.as_ref().map(|own| (own.pid, own.tid));
                if chain.cause.has_holder() && thread(&previous) != thread(&chain.culprit) {
                    chain.code.clear();
                }
                if let (Some(previous), Some(now)) = (previous, &mut chain.culprit)
                    && previous.process() == now.process()
                {
                    if previous.comm == now.comm {
                        (now.tid, now.thread) = (now.tid.or(previous.tid), previous.thread);
                    }
                    now.place = previous.place;
                }
            }
        } else {
            chain.course.measured_at.get_or_insert(measured);
        }
        chain.ongoing = Some(true);
        chain.set_attributed_seconds(attributed);
        chain.record_window(severity, window, unix);
        other
    }

    fn write_texts(&mut self, host: &Host) {
        self.write_sentence();
        let Chain { cause, victim, .. } = &self.chain;
        let advice = self.user.as_ref().and_then(|user| user.advice(*cause, victim.pid));
        let advice = advice.as_ref().unwrap_or(&self.advice);
        self.chain.fix = commands::with(advice, &self.chain, host);
    }

    fn write_sentence(&mut self) {
        let (limited, unexplained) = (self.chain.limited_cgroup(), self.chain.unexplained());
        let when = self.chain.when();
        let sentence = with_numbers(&self.sentence, &self.chain.victim.place);
        let sentence = self.chain.with_code(&sentence);
        let user = self.user.as_ref().map(|user| user.clause(self.chain.cause)).unwrap_or_default();
        let mut text = String::new();
        for part in [&*sentence, &*limited, &*user, &*unexplained, " ", &*when] {
            text.push_str(part);
        }
        self.chain.sentence = text;
    }
}

/// Returns true if a window changes only sums, although its culprit is not that of the chain.
fn is_held(chain: &Chain, detection: &Detection, recent: &RecentLosses, unix: f64) -> bool {
    let is_recent = chain.course.measured_at.is_none_or(|at| unix - at < HELD_FOR);
    is_recent
        && match (&chain.culprit, &detection.culprit) {
            (Some(own), Some(new)) if own.comm == new.comm => false,
            (Some(own), _) => recent.still_blame(&own.comm),
            (None, Some(new)) => !recent.is_empty() && !recent.now_blame(&new.comm),
            (None, None) => false,
        }
}

/// Length of the window that a detection was measured in, in seconds.
fn window_of(context: &Context<'_>, detection: &Detection) -> f64 {
    let Some(process) = context.processes.get(detection.process) else { return 0.0 };
    let measured = process.effects.iter().find(|own| own.effect == detection.effect);
    match detection.effect {
        Effect::MemoryGrowth => context.settings.leak_seconds,
        _ => measured.map_or(&process.short, |own| own.delta(process)).wall.as_secs_f64(),
    }
}
