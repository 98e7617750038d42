//! The results of the engine.

use crate::chain::Chain;
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
