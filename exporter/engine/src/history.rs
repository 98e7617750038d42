//! What is remembered of a process beyond the snapshots: its usual pace, and how its memory grew.

use std::collections::VecDeque;

use gpucause_abi::Nanos;
use gpucause_abi::op::LaunchOps;
use gpucause_abi::record::REASONS;
use gpucause_abi::state::{Reason, State};

use crate::delta::Delta;
use crate::effect::{Phases, ratio};

/// Windows that the usual pace is taken from.
const PACES: usize = 60;
/// Windows that must have passed before there is a usual pace.
const MIN_PACES: usize = 5;
/// Looks at device memory that are kept at most.
const LOOKS: usize = 512;

/// A window's pace.
#[derive(Debug, Clone, Copy)]
struct Pace {
    launches_per_second: f64,
    offcpu: [f64; REASONS],
}

/// What is remembered of one process.
#[derive(Debug, Default)]
pub(crate) struct History {
    paces: VecDeque<Pace>,
    /// When, and how many bytes were live.
    live: VecDeque<(Nanos, u64)>,
}

impl History {
    /// The usual rate of launches, the median over the past windows, when there are enough.
    pub(crate) fn usual_launch_rate(&self) -> Option<f64> {
        (self.paces.len() >= MIN_PACES)
            .then(|| median(self.paces.iter().map(|pace| pace.launches_per_second)))
            .filter(|&rate| rate > 0.0)
    }

    /// The usual share of time that a feeding thread was off the CPU outside synchronisation, by reason.
    pub(crate) fn usual_offcpu(&self) -> [f64; REASONS] {
        let mut usual = [0.0; REASONS];
        for (index, share) in usual.iter_mut().enumerate() {
            *share = median(self.paces.iter().map(|pace| pace.offcpu[index]));
        }
        usual
    }

    /// Live bytes at each look of the last `span`, oldest first; empty when the process was not watched for as long.
    pub(crate) fn live_over(&self, now: Nanos, span: Nanos) -> Vec<u64> {
        let from = now.less(span);
        match self.live.front() {
            Some(&(first, _)) if first <= from => {
                self.live.iter().filter(|&&(at, _)| at >= from).map(|&(_, bytes)| bytes).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Remembers a window. Windows in which a chain was seen are no measure of what is usual.
    pub(crate) fn remember(
        &mut self,
        now: Nanos,
        delta: &Delta,
        ops: &LaunchOps,
        (live, healthy): (u64, bool),
    ) {
        push(&mut self.live, (now, live), LOOKS);
        if !healthy || delta.wall.0 == 0 {
            return;
        }
        let mut offcpu = [0.0; REASONS];
        if let Some(thread) = delta.victim(|thread| thread.wall) {
            for (share, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
                let time = thread.in_state(State::Off(reason), |p| Phases::Feeding.contain(p));
                *share = ratio(time, thread.wall);
            }
        }
        let launches_per_second = delta.launches(ops) as f64 / delta.wall.as_secs_f64();
        push(&mut self.paces, Pace { launches_per_second, offcpu }, PACES);
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, limit: usize) {
    if queue.len() == limit {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
