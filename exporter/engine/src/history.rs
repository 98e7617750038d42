//! State of a process beyond the snapshots: whether it has warmed up, its usual pace, and the growth of its memory.

use std::collections::VecDeque;

use gpucause_abi::Nanos;
use gpucause_abi::op::{Class, OpId};
use gpucause_abi::record::REASONS;
use gpucause_abi::state::{Reason, State};

use crate::delta::Delta;
use crate::graph_builds::GraphBuilds;
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::{ratio, total};

/// Windows that the usual pace is computed from.
const MAX_PACES: usize = 60;
/// Windows needed for a usual pace.
const MIN_PACES: usize = 5;
/// Bound on samples of device memory.
const MAX_MEMORY_SAMPLES: usize = 512;
/// Consecutive quiet windows after which a process has warmed up.
const MIN_QUIET: u32 = 3;
/// Windows in which graphs were made for hardly more than one launch, from which on they are no warm-up.
const MIN_REMADE: u32 = 3;
/// Growth by more than one part in this many of the device memory in use is loading.
const LOADING: u64 = 4;

/// A virtual machine's CPU was 1.54 times as slow for a minute of a training. Of more, other causes are as likely.
const MAX_SLOWDOWN: f64 = 1.6;

/// A window's pace.
#[derive(Debug, Clone, Copy)]
struct Pace {
    launches_per_second: f64,
    /// The op that was launched most, and what its quickest launches took.
    launch: Option<(OpId, Nanos)>,
    /// `f32` suffices for a share.
    offcpu: [f32; REASONS],
}

/// One window of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evaluation<'a, 'b> {
    pub(crate) delta: &'a Delta<'b>,
    /// Device memory in use at its end, in bytes.
    pub(crate) live: u64,
    /// True if the process had no chain.
    pub(crate) healthy: bool,
    /// True if the process's own code was its limit.
    pub(crate) computes: bool,
    pub(crate) settings: &'a Settings,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// When it was first recorded.
    since: Option<Nanos>,
    /// Consecutive windows with launches and without loading.
    quiet: u32,
    warmed_up: bool,
    ticks_since_loading: u32,
    /// Consecutive windows in which it made graphs for hardly more than one launch.
    remade: u32,
    last_live: u64,
    /// In which windows its own code was its limit: the latest is the lowest bit.
    computed: u8,
    paces: VecDeque<Pace>,
    /// Time and live bytes.
    live: VecDeque<(Nanos, u64)>,
}

impl History {
    /// The usual launch rate: the median over earlier windows, if there are enough.
    pub(crate) fn usual_launch_rate(&self) -> Option<f64> {
        (self.paces.len() >= MIN_PACES)
            .then(|| median(self.paces.iter().map(|pace| pace.launches_per_second)))
            .filter(|&rate| rate > 0.0)
    }

    /// How many times longer the quickest launches take than usual, from 1 to [`MAX_SLOWDOWN`]: they do where the CPU itself is slower, and
    /// hardly where code between launches leaves less of them in its caches.
    pub(crate) fn slowdown_of_launches(
        &self,
        delta: &Delta<'_>,
        settings: &Settings,
    ) -> Option<f64> {
        let (op, now) = delta.quick_launch(&settings.launch_ops)?;
        let of_op = |pace: &Pace| pace.launch.filter(|own| own.0 == op).map(|own| own.1);
        let usual = median(self.paces.iter().filter_map(of_op).map(Nanos::as_secs_f64));
        (usual > 0.0).then(|| (now.as_secs_f64() / usual).clamp(1.0, MAX_SLOWDOWN))
    }

    /// The usual share of time that a dispatcher thread was off the CPU outside synchronisation, by reason.
    pub(crate) fn usual_offcpu(&self) -> [f64; REASONS] {
        let mut usual = [0.0; REASONS];
        for (index, share) in usual.iter_mut().enumerate() {
            *share = median(self.paces.iter().map(|pace| pace.offcpu[index].into()));
        }
        usual
    }

    /// Samples of live bytes over the last `span`, oldest first; empty when the process was observed for less.
    pub(crate) fn live_over(&self, now: Nanos, span: Nanos) -> Vec<u64> {
        let from = now.less(span);
        match self.live.front() {
            Some(&(first, _)) if first <= from => {
                let first = self.live.partition_point(|&(at, _)| at < from);
                self.live.range(first..).map(|&(_, bytes)| bytes).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn reset_pace(&mut self) {
        self.paces.clear();
    }

    pub(crate) fn warmed_up(&self) -> bool {
        self.warmed_up
    }

    /// Ticks since the last of the warm-up in which it loaded something.
    pub(crate) fn ticks_since_loading(&self) -> u32 {
        self.ticks_since_loading
    }

    /// In which of the last windows its own code was its limit: the latest is the lowest bit.
    pub(crate) fn computed(&self) -> u8 {
        self.computed
    }

    /// Records a window. Windows with a chain or with loading do not count as usual.
    pub(crate) fn record(&mut self, now: Nanos, evaluation: &Evaluation<'_, '_>) {
        let Evaluation { delta, live, healthy, computes, settings } = *evaluation;
        self.computed = self.computed << 1 | u8::from(computes);
        let live_before = std::mem::replace(&mut self.last_live, live);
        let builds_graphs = self.builds_graphs(delta);
        let quiet = is_quiet(delta, live_before, live, settings) && !builds_graphs;
        self.warm_up(now, quiet, delta.launches(&settings.launch_ops) > 0, settings);
        self.record_live(now, live, leak_span(settings));
        let counted = delta.wall.0 > 0 && delta.saw_launches();
        if !healthy || !(quiet || self.warmed_up) || !counted {
            return;
        }
        let mut offcpu = [0.0; REASONS];
        if let Some(thread) = delta.main_feeder() {
            for (share, &reason) in offcpu.iter_mut().zip(Reason::ALL) {
                let time = thread.in_state(State::Off(reason), |p| Phases::Feeding.contain(p));
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "six digits of a share suffice"
                )]
                let rounded = ratio(time, thread.wall) as f32;
                *share = rounded;
            }
        }
        let launches_per_second =
            delta.launches(&settings.launch_ops) as f64 / delta.wall.as_secs_f64();
        let launch = delta.quick_launch(&settings.launch_ops);
        let pace = Pace { launches_per_second, launch, offcpu };
        push(&mut self.paces, pace, MAX_PACES);
    }

    /// Returns true if the process builds graphs that it keeps for later. A process that makes graphs for each launch has warmed up,
    /// although it never stops making them.
    fn builds_graphs(&mut self, delta: &Delta<'_>) -> bool {
        let builds = GraphBuilds::of(delta);
        let remakes = builds.is_wasteful(delta) && builds.are_used_at_once();
        self.remade = if remakes { self.remade.saturating_add(1) } else { 0 };
        let is_certain = remakes && builds.replace_others() || self.remade > MIN_REMADE;
        builds.instantiated > 0 && !is_certain
    }

    /// Samples device memory in use, for as long as [`live_over`](Self::live_over) needs.
    fn record_live(&mut self, now: Nanos, live: u64, span: Nanos) {
        let interval = Nanos(span.0 / (MAX_MEMORY_SAMPLES as u64 / 2));
        if self.live.back().is_some_and(|&(last, _)| now.less(last) < interval) {
            return;
        }
        let from = now.less(span);
        while self.live.get(1).is_some_and(|&(second, _)| second <= from) {
            self.live.pop_front();
        }
        push(&mut self.live, (now, live), MAX_MEMORY_SAMPLES);
    }

    /// A window without launches neither continues nor ends the warm-up.
    fn warm_up(&mut self, now: Nanos, quiet: bool, launches: bool, settings: &Settings) {
        let since = *self.since.get_or_insert(now);
        self.quiet = match (quiet, launches) {
            (false, _) => 0,
            (true, true) => self.quiet.saturating_add(1),
            (true, false) => self.quiet,
        };
        self.ticks_since_loading = match self.warmed_up || quiet {
            true => self.ticks_since_loading.saturating_add(1),
            false => 0,
        };
        let late = now.less(since).as_secs_f64() >= settings.warm_up_seconds;
        if !self.warmed_up && (late || self.quiet >= MIN_QUIET) {
            self.warmed_up = true;
            // Memory allocated during warm-up is not a leak.
            self.live.clear();
        }
    }
}

/// Returns true if the process loaded nothing in the window: no kernels and no data.
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
    let grown = live.saturating_sub(live_before);
    let loads = grown > live_before / LOADING && grown >= settings.leak_bytes;
    ratio(in_first_launches, delta.wall) < settings.severities.low && !loads
}

/// `leak_seconds` of the settings.
pub(crate) fn leak_span(settings: &Settings) -> Nanos {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the settings bound it to between zero and a million seconds"
    )]
    Nanos((settings.leak_seconds * 1e9) as u64)
}

fn push<T>(queue: &mut VecDeque<T>, item: T, limit: usize) {
    if queue.len() == limit {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Median of at most [`MAX_PACES`] values; 0 for none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut buffer = [0.0; MAX_PACES];
    let mut count = 0;
    for (entry, value) in buffer.iter_mut().zip(values) {
        *entry = value;
        count += 1;
    }
    match &mut buffer[..count] {
        [] => 0.0,
        values => *values.select_nth_unstable_by(count / 2, f64::total_cmp).1,
    }
}
