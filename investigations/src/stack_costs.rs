//! Time spent in calls, by call stack.

use std::collections::HashMap;
use std::sync::Arc;

use gpucause_trace::recording::{Call, Event, Kind, ProcessIndex, StackId};

/// Calls of one function of one process under one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

impl Cost {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Stack, process and function.
pub(crate) type Origin = (StackId, ProcessIndex, Arc<str>);

#[derive(Debug, Default)]
pub(crate) struct StackCosts(HashMap<Origin, Cost>);

impl StackCosts {
    /// Adds a call that has a stack.
    pub(crate) fn add(&mut self, event: &Event) {
        let (Kind::Call(Call { op, .. }), Some(stack)) = (&event.kind, event.stack) else { return };
        let ns = event.duration_ns;
        let cost = self.0.entry((stack, event.process, Arc::clone(op))).or_default();
        cost.merge(&Cost { count: 1, sum_ns: ns, max_ns: ns });
    }

    /// Adds up the costs of several processes under the one that stands for them; leaves out processes without such a one.
    pub(crate) fn merged(self, same: impl Fn(ProcessIndex) -> Option<ProcessIndex>) -> Self {
        let mut merged = Self::default();
        for ((stack, process, op), cost) in self.0 {
            if let Some(process) = same(process) {
                merged.0.entry((stack, process, op)).or_default().merge(&cost);
            }
        }
        merged
    }

    /// By total time, the longest first.
    pub(crate) fn ranked(self) -> Vec<(Origin, Cost)> {
        let mut costs: Vec<_> = self.0.into_iter().collect();
        costs.sort_by(|a, b| b.1.sum_ns.cmp(&a.1.sum_ns).then_with(|| a.0.cmp(&b.0)));
        costs
    }
}
