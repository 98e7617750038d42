//! Device memory in use grows look by look.

use gpucause_abi::Nanos;

use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::finding::{Finding, name_of};
use crate::tell::tell;

/// Looks that are needed.
const MIN_LOOKS: usize = 8;
/// Parts of the time in each of which memory must have grown: a program that fills a cache stops growing.
const PARTS: usize = 4;

pub(super) struct MemoryLeak;

impl Rule for MemoryLeak {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::MemoryLeak,
            reads: &["gpucause_device_memory_live_bytes"],
            window: Window::Configured,
            needs: "device memory in use grew in every quarter of leak_seconds, by leak_bytes in all",
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
        // In each part a fair share of the growth, and never below what the part before had at least.
        let lows: Vec<u64> = live
            .chunks(live.len().div_ceil(PARTS))
            .filter_map(|part| part.iter().min().copied())
            .collect();
        let fair = grown / (2 * PARTS as u64);
        if lows.len() < PARTS || !lows.windows(2).all(|pair| pair[1] >= pair[0] + fair) {
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
            lost: Nanos(0),
            // No time is lost until memory runs out.
            lost_share: scene.settings.severities.medium,
            path: vec![Step {
                from: victim,
                to: Effect::MemoryGrowth.label().into(),
                mechanism: "takes device memory and does not give it back".into(),
                seconds: 0.0,
            }],
            sentence: tell(sentence, &evidence, &[("comm", &comm)]),
            fix: "Look for tensors that are kept across steps (lists of losses, hooks, caches without bound); compare snapshots of torch.cuda.memory."
                .into(),
            evidence,
        })
    }
}
