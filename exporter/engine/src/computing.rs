//! Processes whose threads compute between launches and never wait for the GPU: their own code is what limits them, and the GPU has
//! nothing to do meanwhile.
//!
//! A thread waits for the GPU in synchronisation, allocation and collectives, in copies from the device beyond what copying takes, and
//! in launches beyond what an unhindered one takes: drivers spin there while the queue is full, so that the median may be such a wait.

use gpucause_abi::op::{Class, CopyKind, Op};
use gpucause_abi::record::SIZE_CLASSES;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use crate::claim::Span;
use crate::delta::{Delta, MIN_TIMED, NO_CPU, ThreadDelta, Values};
use crate::phases::Phases;
use crate::settings::Settings;
use crate::times::{part, ratio, share, total};

/// Least launches in a window: a program that hardly launches has another task than to feed a GPU.
const MIN_LAUNCHES: u64 = 10;

/// Least share of a window that is computed between launches.
pub(crate) const MIN_COMPUTED: f64 = 0.5;
/// Share of a window in waits for the GPU from which the GPU is the limit. A program that copies a batch or a result in each step waits
/// for 1 to 2 % of it even where the GPU has long been idle.
pub(crate) const MAX_WAITED: f64 = 0.05;
/// Share of a window for which a thread may have nothing to do.
const MAX_IDLE: f64 = 0.1;
/// Threads that take turns, as PyTorch's main thread and that of autograd, are together busy on CPUs for no more of a window than this.
const TAKE_TURNS: f64 = 1.15;
/// Longest times of unhindered launches: of a kernel, and of a graph, which takes longer the larger it is.
const UNHINDERED: [(Class, Nanos); 2] =
    [(Class::Launch, Nanos(10_000)), (Class::Graph, Nanos(500_000))];
/// Longest time of a copy apart from its bytes, and bytes copied in a nanosecond.
const COPY: (Nanos, u64) = (Nanos(20_000), 4);
/// Between two launches a framework takes some tens of microseconds. Pauses of this length are computations of another kind.
const LONG_GAP: Nanos = Nanos(1_000_000);
/// Standard deviations by which the time of long gaps is less than those of a sample say: one of them is as long as a hundred others.
const DEVIATIONS: f64 = 3.0;
/// Windows of the longer one before the last, as bits.
const EARLIER: u8 = 0b1111;

/// A window in which the code of a process was its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Computing {
    /// The thread that computed most.
    pub(crate) tid: Tid,
    /// Time that threads which take turns computed between launches.
    pub(crate) computed: Nanos,
    /// The part of it in long pauses between launches, and as much of that as is sure where only a sample of them is known.
    pub(crate) in_long_gaps: Nanos,
    pub(crate) surely_in_long_gaps: Nanos,
    /// Time in waits for the GPU.
    pub(crate) waited: Nanos,
}

/// Launches of a window.
struct Launches {
    /// Warm ones.
    all: u64,
    /// Launches with known durations, in this window or a longer one.
    timed: u64,
    /// Launches that were not timed; their time is in that of the host.
    untimed: u64,
    /// Time in timed ones.
    sum: Nanos,
    /// Beyond what unhindered ones take.
    waited: Nanos,
    /// Time in first launches of a kernel.
    cold: Nanos,
}

impl Launches {
    fn of(delta: &Delta<'_>) -> Self {
        let mut own =
            Self { all: 0, timed: 0, untimed: 0, sum: Nanos(0), waited: Nanos(0), cold: Nanos(0) };
        let (mut values, mut first) = (Values::default(), 0u64);
        for call in delta.calls().iter().filter(|call| !call.nested) {
            let Some(op) = call.op.op().filter(|op| op.is_launch()) else { continue };
            if call.cold {
                own.cold.0 = own.cold.0.saturating_add(call.sum.0);
                first = first.saturating_add(call.count());
                continue;
            }
            call.durations_into(&mut values);
            own.timed = own.timed.saturating_add(values.count);
            own.sum.0 = own.sum.0.saturating_add(values.sum.0);
            own.waited.0 = own.waited.0.saturating_add(waited(op, &values).0);
        }
        let known = own.timed.saturating_add(first);
        own.untimed = delta.all_launches().saturating_sub(known);
        own.all = own.timed.saturating_add(own.untimed);
        own
    }

    /// Returns these launches, with the durations of a longer window where too few of them were timed to stand for the others.
    fn with_durations_of(self, longer: &Delta<'_>) -> Self {
        if self.untimed == 0 || self.timed >= MIN_TIMED {
            return self;
        }
        let Self { timed, sum, waited, .. } = Self::of(longer);
        Self { timed, sum, waited, ..self }
    }

    /// The launches of a window without observed ones, at the rate of the longer window's observed time.
    fn at_the_rate_of(longer: &Delta<'_>, wall: Nanos) -> Self {
        let own = Self::of(longer);
        let all = of_all(wall, own.all, longer.observed().0).0;
        Self { all, untimed: all, cold: Nanos(0), ..own }
    }

    /// Time of those that were not timed.
    fn hidden(&self) -> Nanos {
        of_all(self.sum, self.untimed, self.timed)
    }
}

/// The time of that many launches, by that of the timed ones.
fn of_all(time: Nanos, launches: u64, timed: u64) -> Nanos {
    let all = u128::from(time.0) * u128::from(launches) / u128::from(timed.max(1));
    Nanos(u64::try_from(all).unwrap_or(u64::MAX))
}

/// Time of launches of an op beyond what they take unhindered.
fn waited(op: &Op, durations: &Values) -> Nanos {
    let most =
        UNHINDERED.iter().find(|(class, _)| *class == op.class).map_or(Nanos(0), |own| own.1);
    let usual = durations.quantile(0.5).unwrap_or_default().min(most);
    durations.sum.less(Nanos(usual.0.saturating_mul(durations.count)))
}

/// Time of a thread in its own code.
fn computed(thread: &ThreadDelta) -> Nanos {
    thread.time.at(Phase::Host, State::Running)
}

/// Returns the time that the thread computed between launches, less its part of the estimated time of launches that were not timed.
pub(crate) fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let all = total(span.delta.threads().iter().map(computed));
    let hidden = Launches::of(span.delta).hidden();
    let own = part(&thread.time, |phase, state| (phase, state) == (Phase::Host, State::Running));
    share(own, ratio(all.less(hidden), all))
}

/// Time in copies from the device, or within it, beyond what copying takes.
fn waited_in_copies(delta: &Delta<'_>) -> Nanos {
    let own = |class: u16| {
        let most = 4096u64.checked_shl(4 * u32::from(class)).unwrap_or(u64::MAX);
        COPY.0.0.saturating_add(most / COPY.1)
    };
    let copies = delta.copies().filter(|&(kind, class, ..)| {
        !matches!(kind, CopyKind::H2d | CopyKind::H2h) && usize::from(class) + 1 < SIZE_CLASSES
    });
    total(copies.map(|(_, class, count, sum)| sum.less(Nanos(own(class).saturating_mul(count)))))
}

/// Time of a thread in phases, without what was lost in them.
fn in_phases(thread: &ThreadDelta, phases: &[Phase]) -> Nanos {
    let lost = |phase| {
        let states = State::all().filter(move |state| state.is_lost_in(phase));
        total(states.map(move |state| thread.time.at(phase, state)))
    };
    total(phases.iter().map(|&phase| thread.in_phase(phase).less(lost(phase))))
}

/// Time in waits for the GPU of all threads: one that launches may leave the waiting to another.
fn waited_for_gpu(delta: &Delta<'_>, launches: &Launches) -> Nanos {
    let waits = [Phase::Sync, Phase::Alloc, Phase::Nccl];
    let in_calls = delta.threads().iter().map(|thread| in_phases(thread, &waits));
    let lost = |phase: Phase| {
        let all = delta
            .threads()
            .iter()
            .map(move |thread| thread.in_phase(phase).less(in_phases(thread, &[phase])));
        total(all)
    };
    let in_launches = launches.waited.less(lost(Phase::Launch));
    let in_launches = of_all(in_launches, launches.all, launches.timed);
    total(in_calls.chain([in_launches, waited_in_copies(delta).less(lost(Phase::Memcpy))]))
}

/// Returns true if the program asks whether the GPU is done more often than it launches: such a loop is a wait.
fn polls(delta: &Delta<'_>, launches: u64) -> bool {
    delta.count(Class::Event, |name| name.ends_with("Query")) > launches
}

/// The share of the gaps between launches that is known: all, or those after launches that were timed.
fn known_gaps(delta: &Delta<'_>) -> f64 {
    (delta.launch_gap().count as f64 / delta.all_launches().max(1) as f64).min(1.0)
}

/// Time that threads computed in long pauses between launches, without that off the CPU: by the gaps that are known, and as much of that
/// as is sure.
fn in_long_gaps(delta: &Delta<'_>) -> (Nanos, Nanos) {
    let gaps = delta.launch_gap();
    let long = gaps.from(LONG_GAP);
    let deviation = ((1.0 - known_gaps(delta)) / gaps.count_from(LONG_GAP).max(1) as f64).sqrt();
    let surely = long.share((1.0 - DEVIATIONS * deviation).max(0.0));
    let between = delta.feeders().map(|thread| thread.wall.less(thread.in_phase(Phase::Launch)));
    let off_cpu = delta.feeders().map(|thread| {
        total(Reason::ALL.iter().map(|&reason| thread.time.at(Phase::Host, State::Off(reason))))
    });
    let (between, off_cpu) = (total(between), total(off_cpu));
    let computed =
        |own: Nanos| between.share(ratio(own, gaps.sum.less(long.less(own)))).less(off_cpu);
    (computed(long), computed(surely))
}

/// Time in which a thread had something to do and a CPU for it.
fn with_a_cpu(thread: &ThreadDelta) -> Nanos {
    let without = NO_CPU.iter().map(|&reason| thread.in_state(State::Off(reason), |_| true));
    thread.busy().less(total(without))
}

/// The computing of a window, if the code of the process was its limit. Launches of part of it may have been observed in a longer one. Bits of
/// `computed_before`, from the lowest on, say the same of windows before it.
pub(crate) fn computing(
    delta: &Delta<'_>,
    longer: &Delta<'_>,
    computed_before: u8,
    settings: &Settings,
) -> Option<Computing> {
    let victim = delta.victim(computed)?;
    let together = total(delta.feeders().map(with_a_cpu));
    let takes_turns = ratio(together, delta.wall) <= TAKE_TURNS;
    let feeders = || delta.feeders().filter(|own| takes_turns || own.tid == victim.tid);
    let (busy, own) = (total(feeders().map(ThreadDelta::busy)), total(feeders().map(computed)));
    let of_window = |time| ratio(time, delta.wall);
    // Checked first: most programs wait for the GPU or have nothing to do.
    if of_window(own) < MIN_COMPUTED || of_window(busy) < 1.0 - MAX_IDLE {
        return None;
    }
    // Until launches are observed again, the process does what it did.
    let launches = if delta.saw_no_launches() && computed_before & 1 == 1 {
        Launches::at_the_rate_of(longer, delta.wall)
    } else {
        Launches::of(delta).with_durations_of(longer)
    };
    let waited = waited_for_gpu(delta, &launches);
    let computed = own.less(launches.hidden()).min(delta.wall);
    let all_timed = launches.untimed == 0 && delta.saw_launches();
    let is_known = all_timed || launches.timed >= MIN_TIMED;
    let loads = of_window(launches.cold) >= settings.severities.low;
    let is_limit = of_window(computed) >= MIN_COMPUTED && of_window(waited) < MAX_WAITED;
    if launches.all < MIN_LAUNCHES || !is_known || loads || !is_limit {
        return None;
    }
    if polls(delta, launches.all) {
        return None;
    }
    // A longer window has more gaps of a sample, where it is one throughout: in one that was timed each gap is known.
    let is_alike = || known_gaps(longer) <= 2.0 * known_gaps(delta);
    let computed_long = computed_before & EARLIER == EARLIER;
    let (in_long_gaps, surely) = if launches.untimed > 0 && computed_long && is_alike() {
        let of_longer = in_long_gaps(longer);
        let scaled = |own| delta.wall.share(ratio(own, longer.wall));
        (scaled(of_longer.0), scaled(of_longer.1))
    } else {
        in_long_gaps(delta)
    };
    let [in_long_gaps, surely_in_long_gaps] = [in_long_gaps, surely].map(|own| own.min(computed));
    Some(Computing { tid: victim.tid, computed, in_long_gaps, surely_in_long_gaps, waited })
}
