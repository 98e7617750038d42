//! Applies the decisions of [`LaunchBudget`]: updates the programs, then detaches or attaches launch probes. The programs
//! alone decide what counts; links only save the cost of a hit.

pub(crate) mod budget;
pub(crate) mod groups;
pub(crate) mod modes;
pub(crate) mod states;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::record::LaunchModeRecord;
use gpucause_abi::snapshot::LaunchStep;
use gpucause_abi::{Nanos, ProcId, Tgid};

use self::budget::{CHANGE_SHARE, HitCost, LaunchBudget, Window};
use self::modes::LaunchModes;
use self::states::{Activity, Busy, LaunchStates};
use crate::attach::CallProbes;
use crate::reader::{Load, ReadError, Reader, monotonic_now};
use crate::registry::{Layers, Registry};

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);
/// Shortest and longest period of part-time observation: rates over a minute always have samples.
const PERIODS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(30));
/// Shorter observation of a window is not evaluated.
const LEAST_OBSERVED: Duration = Duration::from_millis(50);
/// Most of a thread's time that probes are taken to need while they count its launches.
const MOST_TAKEN: f64 = 0.5;
/// Default where the cost of a hit could not be measured.
pub(crate) const TYPICAL_HIT_COST: HitCost = HitCost { timed: Nanos(1_400), counted: Nanos(700) };

/// Whether launches are observed now.
#[derive(Debug, Clone, Copy)]
enum Presence {
    /// Observed since then, when so many launches had been made; without `until` permanently.
    Observed {
        since: Instant,
        launches: u32,
        until: Option<Instant>,
    },
    Paused {
        until: Instant,
    },
}

/// A process that launches.
#[derive(Debug)]
struct Launcher {
    tgid: Tgid,
    budget: LaunchBudget,
    presence: Presence,
    /// Odd while paused.
    turn: u32,
    /// Whether the driver's probes replace the runtime's.
    driver_only: bool,
    /// Observed time of this window, up to the last pause.
    observed: Duration,
    /// Its busiest thread when part-time observation last began.
    busiest: Option<Busy>,
}

/// The controller.
#[derive(Debug)]
pub(crate) struct LaunchControl {
    modes: LaunchModes,
    reader: Arc<Reader>,
    states: Arc<LaunchStates>,
    cost: HitCost,
    budget: Option<f64>,
    /// Fixed step of all processes, regardless of the budget.
    pinned: Option<LaunchStep>,
    launchers: HashMap<ProcId, Launcher>,
    window: u32,
    opened: Instant,
    /// Duration of the last attach or detach of probes.
    transition: Duration,
}

/// The programs could not be updated or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("cannot update the programs: {0}")]
    Write(#[from] libbpf_rs::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl LaunchControl {
    pub(crate) fn new(
        modes: LaunchModes,
        reader: Arc<Reader>,
        states: Arc<LaunchStates>,
        (cost, pinned): (Option<HitCost>, Option<LaunchStep>),
    ) -> Self {
        Self {
            modes,
            reader,
            states,
            cost: cost.unwrap_or(TYPICAL_HIT_COST),
            budget: None,
            pinned,
            launchers: HashMap::new(),
            window: 0,
            opened: Instant::now(),
            transition: Duration::ZERO,
        }
    }

    /// Sets the budget.
    pub(crate) fn set_budget(&mut self, budget: Option<f64>) {
        self.budget = budget;
    }

    /// The least share of the time for which launches of any process are observed.
    pub(crate) fn least_share(&self) -> f64 {
        self.states.least_share()
    }

    /// The least share of any process's launches that are timed now.
    pub(crate) fn least_timed_share(&self) -> f64 {
        self.states.least_timed_share()
    }

    /// Does what is due. Returns when the next tick is due.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        registry: &mut Registry<CallProbes>,
    ) -> Result<Instant, ControlError> {
        if now >= self.opened + WINDOW {
            let loads = self.reader.loads()?;
            self.evaluate(now, &loads)?;
            self.inherit(&loads, registry);
        }
        let due = |launcher: &Launcher| match launcher.presence {
            Presence::Observed { until, .. } => until.is_some_and(|until| until <= now),
            Presence::Paused { until } => until <= now,
        };
        let ids: Vec<ProcId> =
            self.launchers.iter().filter(|(_, own)| due(own)).map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            self.switch_presence(now, &ids, registry)?;
        }
        self.limit(registry);
        self.begin_part_time()?;
        let began = Instant::now();
        let retired = registry.attacher().detach_retired(now);
        self.transition += began.elapsed();
        let ends = self.launchers.values().filter_map(|own| match own.presence {
            Presence::Observed { until, .. } => until,
            Presence::Paused { until } => Some(until),
        });
        Ok(ends.chain(retired).fold(self.opened + WINDOW, Instant::min))
    }

    /// Evaluates the ended window of each process and opens the next.
    fn evaluate(&mut self, now: Instant, loads: &[Load]) -> Result<(), ControlError> {
        let elapsed = now - self.opened;
        let live: HashMap<ProcId, &Load> = loads.iter().map(|load| (load.id, load)).collect();
        let ended: Vec<ProcId> =
            self.launchers.keys().filter(|id| !live.contains_key(id)).copied().collect();
        for id in ended {
            self.launchers.remove(&id);
            self.states.end(id);
            self.modes.set(id, None)?;
        }
        for load in loads {
            let is_now = load.window == self.window;
            if !is_now && !self.launchers.contains_key(&load.id) {
                continue;
            }
            let launcher = self.launchers.entry(load.id).or_insert_with(|| Launcher {
                tgid: load.tgid,
                budget: LaunchBudget::default(),
                presence: Presence::Observed {
                    since: self.opened,
                    launches: load.launches,
                    until: None,
                },
                turn: 0,
                driver_only: false,
                observed: Duration::ZERO,
                busiest: None,
            });
            let still = match launcher.presence {
                Presence::Observed { since, .. } => now - since.max(self.opened),
                Presence::Paused { .. } => Duration::ZERO,
            };
            let observed = (std::mem::take(&mut launcher.observed) + still).min(elapsed);
            if observed < LEAST_OBSERVED.min(elapsed) {
                launcher.budget.rest(elapsed, self.budget);
                continue;
            }
            let hits = if is_now { load.hits } else { NO_HITS };
            let window = Window { elapsed, observed, load: hits };
            let before = launcher.budget.step();
            let after = match self.pinned {
                Some(step) => launcher.budget.pin(&window, step),
                None => launcher.budget.evaluate(&window, self.cost, self.budget),
            };
            if before != after {
                self.change_step(now, load, before)?;
            } else if after == LaunchStep::Full && !is_now && launcher.turn == 0 {
                // A process that was paused keeps its mode, which is removed with the process.
                self.launchers.remove(&load.id);
            }
        }
        self.window = self.modes.open_window()?;
        self.opened = now;
        Ok(())
    }

    /// Children of processes observed in part use the same libraries, but no mapping is seen of them.
    fn inherit(&self, loads: &[Load], registry: &mut Registry<CallProbes>) {
        if self.launchers.values().all(|own| own.budget.step() == LaunchStep::Full) {
            return;
        }
        let tgids: HashMap<ProcId, Tgid> = loads.iter().map(|load| (load.id, load.tgid)).collect();
        for load in loads {
            if let Some(&parent) = load.parent.and_then(|parent| tgids.get(&parent)) {
                registry.add_child(parent, load.tgid);
            }
        }
    }

    fn change_step(
        &mut self,
        now: Instant,
        load: &Load,
        before: LaunchStep,
    ) -> Result<(), ControlError> {
        let Some(launcher) = self.launchers.get_mut(&load.id) else { return Ok(()) };
        let step = launcher.budget.step();
        self.states.set_step(load.id, step);
        if std::mem::discriminant(&before) == std::mem::discriminant(&step) {
            return Ok(());
        }
        tracing::info!(
            tgid = load.tgid.0,
            step = step.label(),
            "launch observation changed to stay within the budget"
        );
        launcher.driver_only = step != LaunchStep::Full && launcher.budget.nests();
        launcher.presence = match (launcher.presence, step) {
            // Resumes at once.
            (Presence::Paused { .. }, step) if !matches!(step, LaunchStep::PartTime { .. }) => {
                Presence::Paused { until: now }
            }
            (Presence::Observed { since, launches, .. }, _) => {
                Presence::Observed { since, launches, until: None }
            }
            (paused, _) => paused,
        };
        write_mode(&mut self.modes, load.id, launcher)
    }

    /// Begins the first observation of processes that are observed part-time from now on: after their probes have changed,
    /// which delays them, or their launches would be estimated too low.
    fn begin_part_time(&mut self) -> Result<(), ControlError> {
        let begins = |own: &Launcher| match (own.budget.step(), own.presence) {
            (LaunchStep::PartTime { share, .. }, Presence::Observed { until: None, .. }) => {
                Some(share)
            }
            _ => None,
        };
        if !self.launchers.values().any(|own| begins(own).is_some()) {
            return Ok(());
        }
        let period = self.period();
        let activities = self.activities();
        for load in self.reader.loads()? {
            let Some(own) = self.launchers.get_mut(&load.id) else { continue };
            let Some(share) = begins(own) else { continue };
            let since = Instant::now();
            let until = Some(since + period.mul_f64(share));
            own.presence = Presence::Observed { since, launches: load.launches, until };
            own.busiest = activities.get(&load.id).and_then(|activity| activity.busiest);
        }
        Ok(())
    }

    /// Resumes paused processes and pauses observed ones.
    fn switch_presence(
        &mut self,
        now: Instant,
        ids: &[ProcId],
        registry: &mut Registry<CallProbes>,
    ) -> Result<(), ControlError> {
        let period = self.period();
        self.transition = Duration::ZERO;
        let (mut pausing, mut resuming) = (Vec::new(), Vec::new());
        for id in ids {
            match self.launchers.get(id).map(|own| own.presence) {
                Some(Presence::Observed { .. }) => pausing.push(*id),
                Some(Presence::Paused { .. }) => resuming.push(*id),
                None => {}
            }
        }
        // First, since the rate is that up to the other read.
        let activities = self.activities();
        let loads = self.reader.loads()?;
        let launches =
            |id: ProcId| loads.iter().find(|load| load.id == id).map(|load| load.launches);
        for id in pausing {
            let Some(own) = self.launchers.get_mut(&id) else { continue };
            let Presence::Observed { since, launches: before, .. } = own.presence else { continue };
            let made = launches(id).unwrap_or(before).wrapping_sub(before);
            let seen = f64::from(made) / since.elapsed().as_secs_f64();
            let busiest = activities.get(&id).and_then(|activity| activity.busiest);
            let always_busy =
                own.busiest.zip(busiest).is_some_and(|(then, now)| now.always_since(then));
            let taken =
                if always_busy { own.budget.counting_load_at(seen, self.cost) } else { 0.0 };
            // A thread that is always busy launches more while probes take none of its time.
            let rate = seen / (1.0 - taken.min(MOST_TAKEN));
            own.turn = own.turn.wrapping_add(1);
            own.observed += now - since.max(self.opened);
            own.presence = Presence::Paused { until: since + period };
            write_mode(&mut self.modes, id, own)?;
            self.states.pause(id, monotonic_now(), rate);
        }
        for id in &resuming {
            if let Some(own) = self.launchers.get_mut(id) {
                own.presence = Presence::Observed { since: now, launches: 0, until: None };
            }
        }
        // Probes are attached before they count.
        self.limit(registry);
        for id in resuming {
            let Some(own) = self.launchers.get_mut(&id) else { continue };
            own.turn = own.turn.wrapping_add(1);
            write_mode(&mut self.modes, id, own)?;
            self.states.resume(id, activity_of(&activities, id));
            let since = Instant::now();
            let until = match own.budget.step() {
                LaunchStep::PartTime { share, .. } => Some(since + period.mul_f64(share)),
                _ => None,
            };
            own.busiest = activities.get(&id).and_then(|activity| activity.busiest);
            own.presence = Presence::Observed { since, launches: launches(id).unwrap_or(0), until };
        }
        Ok(())
    }

    /// What the threads of each process do. Without it launches are estimated to the end of a pause.
    fn activities(&self) -> HashMap<ProcId, Activity> {
        self.reader.activities().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read threads; launches of paused processes may be estimated too high");
            HashMap::new()
        })
    }

    /// Detaches launch probes that are not needed, and attaches those that are again.
    fn limit(&mut self, registry: &mut Registry<CallProbes>) {
        if !registry.attacher().is_per_process() {
            return;
        }
        let began = Instant::now();
        let limited = self.launchers.values().filter(|own| own.budget.step() != LaunchStep::Full);
        let layers = |own: &Launcher| {
            let paused = matches!(own.presence, Presence::Paused { .. });
            Layers { runtime: paused || own.driver_only, driver: paused }
        };
        registry.limit_users(limited.map(|own| (own.tgid, layers(own))).collect());
        self.transition += began.elapsed();
    }

    /// A dispatcher thread can be delayed while probes change, so the period is long enough that changes stay within their
    /// part of the budget.
    fn period(&self) -> Duration {
        let (least, most) = PERIODS;
        let part = self.budget.unwrap_or(1.0) * CHANGE_SHARE;
        let period = self.transition.as_secs_f64() / part;
        Duration::from_secs_f64(period.clamp(least.as_secs_f64(), most.as_secs_f64()))
    }

    /// Detaches everything: no call counts until [`Self::resume`].
    pub(crate) fn pause(&mut self) -> Result<(), ControlError> {
        self.modes.pause(true)?;
        let activities = self.activities();
        for (id, _) in self.launchers.drain() {
            self.states.resume(id, activity_of(&activities, id));
            self.states.end(id);
            self.modes.set(id, None)?;
        }
        Ok(())
    }

    /// Resumes counting.
    pub(crate) fn resume(&mut self, now: Instant) -> Result<(), libbpf_rs::Error> {
        self.modes.pause(false)?;
        self.window = self.modes.open_window()?;
        self.opened = now;
        Ok(())
    }
}

/// What a process does now; one that is not known goes on as it was last seen.
fn activity_of(activities: &HashMap<ProcId, Activity>, id: ProcId) -> Activity {
    let now = monotonic_now();
    activities.get(&id).map_or_else(|| Activity::new(now, None, None), |activity| activity.at(now))
}

const NO_HITS: gpucause_abi::record::LoadRecord =
    gpucause_abi::record::LoadRecord { runtime: 0, driver: 0, nested: 0, untimed: 0, others: 0 };

fn write_mode(modes: &mut LaunchModes, id: ProcId, own: &Launcher) -> Result<(), ControlError> {
    let sample_every = match own.budget.step() {
        LaunchStep::Full | LaunchStep::DriverOnly => 0,
        LaunchStep::Sampled { one_in } | LaunchStep::PartTime { one_in, .. } => one_in,
    };
    let mode = LaunchModeRecord {
        turn: own.turn,
        sample_every,
        driver_only: own.driver_only.into(),
        pad: 0,
    };
    // The turn stays, so that no gap spans a pause.
    let is_full = own.budget.step() == LaunchStep::Full && own.turn == 0;
    Ok(modes.set(id, (!is_full).then_some(mode))?)
}
