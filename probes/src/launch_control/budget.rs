//! Decides how the calls of one process are observed, so that probes take no more of its busiest thread than the budget
//! allows, and of threads that take turns no more together. Pure: measuring and applying happen elsewhere.
//!
//! Rungs go from most observed to least. What one takes is computed from the calls of the busiest thread, which are known at
//! every rung but for those that it leaves out.

use std::time::Duration;

use gpucause_abi::Nanos;
use gpucause_abi::op::LoadClass;
use gpucause_abi::record::{ASYNC_ONE_IN, LoadRecord};

use crate::hit_cost::HitCost;
use crate::launch_states::{ONE_IN, Rung};

/// A rung must stay below this part of the budget, for that many windows, before more is observed again; for twice as many
/// each time that this was too much within so many windows: nothing is known of calls that are left out.
const RELIEF: f64 = 0.8;
const RELIEF_WINDOWS: u32 = 6;
const MOST_RELIEF_WINDOWS: u32 = 192;
const TRIED: u32 = 60;
/// Most that the rate falls from one window to the next, so that an intermittent load is not observed only while it is
/// idle.
const DECAY: f64 = 0.84;
/// Part of the budget for attaching and detaching probes, and for what the scheduler's programs take of the thread.
const CHANGE_SHARE: f64 = 0.3;
/// Overspending is saved again over about this many seconds, and counts up to the budget of that time.
const REPAID_IN: f64 = 8.0;
/// Most of the budget that is saved: what remains is observed for long enough to say something of the rest.
const MOST_SAVED: f64 = 0.7;
/// Calls are observed for at least this share of the time, whatever the cost.
pub(crate) const LEAST_SHARE: f64 = 0.005;
/// Above this share a change is not worthwhile.
const MOST_SHARE: f64 = 0.95;

/// Fewer asynchronous calls for a launch keep their probes in pauses.
const FEW: f64 = 0.05;
/// Share of runtime launches that must call the driver for the driver's probes to replace the runtime's.
const ALL_NESTED: f64 = 0.99;

/// Shares of a thread's time that probes may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// In all.
    pub(crate) budget: f64,
    /// While all that can be left out is, and calls are still counted; not less than the budget.
    pub(crate) counting: f64,
}

/// Activity of a process's busiest thread in a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    /// Length of the window.
    pub(crate) elapsed: Duration,
    /// Time in it for which calls were observed.
    pub(crate) observed: Duration,
    /// The hits.
    pub(crate) load: LoadRecord,
    /// How much more than those of the busiest thread the hits take of the program, as [`as_one_thread`] says.
    pub(crate) weight: f64,
}

/// How much more than those of its busiest thread the hits of all threads take of a program: hits delay it once where threads run at
/// the same time, and add up where they take turns, as PyTorch's main thread and the one that computes gradients.
///
/// - `busiest`, `all`: time that hits took of the busiest thread, and of all.
/// - `all_spent_ran`: the sum of that of each thread times its time on a CPU, in square nanoseconds. So a thread that runs all the
///   time with few hits counts little.
pub(crate) fn as_one_thread(
    busiest: Nanos,
    all: Nanos,
    all_spent_ran: f64,
    observed: Duration,
) -> f64 {
    let busiest = busiest.0.max(1) as f64;
    let at_once = all_spent_ran / busiest / (observed.as_secs_f64() * 1e9).max(1.0);
    (all.0 as f64 / busiest / at_once.max(1.0)).max(1.0)
}

/// Calls a second of the busiest thread while it is observed, by its weight, and what is known of them from earlier rungs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Rates {
    /// Outermost launches.
    launches: f64,
    /// Calls within others that are left at entry, without the launches that runtime launches make.
    nested: f64,
    asyncs: f64,
    waits: f64,
    /// Queries for one other call; known while they are observed.
    queries: f64,
    /// Share of launches by the runtime, and whether each calls the driver; known while both are observed.
    runtime_share: f64,
    nests: bool,
    /// Share of the hits of a class that are single-stepped.
    stepped: [f64; LoadClass::COUNT],
}

/// The state of the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CallBudget {
    rung: Rung,
    rates: Rates,
    /// Consecutive windows in which more could be observed, and how many it takes.
    reliefs: u32,
    relief_windows: u32,
    /// Windows since more was observed again.
    tried: u32,
    /// Seconds spent over the budget, not saved yet.
    overspent: f64,
}

impl Default for CallBudget {
    fn default() -> Self {
        Self {
            rung: Rung::Full,
            rates: Rates::default(),
            reliefs: 0,
            relief_windows: RELIEF_WINDOWS,
            tried: TRIED,
            overspent: 0.0,
        }
    }
}

impl CallBudget {
    /// The current rung.
    pub(crate) const fn rung(&self) -> Rung {
        self.rung
    }

    /// Returns true if the driver's probes see every runtime launch.
    pub(crate) const fn nests(&self) -> bool {
        self.rates.nests
    }

    /// Returns true if the process makes so many asynchronous calls that it is worthwhile to change their probes for each slice.
    pub(crate) fn makes_asyncs(&self) -> bool {
        self.rates.asyncs > self.rates.launches * FEW
    }

    /// Share of its busiest thread's time that probes take while calls are counted.
    pub(crate) fn counting_load(&self, cost: HitCost) -> f64 {
        self.rates.load(Rung::AsyncsSampled, cost)
    }

    /// Evaluates a window; without limits everything is timed.
    pub(crate) fn evaluate(
        &mut self,
        window: &Window,
        cost: HitCost,
        limits: Option<Limits>,
    ) -> Rung {
        let Some(limits) = limits else {
            *self = Self { rates: self.rates, ..Self::default() };
            return self.rung;
        };
        self.measure(window);
        let rates = self.rates;
        let fits = |rung| rates.load(rung, cost) <= limits.of(rung) * RELIEF;
        let most = self.rungs().find(|&rung| fits(rung));
        let relieved = most.is_some_and(|rung| rung.rank() < self.rung.rank());
        self.spend(window, limits);
        self.tried = (self.tried + 1).min(TRIED);
        self.reliefs = if relieved { self.reliefs + 1 } else { 0 };
        if self.is_strained(cost, limits) {
            self.step_down(cost, limits);
        } else if let Some(rung) = most.filter(|_| relieved && self.reliefs >= self.relief_windows)
        {
            (self.reliefs, self.tried) = (0, 0);
            self.rung = rung;
        } else if matches!(self.rung, Rung::PartTime(_)) {
            self.rung = self.part_time(cost, limits);
        }
        self.rung
    }

    /// Evaluates a window that has not ended as if it would bring no more hits than those of the observed time. What they took is
    /// accounted for once it has ended.
    pub(crate) fn anticipate(&mut self, window: &Window, cost: HitCost, limits: Limits) -> Rung {
        self.measure(&Window { observed: window.elapsed, ..*window });
        if self.is_strained(cost, limits) {
            self.step_down(cost, limits);
        }
        if matches!(self.rung, Rung::PartTime(_)) {
            self.measure(window);
            let mut after = *self;
            after.spend(window, limits);
            self.rung = after.part_time(cost, limits);
        }
        self.rung
    }

    /// Returns true if probes take too much at the present rung. The load at a share says nothing: the share was chosen for it.
    fn is_strained(&self, cost: HitCost, limits: Limits) -> bool {
        !matches!(self.rung, Rung::PartTime(_))
            && self.rates.load(self.rung, cost) > limits.of(self.rung)
    }

    fn step_down(&mut self, cost: HitCost, limits: Limits) {
        let again = (self.relief_windows * 2).min(MOST_RELIEF_WINDOWS);
        self.relief_windows = if self.tried < TRIED { again } else { RELIEF_WINDOWS };
        let fits = |rung| self.rates.load(rung, cost) <= limits.of(rung);
        let next = self.rungs().find(|&rung| fits(rung));
        self.rung = next.unwrap_or_else(|| self.part_time(cost, limits));
    }

    /// Returns the rung at which calls are observed for the share of the time that the rest of the budget allows.
    fn part_time(&self, cost: HitCost, limits: Limits) -> Rung {
        let waits = self.rates.waits_load(cost);
        let available = limits.budget * (1.0 - CHANGE_SHARE) - waits;
        let saved = (self.overspent / REPAID_IN).min(available * MOST_SAVED).max(0.0);
        let share = (available - saved) / (self.counting_load(cost) - waits).max(f64::EPSILON);
        Rung::PartTime(share.clamp(LEAST_SHARE, MOST_SHARE))
    }

    /// Accounts for a window that was observed too briefly to say more.
    pub(crate) fn account(&mut self, window: &Window, limits: Option<Limits>) {
        if let Some(limits) = limits {
            self.spend(window, limits);
        }
    }

    /// Accounts for what probes took in a window.
    fn spend(&mut self, window: &Window, limits: Limits) {
        let spent = window.weight * f64::from(window.load.spent_ns) / 1e9;
        let limit = limits.of(self.rung) * window.elapsed.as_secs_f64();
        let over =
            if matches!(self.rung, Rung::PartTime(_)) { spent } else { (spent - limit).max(0.0) };
        let repaid = limits.budget * (1.0 - CHANGE_SHARE) * window.elapsed.as_secs_f64();
        let overspent = (self.overspent + over).min(limits.budget * REPAID_IN);
        self.overspent = (overspent - repaid).max(0.0);
    }

    /// Evaluates a window at a fixed rung.
    pub(crate) fn pin(&mut self, window: &Window, rung: Rung) -> Rung {
        self.measure(window);
        self.rung = rung;
        rung
    }

    fn measure(&mut self, window: &Window) {
        let LoadRecord { timed, counted, stepped, .. } = window.load;
        let hits = |class: LoadClass| {
            let index = class as usize;
            f64::from(timed[index]) + f64::from(counted[index])
        };
        let a_second = |hits: f64| match window.observed.as_secs_f64() {
            seconds if seconds > 0.0 => window.weight * hits / seconds,
            _ => 0.0,
        };
        let (runtime, launches) =
            (hits(LoadClass::Runtime), hits(LoadClass::Runtime) + hits(LoadClass::Driver));
        let is_part_time = matches!(self.rung, Rung::PartTime(_));
        let rates = &mut self.rates;
        let follow = |rate: &mut f64, hits: f64| {
            let now = a_second(hits);
            *rate = if is_part_time { now.max(*rate * DECAY) } else { now };
        };
        follow(&mut rates.launches, launches);
        follow(&mut rates.asyncs, hits(LoadClass::Async));
        // These are observed all the time.
        rates.waits = match window.elapsed.as_secs_f64() {
            seconds if seconds > 0.0 => window.weight * hits(LoadClass::Wait) / seconds,
            _ => 0.0,
        };
        let mut nested = hits(LoadClass::Nested);
        if self.rung.rank() < Rung::DriverOnly.rank() && launches > 0.0 {
            rates.runtime_share = runtime / launches;
            rates.nests = runtime > 0.0 && nested >= runtime * ALL_NESTED;
            nested -= if rates.nests { runtime } else { 0.0 };
        }
        follow(&mut rates.nested, nested);
        if self.rung.has_queries() {
            let others = launches + hits(LoadClass::Async) + hits(LoadClass::Wait);
            rates.queries = hits(LoadClass::Query) / others.max(1.0);
        }
        // Calls within others are nearly all the driver's.
        let nested = hits(LoadClass::Nested);
        for &class in LoadClass::ALL {
            let of = if class == LoadClass::Nested { LoadClass::Driver } else { class };
            let all = hits(of) + if of == LoadClass::Driver { nested } else { 0.0 };
            if all > 0.0 {
                rates.stepped[class as usize] = (f64::from(stepped[of as usize]) / all).min(1.0);
            }
        }
    }

    /// The rungs that observe calls all the time.
    fn rungs(&self) -> impl Iterator<Item = Rung> + use<> {
        let driver_only = self.rates.nests.then_some(Rung::DriverOnly);
        [Rung::Full, Rung::WithoutQueries]
            .into_iter()
            .chain(driver_only)
            .chain([Rung::Sampled, Rung::AsyncsSampled])
    }
}

impl Limits {
    /// Returns these limits, without the one for counting where the probes of a process cannot be removed: a probe that is attached
    /// and ignored costs two thirds of one that counts.
    pub(crate) fn where_probes_go(self, go: bool) -> Self {
        Self { counting: if go { self.counting } else { f64::INFINITY }, ..self }
    }

    /// Returns the share that probes may take at a rung.
    fn of(self, rung: Rung) -> f64 {
        if rung == Rung::AsyncsSampled { self.counting.max(self.budget) } else { self.budget }
    }
}

impl Rates {
    /// Seconds that a hit takes when one in so many is timed, 0 for none.
    fn hit(&self, class: LoadClass, one_in: f64, cost: HitCost) -> f64 {
        let (timed, counted) = (cost.timed.as_secs_f64(), cost.counted.as_secs_f64());
        let sampled = if one_in > 0.0 { (timed - counted) / one_in } else { 0.0 };
        let stepped = self.stepped[class as usize] * cost.stepped.as_secs_f64();
        counted + sampled + stepped
    }

    fn waits_load(&self, cost: HitCost) -> f64 {
        self.waits * self.hit(LoadClass::Wait, 1.0, cost)
    }

    /// Share of the thread's time that probes take at a rung while calls are observed.
    fn load(&self, rung: Rung, cost: HitCost) -> f64 {
        let asyncs = if rung.samples_asyncs() { ASYNC_ONE_IN as f64 } else { 1.0 };
        let mut others = self.waits_load(cost)
            + self.asyncs * self.hit(LoadClass::Async, asyncs, cost)
            + self.nested * self.hit(LoadClass::Nested, 0.0, cost);
        if rung.has_queries() {
            let queries = self.queries * (self.launches + self.asyncs + self.waits);
            others += queries * self.hit(LoadClass::Query, 1.0, cost);
        }
        let one_in = if rung.samples_launches() { f64::from(ONE_IN) } else { 1.0 };
        let by_driver = self.nests && rung.rank() >= Rung::DriverOnly.rank();
        let runtime = if by_driver { 0.0 } else { self.runtime_share };
        let nested =
            if self.nests { runtime * self.hit(LoadClass::Nested, 0.0, cost) } else { 0.0 };
        let launch = runtime * self.hit(LoadClass::Runtime, one_in, cost)
            + (1.0 - runtime) * self.hit(LoadClass::Driver, one_in, cost)
            + nested;
        self.launches * launch + others
    }
}

#[cfg(test)]
mod tests;
