//! The chains of the merged file: each once, also where several inputs or runs of recorders have it.

use std::collections::{BTreeMap, BTreeSet};

use gpucause_engine::chain::{Chain, Effect};

use crate::trace::NodeRef;

/// Before the times in a fix, which the engine of one recording added up.
const OF_CHAIN: &str = "In all of this chain ";
/// In the chain of several recordings.
const OF_LAST: &str = "All times in this fix are of the last recording only, in which ";

/// The last version of each chain, by id: each file of one exporter has all of its chains.
#[derive(Debug, Default)]
pub(super) struct Chains(BTreeMap<(NodeRef, String), Found>);

impl Chains {
    /// Adds a chain of an input.
    pub(super) fn add(&mut self, node: NodeRef, input: usize, chain: Chain) {
        let key = (node, chain.id.clone());
        match self.0.get_mut(&key) {
            Some(known) => {
                known.inputs.insert(input);
                if !is_before(&chain, &known.chain) {
                    known.chain = chain;
                }
            }
            None => {
                self.0.insert(key, Found { chain, inputs: [input].into() });
            }
        }
    }

    /// The chains: a cause of a process once for all runs of recorders.
    pub(super) fn one_each(self) -> impl Iterator<Item = (NodeRef, Chain)> {
        let mut all: Vec<_> = self.0.into_iter().map(|((node, _), found)| (node, found)).collect();
        all.sort_by(|(_, a), (_, b)| a.chain.first_seen.total_cmp(&b.chain.first_seen));
        let mut whole: Vec<(NodeRef, Found)> = Vec::with_capacity(all.len());
        for (node, own) in all {
            let mut known = whole.iter_mut().rev().filter(|(known, _)| *known == node);
            match known.find(|(_, known)| known.is_continued_by(&own)) {
                Some((_, known)) => {
                    known.inputs.extend(&own.inputs);
                    let whole = known.chain.clone().continued_by(own.chain);
                    let fix = whole.fix.replacen(OF_CHAIN, OF_LAST, 1);
                    known.chain = Chain { fix, ..whole };
                }
                None => whole.push((node, own)),
            }
        }
        whole.into_iter().map(|(node, own)| (node, own.chain))
    }
}

/// A chain and the inputs that have it.
#[derive(Debug)]
struct Found {
    chain: Chain,
    inputs: BTreeSet<usize>,
}

impl Found {
    /// Returns true if another recorder found the same cause in the same process: an engine itself keeps the chains of one input apart.
    fn is_continued_by(&self, other: &Self) -> bool {
        let identity = |Chain { cause, effect, victim, .. }: &Chain| {
            (*cause, *effect == Effect::Hang, victim.pid, victim.started)
        };
        let is_known = self.chain.victim.started.is_some();
        is_known
            && identity(&self.chain) == identity(&other.chain)
            && self.inputs.is_disjoint(&other.inputs)
    }
}

/// Returns true if a version of a chain is older than another. One that has ended is the last, and its time only grows.
fn is_before(own: &Chain, other: &Chain) -> bool {
    let has_ended = |chain: &Chain| chain.ongoing != Some(true);
    let of_time = own.attributed_seconds().total_cmp(&other.attributed_seconds());
    let last_seen = own.last_seen.total_cmp(&other.last_seen);
    last_seen.then(has_ended(own).cmp(&has_ended(other))).then(of_time).is_lt()
}
