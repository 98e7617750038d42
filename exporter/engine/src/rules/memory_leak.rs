//! Device memory in use grows look by look.

use gpucause_abi::Nanos;

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::finding::{Finding, Sentence, name_of};

/// Looks that are needed.
const MIN_LOOKS: usize = 8;
/// Parts that the time is cut into: from each to the next memory must have grown.
const PARTS: usize = 5;
/// How much of its quickest growth the last must be: a program that fills a cache grows less and less.
const LASTING: f64 = 0.75;

pub(super) struct MemoryLeak;

impl Rule for MemoryLeak {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::MemoryLeak,
            reads: &["gpucause_device_memory_live_bytes"],
            window: Window::Configured,
            needs: "device memory in use grew in every fifth of leak_seconds, hardly less at the end, by leak_bytes in all",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let live = &subject.live_memory;
        if live.len() < MIN_LOOKS || subject.now.ended.is_some() {
            return None;
        }
        let (first, last) = (*live.first()?, *live.last()?);
        let grown = last.saturating_sub(first);
        if grown < scene.settings.leak_bytes {
            return None;
        }
        // What was in use at least: batches come and go on top of it.
        let part =
            |index: usize| &live[live.len() * index / PARTS..live.len() * (index + 1) / PARTS];
        let lows: Vec<u64> =
            (0..PARTS).filter_map(|index| part(index).iter().min().copied()).collect();
        let growth: Vec<u64> =
            lows.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        let fair = grown / (2 * PARTS as u64);
        let lasting = *growth.last()? as f64 >= LASTING * growth.iter().copied().max()? as f64;
        if !lasting || growth.iter().any(|&part| part < fair.max(1)) {
            return None;
        }
        let evidence = Evidence::default()
            .with("grown_bytes", grown as f64)
            .with("live_bytes", last as f64)
            .with("span_seconds", scene.settings.leak_seconds)
            .with("bytes_per_second", grown as f64 / scene.settings.leak_seconds);
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "{comm} has {live_bytes|bytes} of device memory in use, {grown_bytes|bytes} more than \
                        {span_seconds|seconds} ago, and grew all the time.";
        Some(Finding {
            cause: Cause::MemoryLeak,
            effect: Effect::MemoryGrowth,
            subject: index,
            tid: None,
            culprit: None,
            explained: 1.0,
            size: Nanos(0),
            taken: Box::default(),
            claim: None,
            // No time is lost until memory runs out.
            lost_share: scene.settings.severities.medium,
            path: vec![Step {
                from: victim,
                to: Effect::MemoryGrowth.label().into(),
                mechanism: "takes device memory and does not give it back".into(),
                seconds: 0.0,
            }],
            sentence: Sentence::new(sentence, [("comm", &*comm)]),
            fix: "Look for tensors that are kept across steps (lists of losses, hooks, caches without bound); compare snapshots of torch.cuda.memory."
                .into(),
            evidence,
        })
    }
}
