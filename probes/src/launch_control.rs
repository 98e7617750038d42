//! Applies the decisions of [`CallBudget`]: updates the programs, then detaches or attaches probes. The programs alone decide
//! what counts; links only save the cost of a hit.

pub(crate) mod budget;
mod launch_layer;
pub(crate) mod modes;
pub(crate) mod slices;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::record::{LaunchModeRecord, LoadRecord, SHED_ASYNCS, SHED_QUERIES};
use gpucause_abi::snapshot::LaunchStep;
use gpucause_abi::{Nanos, ProcId, Tgid};

use self::budget::{CallBudget, Limits, Window, as_one_thread};
use self::launch_layer::LaunchLayer;
use self::modes::LaunchModes;
use self::slices::{Random, Slices, Stretch};
use crate::attach::CallProbes;
use crate::hit_cost::{Coldness, HitCosts};
use crate::host_clock::monotonic_now;
use crate::launch_states::{LaunchStates, ONE_IN, Rung};
use crate::reader::{Load, ReadError, Reader};
use crate::registry::{Registry, Removed};

/// Length of a window: what a process may take over its budget before less is observed.
const WINDOW: Duration = Duration::from_millis(500);
/// Hits may take this multiple of the budget in a window before calls are only counted: windows differ in length.
const QUOTA: f64 = 1.1;
/// Shorter observation of a window is not evaluated.
const LEAST_OBSERVED: Duration = Duration::from_millis(20);

/// Observation of a process's calls: active or paused.
#[derive(Debug, Clone, Copy)]
enum Presence {
    /// Observed since then, when so many launches had been made; without an end permanently.
    Observed {
        since: Instant,
        launches: u32,
        until: Option<Instant>,
    },
    Paused {
        until: Instant,
    },
}

/// A process that makes calls.
#[derive(Debug)]
struct Caller {
    tgid: Tgid,
    budget: CallBudget,
    coldness: Coldness,
    presence: Presence,
    /// The pause after this slice.
    pause: Duration,
    stretch: Stretch,
    slices: Slices,
    /// Odd while paused.
    turn: u32,
    layer: LaunchLayer,
    /// Observed time of this window, up to the last pause.
    observed: Duration,
}

/// The controller.
#[derive(Debug)]
pub(crate) struct LaunchControl {
    modes: LaunchModes,
    reader: Arc<Reader>,
    states: Arc<LaunchStates>,
    costs: HitCosts,
    limits: Option<Limits>,
    /// Fixed rung of all processes, regardless of the budget.
    pinned: Option<Rung>,
    callers: HashMap<ProcId, Caller>,
    window: u32,
    opened: Instant,
    /// Duration of the last changes of probes.
    change: Duration,
    random: Random,
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
        (costs, pinned): (Option<HitCosts>, Option<LaunchStep>),
    ) -> Self {
        Self {
            modes,
            reader,
            states,
            costs: costs.unwrap_or_default(),
            limits: None,
            pinned: pinned.map(Rung::of),
            callers: HashMap::new(),
            window: 0,
            opened: Instant::now(),
            change: Duration::ZERO,
            random: Random::new(monotonic_now().0),
        }
    }

    /// Sets what probes may take of a thread's time.
    pub(crate) fn set_limits(&mut self, limits: Option<Limits>) -> Result<(), ControlError> {
        if self.limits.is_none() && limits.is_some() {
            // Without limits nobody has ended windows.
            self.window = self.modes.open_window()?;
            self.opened = Instant::now();
        }
        let quota = limits.filter(|_| self.pinned.is_none());
        self.modes
            .set_quota(self.costs.warm, quota.map(|own| WINDOW.mul_f64(own.budget * QUOTA)))?;
        self.limits = limits;
        Ok(())
    }

    /// The least share of the time for which calls of any process are observed.
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
        let is_limited = self.limits.is_some() || self.pinned.is_some();
        let has_windows = is_limited || !self.callers.is_empty();
        if has_windows && now >= self.opened + WINDOW {
            let loads = self.reader.loads()?;
            let limits =
                self.limits.map(|own| own.where_probes_go(registry.attacher().is_per_process()));
            self.evaluate(now, &loads, limits)?;
            self.inherit(&loads, registry);
        }
        let due = |own: &Caller| match own.presence {
            Presence::Observed { until, .. } => until.is_some_and(|until| until <= now),
            Presence::Paused { until } => until <= now,
        };
        let ids: Vec<ProcId> =
            self.callers.iter().filter(|(_, own)| due(own)).map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            self.switch_presence(&ids, registry)?;
        }
        self.end_handovers(now)?;
        self.limit(registry);
        self.begin_part_time()?;
        let began = Instant::now();
        let retired = registry.attacher().detach_retired(now);
        self.change += began.elapsed();
        let ends = self.callers.values().filter_map(|own| match own.presence {
            Presence::Observed { until, .. } => until,
            Presence::Paused { until } => Some(until),
        });
        let handovers = self.callers.values().filter_map(|own| own.layer.handover_ends());
        let next = if has_windows { self.opened } else { now } + WINDOW;
        Ok(ends.chain(handovers).chain(retired).fold(next, Instant::min))
    }

    /// Evaluates the ended window of each process and opens the next.
    fn evaluate(
        &mut self,
        now: Instant,
        loads: &[Load],
        limits: Option<Limits>,
    ) -> Result<(), ControlError> {
        let elapsed = now - self.opened;
        let live: HashMap<ProcId, &Load> = loads.iter().map(|load| (load.id, load)).collect();
        let ended: Vec<ProcId> =
            self.callers.keys().filter(|id| !live.contains_key(id)).copied().collect();
        for id in ended {
            self.forget(id)?;
        }
        for load in loads {
            let is_now = load.window == self.window;
            if !is_now && !self.callers.contains_key(&load.id) {
                continue;
            }
            let opened = self.opened;
            let is_new = !self.callers.contains_key(&load.id);
            let caller = self.callers.entry(load.id).or_insert_with(|| Caller::new(load, opened));
            let still = match caller.presence {
                Presence::Observed { since, .. } => now - since.max(self.opened),
                Presence::Paused { .. } => Duration::ZERO,
            };
            let observed = (std::mem::take(&mut caller.observed) + still).min(elapsed);
            if observed < LEAST_OBSERVED.min(elapsed) {
                caller.budget.rest(elapsed, limits);
                continue;
            }
            let hits = if is_now { load.hits } else { LoadRecord::default() };
            let cost = caller.coldness.follow(&hits, &self.costs);
            let spent_ns = self.costs.spent(hits.spent_ns, cost);
            let busiest = Nanos(hits.spent_ns.into());
            let weight = match is_now {
                true => as_one_thread(busiest, load.all_spent, load.all_spent_ran, observed),
                false => 1.0,
            };
            let window =
                Window { elapsed, observed, load: LoadRecord { spent_ns, ..hits }, weight };
            caller.end_window(now, load.launches, is_new);
            let before = caller.budget.rung();
            let after = match self.pinned {
                Some(rung) => caller.budget.pin(&window, rung),
                None => caller.budget.evaluate(&window, cost, limits),
            };
            if before != after {
                self.change_rung(now, load, before)?;
            } else if after == Rung::Full && !is_now && caller.turn == 0 {
                // A process that was paused keeps its mode, which is removed with the process.
                self.callers.remove(&load.id);
            }
        }
        self.window = self.modes.open_window()?;
        self.opened = now;
        Ok(())
    }

    /// Children of processes with fewer probes use the same libraries, but no mapping is seen of them.
    fn inherit(&self, loads: &[Load], registry: &mut Registry<CallProbes>) {
        if self.callers.values().all(|own| own.budget.rung() == Rung::Full) {
            return;
        }
        let tgids: HashMap<ProcId, Tgid> = loads.iter().map(|load| (load.id, load.tgid)).collect();
        for load in loads {
            if let Some(&parent) = load.parent.and_then(|parent| tgids.get(&parent)) {
                registry.add_child(parent, load.tgid);
            }
        }
    }

    fn change_rung(&mut self, now: Instant, load: &Load, before: Rung) -> Result<(), ControlError> {
        let Some(caller) = self.callers.get_mut(&load.id) else { return Ok(()) };
        let rung = caller.budget.rung();
        self.states.set_rung(load.id, rung);
        if before.rank() == rung.rank() {
            return Ok(());
        }
        tracing::info!(
            tgid = load.tgid.0,
            step = rung.step().label(),
            queries = rung.has_queries(),
            asyncs_sampled = rung.samples_asyncs(),
            "observation of calls changed to stay within the budget"
        );
        let to_driver = rung.rank() >= Rung::DriverOnly.rank() && caller.budget.nests();
        caller.layer = caller.layer.moved(to_driver, now);
        caller.presence = match (caller.presence, rung) {
            // Resumes at once.
            (Presence::Paused { .. }, rung) if !matches!(rung, Rung::PartTime(_)) => {
                Presence::Paused { until: now }
            }
            (Presence::Observed { since, launches, .. }, _) => {
                Presence::Observed { since, launches, until: None }
            }
            (paused, _) => paused,
        };
        write_mode(&mut self.modes, load.id, caller)
    }

    /// The runtime's probes are not needed any more.
    fn end_handovers(&mut self, now: Instant) -> Result<(), ControlError> {
        for (id, own) in &mut self.callers {
            if own.layer.handover_ends().is_some_and(|until| until <= now) {
                own.layer = LaunchLayer::Driver;
                write_mode(&mut self.modes, *id, own)?;
            }
        }
        Ok(())
    }

    /// Begins the first slice of processes that are partly observed from now on: after their probes have changed, which takes
    /// longer than a slice.
    fn begin_part_time(&mut self) -> Result<(), ControlError> {
        let begins = |own: &Caller| {
            matches!(own.budget.rung(), Rung::PartTime(_))
                && matches!(own.presence, Presence::Observed { until: None, .. })
                && own.layer.handover_ends().is_none()
        };
        if !self.callers.values().any(begins) {
            return Ok(());
        }
        for load in self.reader.loads()? {
            if let Some(own) = self.callers.get_mut(&load.id).filter(|own| begins(own)) {
                own.stretch = Stretch::default();
                self.begin_slice(load.id, load.launches);
            }
        }
        Ok(())
    }

    /// A process is observed from now on, for a slice if it is partly observed.
    fn begin_slice(&mut self, id: ProcId, launches: u32) {
        let partly = |own: &&Caller| matches!(own.budget.rung(), Rung::PartTime(_));
        let processes = self.callers.values().filter(partly).count();
        let Some(own) = self.callers.get_mut(&id) else { return };
        let since = Instant::now();
        let mut until = None;
        if let Rung::PartTime(share) = own.budget.rung() {
            let (slice, pause) = own.stretch.next(share, self.change, processes, &mut self.random);
            own.pause = pause;
            until = Some(since + slice);
        }
        own.presence = Presence::Observed { since, launches, until };
    }

    /// Resumes paused processes and pauses observed ones.
    fn switch_presence(
        &mut self,
        ids: &[ProcId],
        registry: &mut Registry<CallProbes>,
    ) -> Result<(), ControlError> {
        self.change = Duration::ZERO;
        let (mut pausing, mut resuming) = (Vec::new(), Vec::new());
        for id in ids {
            match self.callers.get(id).map(|own| own.presence) {
                Some(Presence::Observed { .. }) => pausing.push(*id),
                Some(Presence::Paused { .. }) => resuming.push(*id),
                None => {}
            }
        }
        for &id in &pausing {
            self.pause_one(id)?;
        }
        // Nothing is counted in a pause: what was launched before it ends was launched before it.
        let loads = if resuming.is_empty() { Vec::new() } else { self.reader.loads()? };
        let mut resumed = Vec::new();
        for id in resuming {
            let load = loads.iter().find(|load| load.id == id);
            match self.callers.get_mut(&id).zip(load) {
                Some((own, &Load { launches, .. })) => {
                    let since = Instant::now();
                    own.presence = Presence::Observed { since, launches, until: None };
                    resumed.push((id, launches));
                }
                // It ended in the pause.
                None => self.forget(id)?,
            }
        }
        // Probes are attached before they count.
        self.limit(registry);
        for (id, launches) in resumed {
            let Some(own) = self.callers.get_mut(&id) else { continue };
            own.turn = own.turn.wrapping_add(1);
            write_mode(&mut self.modes, id, own)?;
            self.states.resume(id, monotonic_now());
            self.begin_slice(id, launches);
        }
        Ok(())
    }

    /// A process has ended.
    fn forget(&mut self, id: ProcId) -> Result<(), ControlError> {
        self.callers.remove(&id);
        self.states.end(id);
        Ok(self.modes.set(id, None)?)
    }

    fn pause_one(&mut self, id: ProcId) -> Result<(), ControlError> {
        let Some(own) = self.callers.get_mut(&id) else { return Ok(()) };
        let Presence::Observed { since, launches: before, .. } = own.presence else {
            return Ok(());
        };
        own.turn = own.turn.wrapping_add(1);
        write_mode(&mut self.modes, id, own)?;
        let (paused_at, now) = (monotonic_now(), Instant::now());
        let launches = self.reader.launches_of(id)?.unwrap_or(before);
        own.observed += now - since.max(self.opened);
        own.presence = Presence::Paused { until: now + own.pause };
        let rate = match own.budget.rung() {
            Rung::PartTime(_) => {
                let made = launches.wrapping_sub(before);
                own.slices.add(now, now - since, made, own.stretch.share());
                let taken = own.budget.counting_load(own.coldness.cost(&self.costs));
                own.slices.rate(taken)
            }
            _ => None,
        };
        self.states.pause(id, paused_at, rate);
        Ok(())
    }

    /// Detaches probes that are not needed, and attaches those that are again.
    fn limit(&mut self, registry: &mut Registry<CallProbes>) {
        if !registry.attacher().is_per_process() {
            return;
        }
        let began = Instant::now();
        let limited = self.callers.values().filter(|own| own.budget.rung() != Rung::Full);
        let removed = |own: &Caller| {
            let paused = matches!(own.presence, Presence::Paused { .. });
            Removed {
                runtime: paused || own.layer == LaunchLayer::Driver,
                driver: paused,
                queries: !own.budget.rung().has_queries(),
                asyncs: paused && own.budget.makes_asyncs(),
            }
        };
        registry.limit_users(limited.map(|own| (own.tgid, removed(own))).collect());
        self.change += began.elapsed();
    }

    /// Detaches everything: no call counts until [`Self::resume`].
    pub(crate) fn pause(&mut self) -> Result<(), ControlError> {
        self.modes.pause(true)?;
        for (id, _) in self.callers.drain() {
            self.states.resume(id, monotonic_now());
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

impl Caller {
    fn new(load: &Load, since: Instant) -> Self {
        Self {
            tgid: load.tgid,
            budget: CallBudget::default(),
            coldness: Coldness::default(),
            presence: Presence::Observed { since, launches: load.launches, until: None },
            pause: Duration::ZERO,
            stretch: Stretch::default(),
            slices: Slices::default(),
            turn: 0,
            layer: LaunchLayer::Runtime,
            observed: Duration::ZERO,
        }
    }

    /// A window in which it may have been observed all the time is a slice without a pause; not the first one, as what it had
    /// launched before is not known.
    fn end_window(&mut self, now: Instant, launches: u32, is_first: bool) {
        if let Presence::Observed { since, launches: before, until: None } = self.presence
            && !matches!(self.budget.rung(), Rung::PartTime(_))
        {
            if !is_first {
                self.slices.add(now, now - since, launches.wrapping_sub(before), 1.0);
            }
            self.presence = Presence::Observed { since: now, launches, until: None };
        }
    }
}

fn write_mode(modes: &mut LaunchModes, id: ProcId, own: &Caller) -> Result<(), ControlError> {
    let rung = own.budget.rung();
    let mode = LaunchModeRecord {
        turn: own.turn,
        sample_every: if rung.samples_launches() { ONE_IN } else { 0 },
        driver_only: own.layer.driver_only(),
        shed: if rung.has_queries() { 0 } else { SHED_QUERIES }
            | if rung.samples_asyncs() { SHED_ASYNCS } else { 0 },
    };
    // The turn stays, so that no gap spans a pause.
    let is_full = rung == Rung::Full && own.turn == 0;
    Ok(modes.set(id, (!is_full).then_some(mode))?)
}
