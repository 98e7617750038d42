//! How often a process makes CUDA graphs that it then launches hardly more often.

use gpucause_abi::op::Class;

use crate::delta::Delta;

/// Least graphs made a second.
const MIN_RATE: f64 = 1.0;
/// Launches of a graph from which on making it pays off.
const WORTH: u64 = 4;

/// Calls in some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphBuilds {
    pub(crate) captured: u64,
    pub(crate) instantiated: u64,
    pub(crate) updated: u64,
    destroyed: u64,
    pub(crate) launched: u64,
}

impl GraphBuilds {
    pub(crate) fn of(delta: &Delta<'_>) -> Self {
        let count = |wanted: fn(&str) -> bool| delta.count(Class::Graph, wanted);
        Self {
            captured: count(begins_capture),
            instantiated: count(instantiates),
            updated: count(updates),
            destroyed: count(|name| name.ends_with("GraphExecDestroy")),
            launched: count(|name| name.ends_with("GraphLaunch")),
        }
    }

    /// Graphs made: most are captured, and then instantiated, or an instantiated one is updated by them.
    pub(crate) fn made(&self) -> u64 {
        self.captured.max(self.instantiated).max(self.updated)
    }

    /// Graphs are made all the time, and launched so rarely that it does not pay off.
    pub(crate) fn is_wasteful(&self, delta: &Delta<'_>) -> bool {
        let seconds = delta.wall.as_secs_f64();
        seconds > 0.0
            && self.made() as f64 / seconds >= MIN_RATE
            && self.launched < self.made().saturating_mul(WORTH)
    }

    /// Each is launched once or so: a program that warms up keeps them for later.
    pub(crate) fn are_used_at_once(&self) -> bool {
        self.launched >= self.made().div_ceil(2)
    }

    /// They replace others, which no program does that warms up.
    pub(crate) fn replace_others(&self) -> bool {
        self.updated.max(self.destroyed) >= self.made().div_ceil(2)
    }
}

/// The operation begins a capture, as `cuStreamBeginRecaptureToGraph` does.
fn begins_capture(name: &str) -> bool {
    name.contains("StreamBeginCapture") || name.contains("StreamBeginRecapture")
}

fn instantiates(name: &str) -> bool {
    name.contains("GraphInstantiate")
}

fn updates(name: &str) -> bool {
    name.ends_with("GraphExecUpdate")
}

/// The operation makes a graph, is part of that, or throws one away.
pub(crate) fn is_part_of_making(name: &str) -> bool {
    begins_capture(name)
        || name.contains("StreamEndCapture")
        || instantiates(name)
        || updates(name)
        || name.ends_with("GraphExecDestroy")
        || name.ends_with("GraphDestroy")
}
