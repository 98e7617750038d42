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

/// Time that all hits took of threads so far: those between two calls cost as much as caches were cold meanwhile, on average.
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
    pub(crate) timed: u64,
    pub(crate) left_at_entry: u64,
    pub(crate) single_stepped: u64,
    /// Hits with a measured lookup, and the nanoseconds that these took.
    pub(crate) lookups: u64,
    pub(crate) lookup_ns: u64,
}

impl Hits {
    /// Combines each number with that of `other`.
    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            timed: of(self.timed, other.timed),
            left_at_entry: of(self.left_at_entry, other.left_at_entry),
            single_stepped: of(self.single_stepped, other.single_stepped),
            lookups: of(self.lookups, other.lookups),
            lookup_ns: of(self.lookup_ns, other.lookup_ns),
        }
    }
}

impl SpentTime {
    /// Adds what the hits since the last call cost. Returns the sum. Hits that are left at entry are known late, and count as timed until
    /// then: fewer timed ones than before are no new ones.
    pub(crate) fn follow(&mut self, hits: Hits, costs: &HitCosts) -> Nanos {
        let new = hits.with(&self.seen, u64::saturating_sub);
        self.seen = hits.with(&self.seen, u64::max);
        self.coldness = costs.coldness(new.lookups as f64, new.lookup_ns as f64).or(self.coldness);
        let cost = costs.at(self.coldness.unwrap_or(1.0));
        let parts = [
            (new.timed, cost.timed),
            (new.left_at_entry, cost.counted),
            (new.single_stepped, cost.stepped),
        ];
        for (hits, each) in parts {
            self.total.0 = self.total.0.saturating_add(hits.saturating_mul(each.0));
        }
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
        let mut hits = Hits { timed: 6, left_at_entry: 4, ..Hits::default() };
        assert_eq!(spent.follow(hits, &COSTS).0, 6 * 2_000 + 4 * 1_200);
        (hits.timed, hits.lookups, hits.lookup_ns) = (16, 5, 5 * 200);
        assert_eq!(spent.follow(hits, &COSTS).0, 16_800 + 10 * 1_000);
        (hits.timed, hits.single_stepped) = (26, 1);
        assert_eq!(spent.follow(hits, &COSTS).0, 26_800 + 10 * 1_000 + 8_000);
        assert_eq!(spent.follow(hits, &COSTS).0, 44_800);
    }

    #[test]
    fn hits_that_are_known_late_to_be_left_at_entry_are_no_new_timed_ones() {
        let mut spent = SpentTime::default();
        let hits = |timed, left_at_entry| Hits { timed, left_at_entry, ..Hits::default() };
        assert_eq!(spent.follow(hits(20, 0), &COSTS).0, 40_000);
        assert_eq!(spent.follow(hits(8, 32), &COSTS).0, 40_000 + 32 * 1_200);
        assert_eq!(spent.follow(hits(20, 40), &COSTS).0, 40_000 + 40 * 1_200);
        // An older reading comes late.
        assert_eq!(spent.follow(hits(8, 32), &COSTS).0, 40_000 + 40 * 1_200);
        assert_eq!(spent.follow(hits(21, 40), &COSTS).0, 42_000 + 40 * 1_200);
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
