//! Device memory in use grows steadily.

use gpucause_abi::Nanos;

use super::Rule;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::context::Context;
use crate::detection::{Detection, Sentence, name_of};

/// Least samples.
const MIN_SAMPLES: usize = 8;
/// Parts of the window: memory must grow from each to the next.
const PARTS: usize = 5;
/// Least growth in the last part, as a share of the largest: the growth of a cache that fills decreases.
const MIN_LAST_GROWTH: f64 = 0.75;

pub(super) const RULE: Rule = Rule {
    cause: Cause::MemoryLeak,
    reads: &["gpucause_device_memory_live_bytes"],
    needs: "device memory in use grew in every fifth of leak_seconds, in the last hardly less, by leak_bytes in total",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let live = &process.live_memory;
    if live.len() < MIN_SAMPLES || process.now.ended.is_some() {
        return None;
    }
    let (first, last) = (*live.first()?, *live.last()?);
    let grown = last.saturating_sub(first);
    if grown < context.settings.leak_bytes {
        return None;
    }
    // The minimum of each part: batches come and go on top of it.
    let part = |index: usize| &live[live.len() * index / PARTS..live.len() * (index + 1) / PARTS];
    let lows: Vec<u64> = (0..PARTS).filter_map(|index| part(index).iter().min().copied()).collect();
    let growth: Vec<u64> = lows.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let fair = grown / (2 * PARTS as u64);
    let lasting = *growth.last()? as f64 >= MIN_LAST_GROWTH * growth.iter().copied().max()? as f64;
    if !lasting || growth.iter().any(|&part| part < fair.max(1)) {
        return None;
    }
    let evidence = Evidence::default()
        .with("grown_bytes", grown as f64)
        .with("live_bytes", last as f64)
        .with("span_seconds", context.settings.leak_seconds)
        .with("bytes_per_second", grown as f64 / context.settings.leak_seconds);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "Device memory of {comm} grew steadily by {grown_bytes|bytes} in {span_seconds|seconds}, to \
                    {live_bytes|bytes}.";
    let effect = Effect::MemoryGrowth;
    Some(Detection {
        // No time is lost until memory runs out.
        taken_share: context.settings.severities.medium,
        path: vec![Step::new(victim, effect.label(), "allocates device memory without freeing it", Nanos(0))],
        sentence: Sentence::new(sentence, [("comm", &*comm)]),
        fix: "Look for tensors that are kept across steps (lists of losses, hooks, unbounded caches); compare snapshots of torch.cuda.memory."
            .into(),
        ..Detection::new(Cause::MemoryLeak, effect, index, evidence)
    })
}
