//! Applies the decisions of a [`CallBudget`](budget::CallBudget): updates the programs, then detaches or attaches probes. The
//! programs alone decide what counts; links only save the cost of a hit.

pub(crate) mod budget;
mod caller;
mod launch_layer;
pub(crate) mod modes;
pub(crate) mod overspent;
pub(crate) mod slices;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpucause_abi::snapshot::LaunchStep;
use gpucause_abi::{ProcId, Tgid};

use self::budget::Limits;
use self::caller::{Caller, Presence};
use self::launch_layer::{HANDOVER, LaunchLayer};
use self::modes::LaunchModes;
use self::overspent::Overspent;
use self::slices::{Random, Stretch, mean_length};
use crate::attach::CallProbes;
use crate::hit_cost::HitCosts;
use crate::host_clock::monotonic_now;
use crate::launch_states::{LaunchStates, Rung};
use crate::reader::{Load, ReadError, Reader};
use crate::registry::{Registry, Removed};

/// Length of a window: what a process may take over its budget before less is observed.
const WINDOW: Duration = Duration::from_millis(500);
/// Hits may take this multiple of the budget in a window before calls are only counted: windows differ in length.
const QUOTA: f64 = 1.1;
/// Hits that take this multiple of that are too many whatever the rest of the window brings.
const FAR_TOO_MUCH: f64 = 4.0;
/// Shorter observation of a window is not evaluated: only its cost counts.
const LEAST_OBSERVED: Duration = Duration::from_millis(8);

/// The controller.
#[derive(Debug)]
pub(crate) struct LaunchControl {
    modes: LaunchModes,
    overspent: Overspent,
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
        (modes, overspent): (LaunchModes, Overspent),
        reader: Arc<Reader>,
        states: Arc<LaunchStates>,
        (costs, pinned): (Option<HitCosts>, Option<LaunchStep>),
    ) -> Self {
        Self {
            modes,
            overspent,
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
        let quota = limits
            .filter(|_| self.pinned.is_none())
            .map(|own| WINDOW.mul_f64(own.budget * QUOTA))
            .map(|quota| (quota, quota.mul_f64(FAR_TOO_MUCH)));
        self.modes.set_quota(self.costs.warm, quota)?;
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
        let overspent = self.overspent.take();
        let limits =
            self.limits.map(|own| own.where_probes_go(registry.attacher().is_per_process()));
        if has_windows && now >= self.opened + WINDOW {
            let loads = self.reader.loads()?;
            self.evaluate(now, &loads, limits)?;
            self.inherit(&loads, registry);
        } else if let Some(limits) = limits.filter(|_| !overspent.is_empty()) {
            self.relieve(now, &overspent, limits)?;
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
            let caller = self.callers.entry(load.id).or_insert_with(|| Caller::new(load, opened));
            let still = match caller.presence {
                Presence::Observed { since, .. } => now - since.max(self.opened),
                Presence::Paused { .. } => Duration::ZERO,
            };
            let observed = (std::mem::take(&mut caller.observed) + still).min(elapsed);
            let load_now = is_now.then_some(load);
            let (window, cost) = caller.window(load_now, (elapsed, observed), &self.costs);
            if observed < LEAST_OBSERVED.min(elapsed) {
                caller.budget.account(&window, limits);
                continue;
            }
            caller.end_window(now, load.launches);
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

    /// Observes less of processes whose hits took far too much of this window already.
    fn relieve(
        &mut self,
        now: Instant,
        overspent: &[ProcId],
        limits: Limits,
    ) -> Result<(), ControlError> {
        for load in self.reader.loads()? {
            if !overspent.contains(&load.id) || load.window != self.window {
                continue;
            }
            let opened = self.opened;
            let caller = self.callers.entry(load.id).or_insert_with(|| Caller::new(&load, opened));
            let before = caller.budget.rung();
            if matches!(before, Rung::PartTime(_)) {
                continue;
            }
            // Since the first hit: it may have begun a moment ago.
            let ran = load.all_spent_ran / (load.all_spent.0 as f64).max(1.0);
            let busy = Duration::from_nanos(ran as u64).clamp(LEAST_OBSERVED, WINDOW);
            let (window, cost) = caller.window(Some(&load), (WINDOW, busy), &self.costs);
            if caller.budget.anticipate(&window, cost, limits) != before {
                self.change_rung(now, &load, before)?;
            }
        }
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
        match (caller.presence, rung) {
            (Presence::Observed { .. }, Rung::PartTime(share)) => {
                return self.begin_part_time(load.id, share);
            }
            // Resumes at once.
            (Presence::Paused { .. }, rung) if !matches!(rung, Rung::PartTime(_)) => {
                caller.presence = Presence::Paused { until: now };
            }
            (Presence::Observed { since, launches, .. }, _) => {
                caller.presence = Presence::Observed { since, launches, until: None };
            }
            (Presence::Paused { .. }, _) => {}
        }
        Ok(self.modes.set(load.id, caller.mode())?)
    }

    /// Pauses a process that is partly observed from now on. When the pause ends, no launch that the runtime's probes counted is on its
    /// way to the driver any more.
    fn begin_part_time(&mut self, id: ProcId, share: f64) -> Result<(), ControlError> {
        self.change = Duration::ZERO;
        let mean = self.mean_slice(id, share);
        let Some(own) = self.callers.get_mut(&id) else { return Ok(()) };
        own.layer = own.layer.after_pause();
        own.stretch = Stretch::default();
        let (_, pause) = own.stretch.next(share, mean, &mut self.random);
        own.pause = pause.max(HANDOVER);
        self.pause_one(id)
    }

    /// The mean length of a slice of the process, in seconds.
    fn mean_slice(&self, id: ProcId, share: f64) -> f64 {
        let partly = |own: &&Caller| matches!(own.budget.rung(), Rung::PartTime(_));
        let processes = self.callers.values().filter(partly).count();
        let taken = self.callers.get(&id).map_or(0.0, |own| own.taken(&self.costs));
        mean_length(share, taken, self.change, processes)
    }

    /// The runtime's probes are not needed any more.
    fn end_handovers(&mut self, now: Instant) -> Result<(), ControlError> {
        for (id, own) in &mut self.callers {
            if own.layer.handover_ends().is_some_and(|until| until <= now) {
                own.layer = LaunchLayer::Driver;
                self.modes.set(*id, own.mode())?;
            }
        }
        Ok(())
    }

    /// A process is observed from now on, for a slice if it is partly observed.
    fn begin_slice(&mut self, id: ProcId, launches: u32) {
        let Some(rung) = self.callers.get(&id).map(|own| own.budget.rung()) else { return };
        let share = if let Rung::PartTime(share) = rung { Some(share) } else { None };
        let mean = share.map_or(0.0, |share| self.mean_slice(id, share));
        let Some(own) = self.callers.get_mut(&id) else { return };
        let since = Instant::now();
        let mut until = None;
        if let Some(share) = share {
            let (slice, pause) = own.stretch.next(share, mean, &mut self.random);
            own.pause = pause;
            until = Some(since + slice);
        }
        own.presence = Presence::Observed { since, launches: Some(launches), until };
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
                    own.presence =
                        Presence::Observed { since, launches: Some(launches), until: None };
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
            self.modes.set(id, own.mode())?;
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
        let Presence::Observed { since, .. } = own.presence else { return Ok(()) };
        own.turn = own.turn.wrapping_add(1);
        self.modes.set(id, own.mode())?;
        let (paused_at, now) = (monotonic_now(), Instant::now());
        let launches = self.reader.launches_of(id)?;
        own.observed += now - since.max(self.opened);
        let rate = match own.budget.rung() {
            Rung::PartTime(_) => {
                if let Some(launches) = launches {
                    own.end_slice(now, launches);
                }
                own.slices.rate(own.taken(&self.costs))
            }
            _ => None,
        };
        own.presence = Presence::Paused { until: now + own.pause };
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

/// Readable when a process must be observed less at once.
impl AsFd for LaunchControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.overspent.as_fd()
    }
}
