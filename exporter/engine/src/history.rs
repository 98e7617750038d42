//! What is remembered of a process beyond the snapshots: whether it has warmed up, its usual pace, and how its memory grew.

use std::collections::VecDeque;

use gpucause_abi::Nanos;
use gpucause_abi::op::Class;
use gpucause_abi::record::REASONS;
use gpucause_abi::state::{Reason, State};

use crate::delta::Delta;
use crate::effect::{Phases, ratio, total};
use crate::settings::Settings;

/// Windows that the usual pace is taken from.
const PACES: usize = 60;
/// Windows that must have passed before there is a usual pace.
const MIN_PACES: usize = 5;
/// Looks at device memory that are kept at most.
const LOOKS: usize = 512;
/// Quiet windows in a row after which a process has warmed up.
const QUIET: u32 = 3;
/// Part of the device memory in use by which it grows while a program loads: a quarter.
const FILLS: u64 = 4;

/// A window's pace.
#[derive(Debug, Clone, Copy)]
struct Pace {
    launches_per_second: f64,
    /// Shares, of which there are many and none is needed to the last digit.
    offcpu: [f32; REASONS],
}

/// A window as it is remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) delta: &'a Delta<'a>,
    /// Device memory in use at its end, in bytes.
    pub(crate) live: u64,
    /// Whether no chain was seen.
    pub(crate) healthy: bool,
    pub(crate) settings: &'a Settings,
}

/// What is remembered of one process.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// When it was first remembered.
    since: Option<Nanos>,
    /// Windows in a row that launched and loaded nothing.
    quiet: u32,
    settled: bool,
    settled_looks: u32,
    last_live: u64,
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
            *share = median(self.paces.iter().map(|pace| pace.offcpu[index].into()));
        }
        usual
    }

    /// Live bytes at each look of the last `span`, oldest first; empty when the process was not watched for as long.
    pub(crate) fn live_over(&self, now: Nanos, span: Nanos) -> Vec<u64> {
        let from = now.less(span);
        match self.live.front() {
            // They are in the order of time.
            Some(&(first, _)) if first <= from => {
                let before = self.live.partition_point(|&(at, _)| at < from);
                self.live.range(before..).map(|&(_, bytes)| bytes).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Forgets what was usual.
    pub(crate) fn forget_pace(&mut self) {
        self.paces.clear();
    }

    /// Whether the process has warmed up.
    pub(crate) fn settled(&self) -> bool {
        self.settled
    }

    /// Looks since then.
    pub(crate) fn settled_looks(&self) -> u32 {
        self.settled_looks
    }

    /// Remembers a window. Windows in which a chain was seen, or that load what later ones use, are no measure of what is
    /// usual.
    pub(crate) fn remember(&mut self, now: Nanos, look: &Look<'_>) {
        let Look { delta, live, healthy, settings } = *look;
        let before = std::mem::replace(&mut self.last_live, live);
        let quiet = is_quiet(delta, before, live, settings);
        self.warm_up(now, quiet, delta.launches(&settings.launch_ops) > 0, settings);
        self.remember_live(now, live, leak_span(settings));
        let counted = delta.wall.0 > 0 && delta.saw_launches();
        if !healthy || !(quiet || self.settled) || !counted {
            return;
        }
        let mut offcpu = [0.0; REASONS];
        if let Some(thread) = delta.main_feeder() {
            for (share, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
                let time = thread.in_state(State::Off(reason), |p| Phases::Feeding.contain(p));
                #[expect(clippy::cast_possible_truncation, reason = "a share, told to six digits")]
                let rounded = ratio(time, thread.wall) as f32;
                *share = rounded;
            }
        }
        let launches_per_second =
            delta.launches(&settings.launch_ops) as f64 / delta.wall.as_secs_f64();
        push(&mut self.paces, Pace { launches_per_second, offcpu }, PACES);
    }

    /// Remembers device memory in use, for as long as [`live_over`](Self::live_over) may ask for it.
    fn remember_live(&mut self, now: Nanos, live: u64, span: Nanos) {
        let apart = Nanos(span.0 / (LOOKS as u64 / 2));
        if self.live.back().is_some_and(|&(last, _)| now.less(last) < apart) {
            return;
        }
        let from = now.less(span);
        while self.live.get(1).is_some_and(|&(second, _)| second <= from) {
            self.live.pop_front();
        }
        push(&mut self.live, (now, live), LOOKS);
    }

    /// A window without launches says nothing of whether the process has warmed up.
    fn warm_up(&mut self, now: Nanos, quiet: bool, launches: bool, settings: &Settings) {
        let since = *self.since.get_or_insert(now);
        self.quiet = match (quiet, launches) {
            (false, _) => 0,
            (true, true) => self.quiet.saturating_add(1),
            (true, false) => self.quiet,
        };
        self.settled_looks = self.settled_looks.saturating_add(u32::from(self.settled));
        let late = now.less(since).as_secs_f64() >= settings.warm_up_seconds;
        if !self.settled && (late || self.quiet >= QUIET) {
            self.settled = true;
            // What a program takes until it is warm is no leak.
            self.live.clear();
        }
    }
}

/// Whether the process did nothing in the window that it does to be quicker later.
fn is_quiet(delta: &Delta<'_>, live_before: u64, live: u64, settings: &Settings) -> bool {
    let in_first_launches = total(
        delta
            .calls()
            .iter()
            .filter(|call| {
                call.cold
                    && !call.nested
                    && call.op.op().is_some_and(|op| op.class == Class::Launch)
            })
            .map(|call| call.sum),
    );
    let builds = delta.count(Class::Graph, |name| name.contains("GraphInstantiate"));
    let grown = live.saturating_sub(live_before);
    let loads = grown > live_before / FILLS && grown >= settings.leak_bytes;
    ratio(in_first_launches, delta.wall) < settings.severities.low && builds == 0 && !loads
}

/// The time that a leak is judged on.
pub(crate) fn leak_span(settings: &Settings) -> Nanos {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the settings bound it to a million seconds above zero; what is beyond is clamped"
    )]
    Nanos((settings.leak_seconds * 1e9) as u64)
}

fn push<T>(queue: &mut VecDeque<T>, item: T, limit: usize) {
    if queue.len() == limit {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Of as many as there are paces at most; 0 of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut room = [0.0; PACES];
    let mut count = 0;
    for (place, value) in room.iter_mut().zip(values) {
        *place = value;
        count += 1;
    }
    match &mut room[..count] {
        [] => 0.0,
        values => *values.select_nth_unstable_by(count / 2, f64::total_cmp).1,
    }
}
