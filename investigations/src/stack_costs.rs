//! What calls cost under each stack.

use std::collections::HashMap;
use std::sync::Arc;

use crate::recording::{Call, Event, Kind, ProcessIndex, StackId};

/// Calls of one function of one process under one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

/// Under which stack, by which process, which function.
pub(crate) type Origin = (StackId, ProcessIndex, Arc<str>);

/// Of all stacks.
#[derive(Debug, Default)]
pub(crate) struct StackCosts(HashMap<Origin, Cost>);

impl StackCosts {
    /// Takes a call in; what has no stack is left alone.
    pub(crate) fn add(&mut self, event: &Event) {
        let (Kind::Call(Call { op, .. }), Some(stack)) = (&event.kind, event.stack) else { return };
        let cost = self.0.entry((stack, event.process, Arc::clone(op))).or_default();
        cost.count += 1;
        cost.sum_ns = cost.sum_ns.saturating_add(event.duration_ns);
        cost.max_ns = cost.max_ns.max(event.duration_ns);
    }

    /// Those that cost most time first.
    pub(crate) fn ranked(self) -> Vec<(Origin, Cost)> {
        let mut costs: Vec<_> = self.0.into_iter().collect();
        costs.sort_by(|((stack, process, op), cost), ((other, others, others_op), others_cost)| {
            let by_cost = others_cost.sum_ns.cmp(&cost.sum_ns);
            by_cost.then_with(|| (stack, process, op).cmp(&(other, others, others_op)))
        });
        costs
    }
}
