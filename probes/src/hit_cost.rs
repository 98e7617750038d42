//! Cost of a call-probe hit to a thread. The daemon measures it with its own calls, in a tight loop and after other work; in a
//! program it lies between the two or beyond, by how long the kernel's program takes there to find the thread's record.

use gpucause_abi::Nanos;
use gpucause_abi::record::LoadRecord;

/// Default where nothing could be measured.
pub(crate) const TYPICAL: HitCost =
    HitCost { timed: Nanos(2_000), counted: Nanos(1_200), stepped: Nanos(8_000) };
/// The times of lookups in both cases must differ by this part to say something.
const LEAST_DIFFERENCE: f64 = 0.1;
/// Most that is extrapolated beyond what a hit costs after other work, as a share of the difference.
const MOST_COLDNESS: f64 = 1.25;
/// Weight of the last window.
const LAST: f64 = 0.3;

/// The time that a hit costs a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HitCost {
    /// Entry and return.
    pub(crate) timed: Nanos,
    /// A call that the program leaves at entry.
    pub(crate) counted: Nanos,
    /// Extra cost of either where the kernel single-steps the first instruction.
    pub(crate) stepped: Nanos,
}

/// That in a tight loop, and after other work, whose data fills the caches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HitCosts {
    pub(crate) warm: HitCost,
    pub(crate) cold: HitCost,
    /// How long the kernel's program takes to find the thread's record in both cases, in nanoseconds, where it was measured.
    pub(crate) lookups: Option<(f64, f64)>,
}

impl Default for HitCosts {
    fn default() -> Self {
        Self { warm: TYPICAL, cold: TYPICAL, lookups: None }
    }
}

impl HitCosts {
    /// Returns costs that are the same everywhere.
    pub(crate) const fn of((timed, counted): (Nanos, Nanos)) -> Self {
        let cost = HitCost { timed, counted, stepped: TYPICAL.stepped };
        Self { warm: cost, cold: cost, lookups: None }
    }

    /// Returns the cost of a hit where the caches are so cold: 0 as in a tight loop, 1 as after other work.
    fn at(&self, coldness: f64) -> HitCost {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let between = |cost: fn(&HitCost) -> Nanos| {
            let (warm, cold) = (cost(&self.warm).0 as f64, cost(&self.cold).0 as f64);
            Nanos((cold - warm).max(0.0).mul_add(coldness, warm) as u64)
        };
        HitCost {
            timed: between(|cost| cost.timed),
            counted: between(|cost| cost.counted),
            stepped: between(|cost| cost.stepped),
        }
    }

    /// Returns the time that hits took of a thread to which the programs charged their costs in a tight loop.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    pub(crate) fn spent(&self, charged_ns: u32, cost: HitCost) -> u32 {
        (f64::from(charged_ns) * cost.counted.0 as f64 / self.warm.counted.0.max(1) as f64) as u32
    }

    /// How cold the caches are where so many lookups took so many nanoseconds.
    fn coldness(&self, lookups: f64, nanos: f64) -> Option<f64> {
        let (warm, cold) =
            self.lookups.filter(|(warm, cold)| cold - warm > warm * LEAST_DIFFERENCE)?;
        let own = (lookups > 0.0).then_some(nanos / lookups)?;
        Some(((own - warm) / (cold - warm)).clamp(0.0, MOST_COLDNESS))
    }
}

/// How cold the caches of a program are; as after other work until it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Coldness(Option<f64>);

impl Coldness {
    /// Follows what is known of a window. Returns what a hit costs in the program.
    pub(crate) fn follow(&mut self, load: &LoadRecord, costs: &HitCosts) -> HitCost {
        if let Some(now) = costs.coldness(load.lookups.into(), load.lookup_ns.into()) {
            let before = self.0.unwrap_or(now);
            self.0 = Some((now - before).mul_add(LAST, before));
        }
        self.cost(costs)
    }

    /// Returns the cost of a hit in the program.
    pub(crate) fn cost(self, costs: &HitCosts) -> HitCost {
        costs.at(self.0.unwrap_or(1.0))
    }
}

/// Time that all hits took of threads so far: each costs as much as its program's caches were cold when it came.
#[derive(Debug, Default)]
pub(crate) struct SpentTime {
    seen: Hits,
    /// How cold the caches were at the last hits for which that is known.
    coldness: Option<f64>,
    total: Nanos,
}

/// Hits so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hits {
    pub(crate) all: u64,
    pub(crate) left_at_entry: u64,
    pub(crate) single_stepped: u64,
    /// Hits with a measured lookup, and the nanoseconds that these took.
    pub(crate) lookups: (u64, u64),
}

impl SpentTime {
    /// Adds what the hits since the last call cost. Returns the sum.
    pub(crate) fn follow(&mut self, hits: Hits, costs: &HitCosts) -> Nanos {
        let since = |of: fn(&Hits) -> u64| of(&hits).saturating_sub(of(&self.seen));
        let (lookups, nanos) = (since(|own| own.lookups.0), since(|own| own.lookups.1));
        self.coldness = costs.coldness(lookups as f64, nanos as f64).or(self.coldness);
        let cost = costs.at(self.coldness.unwrap_or(1.0));
        let left = since(|own| own.left_at_entry);
        let timed = since(|own| own.all).saturating_sub(left);
        let parts = [
            (timed, cost.timed),
            (left, cost.counted),
            (since(|own| own.single_stepped), cost.stepped),
        ];
        for (hits, each) in parts {
            self.total.0 = self.total.0.saturating_add(hits.saturating_mul(each.0));
        }
        self.seen = hits;
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: HitCosts = HitCosts {
        warm: HitCost { timed: Nanos(1_000), counted: Nanos(600), stepped: Nanos(8_000) },
        cold: HitCost { timed: Nanos(2_000), counted: Nanos(1_200), stepped: Nanos(8_000) },
        lookups: Some((200.0, 400.0)),
    };

    /// Returns the cost of a counted hit after windows in which lookups took so long.
    fn counted(costs: &HitCosts, lookups: &[u32]) -> u64 {
        let mut coldness = Coldness::default();
        for &ns in lookups {
            let load = LoadRecord { lookup_ns: ns * 10, lookups: 10, ..LoadRecord::default() };
            coldness.follow(&load, costs);
        }
        coldness.follow(&LoadRecord::default(), costs).counted.0
    }

    #[test]
    fn a_hit_costs_what_it_costs_after_other_work_until_it_is_known_better() {
        assert_eq!(counted(&COSTS, &[]), 1_200);
        assert_eq!(counted(&HitCosts { lookups: Some((200.0, 205.0)), ..COSTS }, &[200]), 1_200);
    }

    #[test]
    fn hits_took_what_each_costs_in_caches_as_cold_as_they_were() {
        let mut spent = SpentTime::default();
        let mut hits = Hits { all: 10, left_at_entry: 4, ..Hits::default() };
        assert_eq!(spent.follow(hits, &COSTS).0, 6 * 2_000 + 4 * 1_200);
        (hits.all, hits.lookups) = (20, (5, 5 * 200));
        assert_eq!(spent.follow(hits, &COSTS).0, 16_800 + 10 * 1_000);
        (hits.all, hits.single_stepped) = (30, 1);
        assert_eq!(spent.follow(hits, &COSTS).0, 26_800 + 10 * 1_000 + 8_000);
        assert_eq!(spent.follow(hits, &COSTS).0, 44_800);
    }

    #[test]
    fn a_hit_costs_more_where_lookups_take_longer() {
        assert_eq!(counted(&COSTS, &[150]), 600);
        assert_eq!(counted(&COSTS, &[300]), 900);
        assert_eq!(counted(&COSTS, &[900]), 1_350);
        let later = counted(&COSTS, &[[200].repeat(9), [400].repeat(9)].concat());
        assert!((1_150..1_200).contains(&later), "{later}");
    }
}
