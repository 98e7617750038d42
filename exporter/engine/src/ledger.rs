//! Chains over time: a finding seen again extends its chain, and does not make another.

use std::collections::{BTreeMap, HashMap, HashSet};

use gpucause_abi::{Nanos, ProcId};

use crate::case::Scene;
use crate::chain::{Cause, Chain, Culprit, Effect, Loss, Place, Severity, Victim};
use crate::commands;
use crate::finding::Finding;
use crate::losses;
use crate::settings::Settings;

/// Stands for all processes that are not told apart any more. No process has this id: they count from 1.
pub const FOLDED: ProcId = ProcId(0);

/// Looks in a row that a chain may go unseen in and be ongoing: a window can have too few calls.
const UNSEEN: u64 = 2;

/// What makes two findings the same chain. A hang is another matter than what slowed the process before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    process: ProcId,
    cause: Cause,
    hang: bool,
}

/// Counts of chains, as told on metrics: a chain counts once for each severity that it reaches.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainCount {
    /// The victim.
    pub process: ProcId,
    /// The cause.
    pub cause: Cause,
    /// The effect.
    pub effect: Effect,
    /// The severity.
    pub severity: Severity,
    /// How many.
    pub count: u64,
    /// The last of them.
    pub last_id: String,
}

impl ChainCount {
    /// One chain, as it is now.
    fn of(process: ProcId, chain: &Chain) -> Self {
        let Chain { cause, effect, severity, .. } = *chain;
        Self { process, cause, effect, severity, count: 1, last_id: chain.id.clone() }
    }
}

/// Dispatcher time that chains attribute to a cause, as exported on metrics. Over all causes of a process it is not more than
/// the wall time, and the lost part not more than what the process's time account lost meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The victim.
    pub process: ProcId,
    /// The cause.
    pub cause: Cause,
    /// Time attributed so far, lost or not.
    pub attributed: Nanos,
    /// The part of it that was lost.
    pub lost: Nanos,
    /// The last chain that added to it.
    pub last_id: String,
    /// How much it added.
    pub last_attributed: Nanos,
    /// How much of that was lost.
    pub last_lost: Nanos,
}

/// A chain and what is needed to go on with it.
#[derive(Debug)]
struct Entry {
    key: Key,
    chain: Chain,
    last_seen: Nanos,
    last_look: u64,
    /// The sentence without the time that it is of.
    sentence: String,
    /// The fix without commands.
    advice: String,
}

/// What a finding becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing, unless it is seen again.
    Pending,
    /// A chain, or part of one that was not charged for so many looks before this one.
    Named {
        /// Looks before this one; of a new chain there is no end to them.
        unseen: u64,
    },
}

/// What a cause took since its chain was last charged, what of it was lost, and to whom.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) attributed: Nanos,
    pub(crate) lost: Nanos,
    pub(crate) losses: Vec<Loss>,
}

/// Every chain that is kept.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
    /// Where the youngest of each kind is.
    youngest: HashMap<Key, usize>,
    /// Findings that have been seen once, and at which look.
    pending: HashMap<Key, u64>,
    counts: BTreeMap<(ProcId, Cause, Effect, Severity), ChainCount>,
    stalls: BTreeMap<(ProcId, Cause), Stall>,
    /// Processes that are gone and yet may be in a moment that is to be looked at.
    folded: HashSet<ProcId>,
    /// The CPUs of the host, as a list.
    online_cpus: String,
}

impl Ledger {
    /// Chains, the worst first: by severity, then by time attributed.
    pub(crate) fn chains(&self) -> Vec<&Chain> {
        let mut chains: Vec<_> = self.entries.iter().map(|entry| &entry.chain).collect();
        chains.sort_by(|a, b| {
            let attributed = b.attributed_seconds().total_cmp(&a.attributed_seconds());
            b.severity.cmp(&a.severity).then(attributed).then_with(|| a.id.cmp(&b.id))
        });
        chains
    }

    pub(crate) fn counts(&self) -> impl ExactSizeIterator<Item = &ChainCount> {
        self.counts.values()
    }

    pub(crate) fn stalls(&self) -> impl ExactSizeIterator<Item = &Stall> {
        self.stalls.values()
    }

    /// Adds what is told of these processes, now and later, to what is told of [`FOLDED`].
    pub(crate) fn fold(&mut self, processes: &HashSet<ProcId>) {
        self.folded.extend(processes);
        let counts = self.counts.extract_if(.., |(process, ..), _| processes.contains(process));
        for (_, count) in counts.collect::<Vec<_>>() {
            self.add_count(&count);
        }
        let stalls = self.stalls.extract_if(.., |(process, _), _| processes.contains(process));
        for (_, stall) in stalls.collect::<Vec<_>>() {
            self.add_stall(&stall);
        }
    }

    /// Under which id a process is told of.
    fn told_as(&self, process: ProcId) -> ProcId {
        if self.folded.contains(&process) { FOLDED } else { process }
    }

    fn key(scene: &Scene<'_>, finding: &Finding) -> Option<Key> {
        let process = scene.subjects.get(finding.subject)?.now.id;
        Some(Key { process, cause: finding.cause, hang: finding.effect == Effect::Hang })
    }

    /// The chain that goes on with a finding.
    fn open(&mut self, key: Key, now: Nanos, settings: &Settings) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(*self.youngest.get(&key)?)?;
        let is_open = now.less(entry.last_seen).as_secs_f64() <= settings.keep_open_seconds;
        is_open.then_some(entry)
    }

    /// What becomes of something that was found at a look. A small loss must be seen at two looks in a row to become a chain.
    pub(crate) fn standing(
        &mut self,
        scene: &Scene<'_>,
        finding: &Finding,
        (look, now): (u64, Nanos),
    ) -> Standing {
        let Some(key) = Self::key(scene, finding) else { return Standing::Pending };
        if let Some(entry) = self.open(key, now, scene.settings) {
            return Standing::Named { unseen: look.saturating_sub(entry.last_look + 1) };
        }
        let severity = scene.settings.severities.of(finding.lost_share);
        let before = self.pending.insert(key, look);
        if severity < Severity::High && before.is_none_or(|before| before + 1 != look) {
            return Standing::Pending;
        }
        self.pending.remove(&key);
        Standing::Named { unseen: u64::MAX }
    }

    /// Takes what was found at a look and is [named](Self::standing), with what it cost.
    pub(crate) fn take(
        &mut self,
        scene: &Scene<'_>,
        mut finding: Finding,
        cost: Cost,
        (look, now, unix): (u64, Nanos, f64),
    ) {
        let Some(subject) = scene.subjects.get(finding.subject) else { return };
        let Some(key) = Self::key(scene, &finding) else { return };
        let severity = scene.settings.severities.of(finding.lost_share);
        finding.explained = finding.explained.clamp(0.0, 1.0);
        let evidence = std::mem::take(&mut finding.evidence);
        finding.evidence = evidence.with(Chain::WINDOW, window_of(scene, &finding));
        let taken = (cost.attributed, cost.lost);
        let online_cpus = std::mem::take(&mut self.online_cpus);
        if let Some(entry) = self.open(key, now, scene.settings) {
            let worse = severity > entry.chain.severity;
            if entry.extend(finding, &cost, severity, (look, now, unix)) {
                entry.tell(&online_cpus);
            } else {
                entry.tell_when();
            }
            let count = worse.then(|| ChainCount::of(key.process, &entry.chain));
            let last_id = entry.chain.id.clone();
            self.online_cpus = online_cpus;
            self.add_cost(key, taken, last_id);
            if let Some(count) = count {
                self.add_count(&count);
            }
            return;
        }
        let victim = Victim {
            pid: subject.now.tgid.0,
            tid: finding.tid.map_or(subject.now.tgid.0, |tid| tid.0),
            comm: subject.now.comm.to_text(),
            started: Some(subject.now.started_boottime.as_secs_f64()).filter(|at| *at > 0.0),
            place: Place::default(),
        };
        let sentence = finding.sentence.tell(&finding.evidence);
        let advice = finding.fix.clone();
        let mut chain = chain_of(finding, victim, severity, cost, unix);
        self.make_unique(&mut chain.id);
        self.add_cost(key, taken, chain.id.clone());
        self.add_count(&ChainCount::of(key.process, &chain));
        let mut entry = Entry { key, chain, last_seen: now, last_look: look, sentence, advice };
        entry.tell(&online_cpus);
        self.online_cpus = online_cpus;
        self.youngest.insert(key, self.entries.len());
        self.entries.push(entry);
    }

    /// Whether a chain of the process was seen at this moment.
    pub(crate) fn saw(&self, process: ProcId, now: Nanos) -> bool {
        self.entries.iter().any(|entry| entry.key.process == process && entry.last_seen == now)
    }

    /// Chains that were not seen for some looks have ended; `None` when there are no more looks.
    pub(crate) fn end_unseen(&mut self, look: Option<u64>) {
        let Self { entries, online_cpus, .. } = self;
        for entry in entries.iter_mut().filter(|entry| entry.chain.ongoing == Some(true)) {
            if look.is_none_or(|look| look > entry.last_look + UNSEEN) {
                entry.chain.ongoing = Some(false);
                entry.tell(online_cpus);
            }
        }
    }

    /// Where the processes of ongoing chains run, as far as that is known; the CPUs of the host.
    pub(crate) fn place(&mut self, online_cpus: &str, places: &HashMap<u32, Place>) {
        online_cpus.clone_into(&mut self.online_cpus);
        for entry in self.entries.iter_mut().filter(|e| e.chain.ongoing == Some(true)) {
            let Chain { victim, culprit, .. } = &mut entry.chain;
            if let Some(place) = places.get(&victim.pid) {
                victim.place.clone_from(place);
            }
            if let Some(culprit) = culprit
                && let Some(place) = places.get(&culprit.pid)
            {
                culprit.place.clone_from(place);
            }
            entry.tell(online_cpus);
        }
    }

    /// Forgets findings that were not seen again, chains above the limit, and the counts of processes that are gone.
    pub(crate) fn tidy(&mut self, look: u64, settings: &Settings, lives: impl Fn(ProcId) -> bool) {
        self.pending.retain(|_, seen| *seen == look);
        let excess = self.entries.len().saturating_sub(settings.max_chains);
        if excess > 0 {
            self.entries.sort_by_key(|entry| entry.last_seen);
            self.entries.drain(..excess);
            let places = self.entries.iter().enumerate().map(|(place, entry)| (entry.key, place));
            self.youngest = places.collect();
        }
        let is_told = |process| process == FOLDED || lives(process);
        self.counts.retain(|&(process, ..), _| is_told(process));
        self.stalls.retain(|&(process, _), _| is_told(process));
        self.folded.retain(|&process| lives(process));
    }

    /// Two images of one process, or a clock that steps back, can make the same id twice.
    fn make_unique(&self, id: &mut String) {
        let plain = id.clone();
        let taken = |id: &str| self.entries.iter().any(|entry| entry.chain.id == id);
        let mut number = 1u64;
        while taken(id) {
            number += 1;
            *id = format!("{plain}-{number}");
        }
    }

    fn add_count(&mut self, added: &ChainCount) {
        let process = self.told_as(added.process);
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

    fn add_cost(&mut self, key: Key, (attributed, lost): (Nanos, Nanos), last_id: String) {
        self.add_stall(&Stall {
            process: key.process,
            cause: key.cause,
            attributed,
            lost,
            last_id,
            last_attributed: attributed,
            last_lost: lost,
        });
    }

    fn add_stall(&mut self, added: &Stall) {
        let process = self.told_as(added.process);
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
    /// Seen again. The severity is the worst of all windows, the effect is that of the first one that was so bad, the rest is
    /// that of the last with this effect. Whoever took a little before is not to blame for what came after. Whether there may be
    /// something else to run against it.
    fn extend(
        &mut self,
        finding: Finding,
        cost: &Cost,
        severity: Severity,
        (look, now, unix): (u64, Nanos, f64),
    ) -> bool {
        let chain = &mut self.chain;
        (self.last_look, self.last_seen) = (look, now);
        losses::add(&mut chain.losses, &cost.losses);
        chain.last_seen = chain.last_seen.max(unix);
        chain.lost_seconds += cost.lost.as_secs_f64();
        let attributed = chain.attributed_seconds() + cost.attributed.as_secs_f64();
        let worse = severity > chain.severity;
        let mut other = worse;
        if worse {
            chain.severity = severity;
            chain.effect = finding.effect;
        }
        if finding.effect == chain.effect {
            self.sentence = finding.sentence.tell(&finding.evidence);
            chain.explained = finding.explained;
            chain.evidence = finding.evidence;
            chain.path = finding.path;
            other |= self.advice != finding.fix;
            self.advice = finding.fix;
            if worse || finding.culprit.is_some() {
                let pid = |culprit: &Option<Culprit>| culprit.as_ref().map(|own| own.pid);
                other |= pid(&chain.culprit) != pid(&finding.culprit);
                let before = std::mem::replace(&mut chain.culprit, finding.culprit);
                if let (Some(before), Some(now)) = (before, &mut chain.culprit)
                    && before.pid == now.pid
                {
                    now.place = before.place;
                }
            }
        }
        chain.ongoing = Some(true);
        chain.set_attributed_seconds(attributed);
        other
    }

    /// Writes down when the chain was, and what to run against it.
    fn tell(&mut self, online_cpus: &str) {
        self.tell_when();
        self.chain.fix = commands::with(&self.advice, &self.chain, online_cpus);
    }

    fn tell_when(&mut self) {
        let (unexplained, when) = (self.chain.unexplained(), self.chain.when());
        let told = &mut self.chain.sentence;
        told.clear();
        for part in [&*self.sentence, &*unexplained, " ", &*when] {
            told.push_str(part);
        }
    }
}

fn chain_of(finding: Finding, victim: Victim, severity: Severity, cost: Cost, unix: f64) -> Chain {
    let mut chain = Chain {
        id: id_of(&finding, &victim, unix),
        cause: finding.cause,
        effect: finding.effect,
        severity,
        victim,
        culprit: finding.culprit,
        explained: finding.explained,
        lost_seconds: cost.lost.as_secs_f64(),
        losses: cost.losses,
        evidence: finding.evidence,
        path: finding.path,
        sentence: String::new(),
        fix: finding.fix,
        first_seen: unix,
        last_seen: unix,
        ongoing: Some(true),
    };
    chain.set_attributed_seconds(cost.attributed.as_secs_f64());
    chain
}

/// The length of the window that the numbers of a finding are of, in seconds.
fn window_of(scene: &Scene<'_>, finding: &Finding) -> f64 {
    let Some(subject) = scene.subjects.get(finding.subject) else { return 0.0 };
    let measured = subject.effects.iter().find(|own| own.effect == finding.effect);
    match finding.effect {
        Effect::MemoryGrowth => scene.settings.leak_seconds,
        _ => measured.map_or(&subject.short, |own| own.delta(subject)).wall.as_secs_f64(),
    }
}

/// When, whom, why.
fn id_of(finding: &Finding, victim: &Victim, unix: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds since the epoch; what is before it or beyond the type is clamped"
    )]
    let deciseconds = (unix * 10.0) as u64;
    let hang = if finding.effect == Effect::Hang { "-hang" } else { "" };
    format!("{deciseconds:x}-{}-{}{hang}", victim.pid, finding.cause)
}
