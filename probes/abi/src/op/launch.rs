//! Which ops count as launches: the ends of launch gaps, and what a launch tail and a launch rate are made of.

use super::OpId;
use crate::record::MAX_OPS;

const WORD: usize = u64::BITS as usize;

/// A set of ops. By default those that hand the GPU kernels to run: launches, and launches of whole graphs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LaunchOps([u64; MAX_OPS / WORD]);

impl LaunchOps {
    /// Returns true if calls of this op count.
    pub fn contains(&self, id: OpId) -> bool {
        let index = usize::from(id.0);
        self.0.get(index / WORD).is_some_and(|word| word >> (index % WORD) & 1 == 1)
    }

    /// The ops, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = OpId> + '_ {
        OpId::all().filter(|&id| self.contains(id))
    }
}

impl FromIterator<OpId> for LaunchOps {
    fn from_iter<I: IntoIterator<Item = OpId>>(ids: I) -> Self {
        let mut words = [0; MAX_OPS / WORD];
        for id in ids {
            let index = usize::from(id.0);
            if let Some(word) = words.get_mut(index / WORD) {
                *word |= 1 << (index % WORD);
            }
        }
        Self(words)
    }
}

impl Default for LaunchOps {
    fn default() -> Self {
        OpId::all().filter(|id| id.op().is_some_and(|op| op.feeds_gpu())).collect()
    }
}

impl std::fmt::Debug for LaunchOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().filter_map(OpId::op).map(|op| op.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::op_of_symbol;

    #[test]
    fn launches_of_kernels_and_graphs_count_by_default_and_copies_do_not() {
        let ops = LaunchOps::default();
        let counts = |name| ops.contains(op_of_symbol(name).unwrap());
        assert!(counts("cudaLaunchKernel") && counts("cuGraphLaunch"));
        assert!(!counts("cudaMemcpyAsync") && !counts("cudaGraphInstantiate"));
    }

    #[test]
    fn a_set_has_what_it_was_made_of_and_nothing_beyond_the_table() {
        let ops: LaunchOps = [OpId(0), OpId(63), OpId(64), OpId(u16::MAX)].into_iter().collect();
        assert_eq!(ops.iter().collect::<Vec<_>>(), [OpId(0), OpId(63), OpId(64)]);
        assert!(!ops.contains(OpId(u16::MAX)));
    }
}
