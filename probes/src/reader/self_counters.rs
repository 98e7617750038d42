//! Counters of the programs about themselves, and what hits of call probes took.

use gpucause_abi::record::SelfCounter;
use libbpf_rs::{MapCore as _, MapFlags};

use super::{Map, ReadError, Reader, failed};
use crate::hit_cost::{HitCosts, Hits, SpentTime};
use crate::thread_records::CallTotals;

impl Reader {
    /// Sets what hits of call probes cost.
    pub(crate) fn set_costs(&self, costs: HitCosts) {
        *self.spent.lock() = Some((costs, SpentTime::default()));
    }

    /// Returns all counters; what call probes cost is among them where the cost of a hit is known.
    pub(super) fn counters(&self) -> Result<Vec<(SelfCounter, u64)>, ReadError> {
        let read = SelfCounter::ALL.iter().map(|&counter| Ok((counter, self.total(counter)?)));
        let mut counters = read.collect::<Result<Vec<_>, ReadError>>()?;
        let of = |wanted| counters.iter().find(|own| own.0 == wanted).map_or(0, |own| own.1);
        let left_at_entry = of(SelfCounter::LeftAtEntry);
        let hits = Hits {
            timed: of(SelfCounter::HitCall).saturating_sub(left_at_entry),
            left_at_entry,
            single_stepped: of(SelfCounter::SingleStepped),
            lookups: of(SelfCounter::Lookups),
            lookup_ns: of(SelfCounter::LookupNs),
        };
        let spent = self.spent.lock().as_mut().map(|(costs, spent)| spent.follow(hits, costs));
        counters.retain_mut(|(counter, count)| {
            if *counter == SelfCounter::CostCall {
                *count = spent.map_or(0, |spent| spent.0);
            }
            *counter != SelfCounter::CostCall || spent.is_some()
        });
        Ok(counters)
    }

    /// Resets all counters.
    pub(super) fn reset_counters(&self) -> Result<(), ReadError> {
        for &counter in SelfCounter::ALL {
            let key = u32::from(counter as u8).to_ne_bytes();
            let Some(mut values) = self.self_counter(counter)? else { continue };
            values.iter_mut().for_each(|value| value.fill(0));
            let Map { name, handle, .. } = &self.self_counters;
            handle.update_percpu(&key, &values, MapFlags::ANY).map_err(failed(name))?;
        }
        if let Some((_, spent)) = &mut *self.spent.lock() {
            *spent = SpentTime::default();
        }
        Ok(())
    }

    /// Returns the totals of calls.
    pub(crate) fn call_totals(&self) -> Result<CallTotals, ReadError> {
        // In this order: what is lost is hit before.
        let without_record = self.total(SelfCounter::NoRecord)?;
        Ok(CallTotals { hits: self.total(SelfCounter::HitCall)?, without_record })
    }

    /// Over all CPUs.
    fn total(&self, counter: SelfCounter) -> Result<u64, ReadError> {
        let per_cpu = self.self_counter(counter)?.unwrap_or_default();
        let values = per_cpu.iter().filter_map(|bytes| bytes.first_chunk().copied());
        Ok(values.map(u64::from_ne_bytes).sum())
    }

    /// A counter, by CPU.
    fn self_counter(&self, counter: SelfCounter) -> Result<Option<Vec<Vec<u8>>>, ReadError> {
        let Map { name, handle, .. } = &self.self_counters;
        let key = u32::from(counter as u8).to_ne_bytes();
        handle.lookup_percpu(&key, MapFlags::ANY).map_err(failed(name))
    }
}
