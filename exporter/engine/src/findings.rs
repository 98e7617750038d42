//! The results of the engine.

use gpucause_abi::{Nanos, ProcId};

use crate::chain::Chain;
use crate::chain_store::ChainStore;
use crate::chain_totals::{ChainCount, Stall};

/// Results of the engine so far.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Chains, the worst first.
    pub chains: Vec<Chain>,
    /// How many there were.
    pub counts: Vec<ChainCount>,
    /// The time they cost.
    pub stalls: Vec<Stall>,
}

impl Findings {
    /// Counts the chains of a recording whose victims have a number.
    pub fn of_recorded(chains: Vec<Chain>, victim: impl Fn(&Chain) -> Option<ProcId>) -> Self {
        let mut store = ChainStore::default();
        for chain in &chains {
            let Some(process) = victim(chain) else { continue };
            store.add_count(&ChainCount::of(process, chain));
            let taken = [chain.attributed_seconds(), chain.lost_seconds];
            let [attributed, lost] = taken.map(|seconds| Nanos((seconds * 1e9).round() as u64));
            store.add_stall(&Stall::of(process, chain, (attributed, lost)));
        }
        let (counts, stalls) =
            (store.counts().cloned().collect(), store.stalls().cloned().collect());
        Self { chains, counts, stalls }
    }
}
