//! Rules for launches and copies that take far longer than usual.

use gpucause_abi::op::Class;
use gpucause_engine::chain::{Cause, Effect, Evidence};

use super::detection::{Blamed, Detection};
use super::{Call, RuleContext, Waits, seconds, share};
use crate::statistics::{AllUnstored, nearest_rank};
use gpucause_trace::recording::{NodeChain, ProcessIndex};

/// A call is slow from this multiple of the usual duration.
const SLOW: u64 = 4;
/// Fewest rows to derive the usual duration from.
const MIN_ROWS: usize = 10;
/// Fewest calls to evaluate a tail.
const MIN_CALLS: usize = 100;
/// Least p99 over p50 of a tail.
const SPREAD: u64 = 3;
/// Least share of the time for calls rarer than one in a hundred to be a tail.
const HEAVY: f64 = 0.02;
/// Least size of a large copy, in bytes.
const LARGE: i64 = 1 << 20;

/// Slow calls of one operation of a process.
struct Slow<'a> {
    process: ProcessIndex,
    class: Class,
    name: &'a str,
    calls: &'a [Call],
    /// Usual duration.
    usual: u64,
    p50: u64,
    p99: u64,
    all: u64,
    /// First launches.
    cold: Vec<Call>,
    /// Copies that are slow for their size.
    large: Vec<Call>,
    /// Other slow calls, and their excess over the usual duration.
    others: Vec<(Call, u64)>,
    /// Number of `others` on threads without recorded waits.
    not_captured: u64,
    waits: Waits,
}

impl Slow<'_> {
    fn effect(&self) -> Effect {
        if self.class == Class::Launch { Effect::LaunchTail } else { Effect::CopyTail }
    }
}

fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    nearest_rank(&values, 50)
}

/// Usual nanoseconds per MiB of a large copy.
fn usual_pace(calls: &[Call]) -> Option<u64> {
    let large = calls.iter().filter(|call| call.arg0 >= LARGE);
    median(large.map(pace))
}

fn pace(call: &Call) -> u64 {
    let mib = u64::try_from(call.arg0 / LARGE).unwrap_or(0).max(1);
    call.duration() / mib
}

impl RuleContext<'_> {
    /// Chains of slow calls.
    pub(super) fn slow_calls(&self, unstored: &AllUnstored) -> Vec<NodeChain> {
        let mut chains: Vec<NodeChain> = Vec::new();
        for (&(process, source, op), calls) in &self.calls {
            let Some(slow) = self.slow(process, (source, op), calls) else { continue };
            let own = self.file.lists.get(process);
            let unstored = own.and_then(|p| unstored.get(&(p.node, p.pid, source, op)));
            let seen = slow.all.saturating_add(unstored.map_or(0, |unstored| unstored.count));
            let found = [self.cold(&slow, seen), self.large(&slow, seen), self.tail(&slow, seen)];
            for chain in found.into_iter().flatten() {
                // A process has one chain per cause and effect: that of the operation that lost most.
                let key = |NodeChain { node, chain }: &NodeChain| {
                    (*node, chain.victim.pid, chain.cause, chain.effect)
                };
                match chains.iter_mut().find(|other| key(other) == key(&chain)) {
                    Some(other) if weight(other) < weight(&chain) => *other = chain,
                    Some(_) => {}
                    None => chains.push(chain),
                }
            }
        }
        chains
    }

    fn slow<'b>(
        &'b self,
        process: ProcessIndex,
        (source, op): (i64, i64),
        calls: &'b [Call],
    ) -> Option<Slow<'b>> {
        let function = self.file.codes.function(source, op)?;
        let own = self.file.lists.get(process)?;
        let class = function.class?;
        if calls.len() < MIN_ROWS {
            return None;
        }
        let is_cold = |call: &Call| {
            let key = ((own.node, own.pid), source, op, call.arg0);
            class == Class::Launch && self.first.get(&key) == Some(&call.start)
        };
        let mut sorted: Vec<_> = calls.iter().map(Call::duration).collect();
        sorted.sort_unstable();
        let (p50, p99) = (nearest_rank(&sorted, 50)?, nearest_rank(&sorted, 99)?);
        let comparable = calls.iter().filter(|call| match class {
            Class::Launch => !is_cold(call),
            _ => call.arg0 < LARGE,
        });
        let usual = median(comparable.map(Call::duration)).unwrap_or(p50);
        let pace_of_large = usual_pace(calls).unwrap_or(0);
        let mut slow = Slow {
            process,
            class,
            name: &function.name,
            calls,
            usual,
            p50,
            p99,
            all: u64::try_from(calls.len()).unwrap_or(u64::MAX),
            cold: Vec::new(),
            large: Vec::new(),
            others: Vec::new(),
            not_captured: 0,
            waits: Waits::default(),
        };
        for &call in calls {
            // A driver call within a runtime call is counted with it.
            if !call.outermost || call.duration() < usual.saturating_mul(SLOW).max(1) {
                continue;
            }
            let is_large = class == Class::Memcpy && call.arg0 >= LARGE;
            if is_cold(&call) {
                slow.cold.push(call);
            } else if is_large && pace(&call) <= pace_of_large.saturating_mul(SLOW) {
                slow.large.push(call);
            } else {
                let mib = u64::try_from(call.arg0 / LARGE).unwrap_or(0);
                let due = if is_large { pace_of_large.saturating_mul(mib) } else { usual };
                slow.others.push((call, call.duration().saturating_sub(due)));
                match self.captured(process, call.tid) {
                    Some(thread) => slow.waits.add(thread, call.start, call.end),
                    None => slow.not_captured += 1,
                }
            }
        }
        Some(slow)
    }

    /// Evidence of every detection on an operation.
    fn numbers(slow: &Slow<'_>, seen: u64) -> Evidence {
        let count = |calls: usize| calls as f64;
        let evidence = Evidence::default()
            .with("calls_seen", seen as f64)
            .with("calls_stored", slow.all as f64)
            .with("slow_calls", count(slow.cold.len() + slow.large.len() + slow.others.len()))
            .with("slow_from_seconds", seconds(slow.usual.saturating_mul(SLOW)))
            .with("usual_seconds", seconds(slow.usual));
        if slow.calls.len() >= MIN_CALLS {
            let spread = share(slow.p99, slow.p50);
            evidence
                .with("p50_seconds", seconds(slow.p50))
                .with("p99_seconds", seconds(slow.p99))
                .with("spread", spread)
        } else {
            evidence
        }
    }

    /// A detection whose cause is the calls themselves: `lost` of the time that they took.
    fn own_cause<'b>(
        &self,
        slow: &Slow<'b>,
        calls: &[Call],
        lost: u64,
        evidence: Evidence,
    ) -> Option<Detection<'b>> {
        let (first, last) = (calls.first()?, calls.last()?);
        let explained = share(lost, lost.saturating_add(beyond(slow)));
        let mut evidence = evidence.with("explained_share", explained);
        let off =
            |call: &Call| Some(self.captured(slow.process, call.tid)?.off_in(call.start, call.end));
        if let Some(off) = calls.iter().map(off).sum::<Option<u64>>() {
            evidence = evidence
                .with("off_cpu_in_them_seconds", seconds(off))
                .with("off_cpu_share_of_them", share(off, taken(calls)));
        }
        let (thread, span) = ((slow.process, first.tid), self.span(slow.process));
        let seen = (first.start, last.end);
        Some(Detection {
            explained,
            lost_ns: lost,
            names: vec![("op", slow.name.to_owned())],
            ..Detection::unexplained(slow.effect(), thread, (span, seen), evidence)
        })
    }

    fn cold(&self, slow: &Slow<'_>, seen: u64) -> Option<NodeChain> {
        let taken = taken(&slow.cold);
        let lost = taken.saturating_sub(slow.usual.saturating_mul(slow.cold.len() as u64));
        let evidence = Self::numbers(slow, seen)
            .with("cold_launches", slow.cold.len() as f64)
            .with("cold_launches_seconds", seconds(taken));
        self.chain(Detection {
            cause: Cause::ColdStart,
            mechanism: "loads kernels at their first launch",
            sentence: "Of {slow_calls|count} slow calls of {op} by {comm}, {cold_launches|count} were the first launch of their \
                       kernel in this file and took {cold_launches_seconds|seconds} where {usual_seconds|seconds} is usual: a \
                       first launch loads the kernel.[ The thread was off the CPU for {off_cpu_share_of_them|percent} of that \
                       time.]",
            fix: "Warm up before serving: run each shape once, or set CUDA_MODULE_LOADING=EAGER; keep compiled kernels in a cache across restarts.".into(),
            ..self.own_cause(slow, &slow.cold, lost, evidence)?
        })
    }

    fn large(&self, slow: &Slow<'_>, seen: u64) -> Option<NodeChain> {
        let taken = taken(&slow.large);
        let bytes = slow.large.iter().filter_map(|call| u64::try_from(call.arg0).ok());
        let bytes = bytes.fold(0u64, u64::saturating_add);
        let evidence = Self::numbers(slow, seen)
            .with("large_from_bytes", LARGE as f64)
            .with("large_copies", slow.large.len() as f64)
            .with("large_copies_seconds", seconds(taken))
            .with("large_copies_bytes", bytes as f64)
            .with("bytes_per_second", bytes as f64 / seconds(taken).max(1e-9));
        self.chain(Detection {
            cause: Cause::LargeCopy,
            mechanism: "copies large blocks",
            sentence: "Of {slow_calls|count} slow calls of {op} by {comm}, {large_copies|count} were copies of \
                       {large_from_bytes|bytes} or more: {large_copies_bytes|bytes} in {large_copies_seconds|seconds}. They are \
                       slow because they are large.[ The thread was off the CPU for {off_cpu_share_of_them|percent} of that \
                       time.]",
            fix: "Copy less: keep data on the GPU, use smaller types; copy asynchronously from pinned memory on a stream of its own, while kernels run.".into(),
            ..self.own_cause(slow, &slow.large, taken, evidence)?
        })
    }

    /// Slow calls that are neither first launches nor large copies.
    fn tail(&self, slow: &Slow<'_>, seen: u64) -> Option<NodeChain> {
        let ((first, _), (last, _)) = (slow.others.first()?, slow.others.last()?);
        let (excess, span) = (beyond(slow), self.span(slow.process));
        let spreads = slow.p99 >= slow.p50.saturating_mul(SPREAD);
        if slow.calls.len() < MIN_CALLS || !(spreads || share(excess, span) >= HEAVY) {
            return None;
        }
        let off = slow.waits.all.min(excess);
        let evidence = Self::numbers(slow, seen)
            .with("judged_calls", slow.others.len() as f64)
            .with("excess_seconds", seconds(excess))
            .with("off_cpu_share_of_excess", share(off, excess));
        let (thread, seen) = ((slow.process, first.tid), (first.start, last.end));
        let detection = Detection {
            lost_ns: excess,
            names: vec![("op", slow.name.to_owned())],
            fix: "Record stacks of the slow calls (gpucause record). A full launch queue looks the same: then the GPU is the bottleneck.".into(),
            ..Detection::unexplained(slow.effect(), thread, (span, seen), evidence)
        };
        if slow.not_captured == slow.others.len() as u64 {
            let mut evidence = detection.evidence;
            evidence.0.retain(|(name, _)| name != "off_cpu_share_of_excess");
            return self.chain(Detection {
                evidence,
                sentence: "{judged_calls|count} of {calls_stored|count} stored calls of {op} by {comm} were slow, \
                           {excess_seconds|seconds} beyond what is usual. The file has no waits of their threads: whether they \
                           were off the CPU is not known.",
                fix: "Record the dispatcher threads too (gpucause record): without their waits no culprit can be named.".into(),
                ..detection
            });
        }
        match slow.waits.cause(excess) {
            Some((cause, reasons)) => self.explained(slow, detection, cause, slow.waits.of(reasons).min(excess)),
            None => self.chain(Detection {
                sentence: "{judged_calls|count} of {calls_stored|count} stored calls of {op} by {comm} were slow, \
                           {excess_seconds|seconds} beyond what is usual. Nothing in the file explains it: the thread was off \
                           the CPU for {off_cpu_share_of_excess|percent} of the excess, for reasons that explain less than half \
                           of it or are not recorded.",
                ..detection
            }),
        }
    }

    fn explained(
        &self,
        slow: &Slow<'_>,
        detection: Detection<'_>,
        cause: Cause,
        time: u64,
    ) -> Option<NodeChain> {
        let sentences = [
            "{comm} waited for the disk in {op}: that is {explained_share|percent} of the {excess_seconds|seconds} that its \
             {judged_calls|count} slow calls took beyond what is usual.",
            "{culprit} had the CPU in {culprit_seconds|seconds} of {op} in which {comm} had none: being off the CPU is \
             {explained_share|percent} of the {excess_seconds|seconds} that its {judged_calls|count} slow calls took beyond \
             what is usual.",
            "{comm} had no CPU in {op}: that is {explained_share|percent} of the {excess_seconds|seconds} that its \
             {judged_calls|count} slow calls took beyond what is usual; no single task had it meanwhile.",
        ];
        let (waits, of) = (&slow.waits, detection.lost_ns);
        self.blame(detection, &Blamed { cause, time, of, waits, sentences })
    }
}

fn taken(calls: &[Call]) -> u64 {
    calls.iter().map(Call::duration).sum()
}

/// Total excess of the calls that are neither cold nor large.
fn beyond(slow: &Slow<'_>) -> u64 {
    slow.others.iter().fold(0u64, |all, (_, excess)| all.saturating_add(*excess))
}

fn weight(chain: &NodeChain) -> u64 {
    let lost = chain
        .chain
        .evidence
        .get("excess_seconds")
        .unwrap_or_else(|| chain.chain.attributed_seconds());
    std::time::Duration::try_from_secs_f64(lost.max(0.0))
        .map_or(u64::MAX, |lost| u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX))
}
