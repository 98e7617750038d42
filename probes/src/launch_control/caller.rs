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
        if let Presence::Observed { since, launches: before, until: None } = self.presence
            && !matches!(self.budget.rung(), Rung::PartTime(_))
        {
            if let Some(before) = before {
                self.slices.add(now, now - since, launches.wrapping_sub(before), 1.0);
            }
            self.presence =
                Presence::Observed { since: now, launches: Some(launches), until: None };
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
