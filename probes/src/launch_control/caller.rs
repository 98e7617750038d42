//! A process that makes calls: how it is observed, and what is known of its rate.

use std::time::{Duration, Instant};

use gpucause_abi::record::{LaunchModeRecord, LoadRecord, SHED_ASYNCS, SHED_QUERIES};
use gpucause_abi::{Nanos, Tgid};

use super::budget::{CallBudget, Window, as_one_thread};
use super::launch_layer::LaunchLayer;
use super::slices::{Slices, Stretch};
use crate::hit_cost::{Coldness, HitCost, HitCosts};
use crate::launch_states::{ONE_IN, Rung};
use crate::reader::Load;

/// Observation of a process's calls: active or paused.
#[derive(Debug, Clone, Copy)]
pub(super) enum Presence {
    /// Observed since then, when so many launches had been made, if that is known; without an end permanently.
    Observed {
        since: Instant,
        launches: Option<u32>,
        until: Option<Instant>,
    },
    Paused {
        until: Instant,
    },
}

/// A process that makes calls.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) tgid: Tgid,
    pub(super) budget: CallBudget,
    pub(super) coldness: Coldness,
    pub(super) presence: Presence,
    /// The pause after this slice.
    pub(super) pause: Duration,
    pub(super) stretch: Stretch,
    pub(super) slices: Slices,
    /// Odd while paused.
    pub(super) turn: u32,
    pub(super) layer: LaunchLayer,
    /// Observed time of this window, up to the last pause.
    pub(super) observed: Duration,
}

impl Caller {
    pub(super) fn new(load: &Load, since: Instant) -> Self {
        Self {
            tgid: load.tgid,
            budget: CallBudget::default(),
            coldness: Coldness::default(),
            presence: Presence::Observed { since, launches: None, until: None },
            pause: Duration::ZERO,
            stretch: Stretch::default(),
            slices: Slices::default(),
            turn: 0,
            layer: LaunchLayer::Runtime,
            observed: Duration::ZERO,
        }
    }

    /// Share of its thread's time that probes take while calls are counted.
    pub(super) fn taken(&self, costs: &HitCosts) -> f64 {
        self.budget.counting_load(self.coldness.cost(costs))
    }

    /// A window of so many hits, if any, and what one costs.
    pub(super) fn window(
        &mut self,
        load: Option<&Load>,
        (elapsed, observed): (Duration, Duration),
        costs: &HitCosts,
    ) -> (Window, HitCost) {
        let hits = load.map(|load| load.hits).unwrap_or_default();
        let cost = self.coldness.follow(&hits, costs);
        let busiest = Nanos(hits.spent_ns.into());
        let weight = load.map_or(1.0, |load| {
            as_one_thread(busiest, load.all_spent, load.all_spent_ran, observed)
        });
        let spent_ns = costs.spent(hits.spent_ns, cost);
        (Window { elapsed, observed, load: LoadRecord { spent_ns, ..hits }, weight }, cost)
    }

    /// A window in which it may have been observed all the time is a slice without a pause.
    pub(super) fn end_window(&mut self, now: Instant, launches: u32) {
        if matches!(self.presence, Presence::Observed { until: None, .. })
            && !matches!(self.budget.rung(), Rung::PartTime(_))
        {
            self.end_slice(now, launches);
            self.presence =
                Presence::Observed { since: now, launches: Some(launches), until: None };
        }
    }

    /// Ends a slice: it stands for the share of the time that was chosen for it, or without an end for itself alone.
    pub(super) fn end_slice(&mut self, now: Instant, launches: u32) {
        if let Presence::Observed { since, launches: Some(before), until } = self.presence {
            let share = if until.is_some() { self.stretch.share() } else { 1.0 };
            self.slices.add(now, now - since, launches.wrapping_sub(before), share);
        }
    }

    /// How the programs observe its calls; `None` is in full. The turn stays, so that no gap spans a pause.
    pub(super) fn mode(&self) -> Option<LaunchModeRecord> {
        let rung = self.budget.rung();
        let mode = LaunchModeRecord {
            turn: self.turn,
            sample_every: if rung.samples_launches() { ONE_IN } else { 0 },
            driver_only: self.layer.driver_only(),
            shed: if rung.has_queries() { 0 } else { SHED_QUERIES }
                | if rung.samples_asyncs() { SHED_ASYNCS } else { 0 },
        };
        (rung != Rung::Full || self.turn != 0).then_some(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpucause_abi::ProcId;

    use crate::launch_control::slices::{Random, mean_length};

    #[test]
    fn what_was_observed_all_the_time_stands_for_itself_after_partial_observation_as_well() {
        const SHARE: f64 = 0.25;
        const A_SECOND: f64 = 1_000.0;
        let hits = LoadRecord::default();
        let load = Load {
            id: ProcId(1),
            tgid: Tgid(1),
            parent: None,
            window: 0,
            hits,
            all_spent: Nanos(0),
            all_spent_ran: 0.0,
            launches: 0,
        };
        let (mut now, mut launches) = (Instant::now(), 0_u32);
        let mut caller = Caller::new(&load, now);
        let mut random = Random::new(1);
        let mut observe = |caller: &mut Caller, seconds: f64, a_second: f64, ends: bool| {
            let length = Duration::from_secs_f64(seconds);
            let until = ends.then(|| now + length);
            caller.presence = Presence::Observed { since: now, launches: Some(launches), until };
            (now, launches) = (now + length, launches + (seconds * a_second) as u32);
            caller.end_slice(now, launches);
            now += caller.pause;
        };
        let mean = mean_length(SHARE, 0.03, Duration::ZERO, 1);
        for _ in 0..60 {
            let (slice, pause) = caller.stretch.next(SHARE, mean, &mut random);
            caller.pause = pause;
            observe(&mut caller, slice.as_secs_f64(), A_SECOND, true);
        }
        observe(&mut caller, 1.0, 2.0 * A_SECOND, false);
        let rate = caller.slices.rate(0.0).map(|rate| rate.per_second);
        assert!(rate.is_some_and(|rate| rate < 1.2 * A_SECOND), "{rate:?}");
    }
}
