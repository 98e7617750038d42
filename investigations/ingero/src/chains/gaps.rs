//! Rules for gaps between the calls of a thread, and for waits of a process without calls.

use std::collections::BTreeSet;

use gpucause_abi::state::Reason;
use gpucause_engine::chain::{Cause, Culprit, Effect, Evidence};

use super::detection::{Blamed, Detection, actor, fix};
use super::{EXPLAINED, RuleContext, Waits, seconds, share};
use crate::lists::Key;
use crate::rows::{Thread, covered};
use gpucause_trace::recording::{NodeChain, ProcessIndex};

/// Fewest calls of a thread for its gaps to be evaluated.
const MIN_CALLS: usize = 10;
/// Least share of the thread's time for gaps to be reported.
const MIN_SHARE: f64 = 0.25;
/// Least share of their time that workers must have been busy to be the cause.
const BUSY: f64 = 0.8;

/// The time between the calls of a thread.
struct Gaps<'a> {
    process: ProcessIndex,
    tid: u32,
    gaps: Vec<(i64, i64)>,
    /// From the first call to the end of the last.
    span: u64,
    all: u64,
    seen: (i64, i64),
    thread: Option<&'a Thread>,
    waits: Waits,
}

/// The time of a process's workers while its thread waited.
struct Workers {
    count: usize,
    busy_share: f64,
    io: u64,
    without_cpu: u64,
    running: u64,
    busiest: u32,
}

impl Workers {
    fn mechanism(&self) -> &'static str {
        let parts = [
            (self.running, "computing"),
            (self.io, "reading from disk"),
            (self.without_cpu, "waiting for a CPU"),
        ];
        parts.into_iter().max_by_key(|&(time, _)| time).map_or("", |(_, what)| what)
    }
}

impl RuleContext<'_> {
    /// Chains of the gaps of each process's thread with the most calls.
    pub(super) fn host_gaps(&self) -> Vec<NodeChain> {
        let mut processes: Vec<ProcessIndex> = self.outermost.keys().map(|key| key.0).collect();
        processes.dedup();
        let of = |process: ProcessIndex| {
            let own = self.outermost.range((process, 0)..=(process, u32::MAX));
            let most = own.max_by_key(|(_, calls)| calls.len())?;
            let gaps = self.gaps(process, most.0.1, most.1)?;
            self.evaluate_gaps(&gaps)
        };
        processes.into_iter().filter_map(of).collect()
    }

    fn gaps(&self, process: ProcessIndex, tid: u32, calls: &[(i64, i64)]) -> Option<Gaps<'_>> {
        let (first, last) = (calls.first()?, calls.last()?);
        if calls.len() < MIN_CALLS {
            return None;
        }
        let gaps = calls.windows(2).map(|pair| (pair[0].1, pair[1].0));
        let gaps: Vec<_> = gaps.filter(|(from, to)| from < to).collect();
        let all = gaps.iter().fold(0u64, |all, (from, to)| all.saturating_add(to.abs_diff(*from)));
        let thread = self.captured(process, tid);
        let mut waits = Waits::default();
        if let Some(thread) = thread {
            for &(from, to) in &gaps {
                waits.add(thread, from, to);
            }
        }
        let (seen, span) = ((first.0, last.1), last.1.abs_diff(first.0));
        Some(Gaps { process, tid, gaps, span, all, seen, thread, waits })
    }

    fn evaluate_gaps(&self, gaps: &Gaps<'_>) -> Option<NodeChain> {
        if share(gaps.all, gaps.span) < MIN_SHARE {
            return None;
        }
        let longest = gaps.gaps.iter().map(|(from, to)| to.abs_diff(*from)).max().unwrap_or(0);
        let mut evidence = Evidence::default()
            .with("span_seconds", seconds(gaps.span))
            .with("host_gap_seconds", seconds(gaps.all))
            .with("host_gap_share", share(gaps.all, gaps.span))
            .with("longest_gap_seconds", seconds(longest));
        if let Some(thread) = gaps.thread {
            let off = gaps.waits.all;
            let in_span = thread.off_in(gaps.seen.0, gaps.seen.1);
            evidence = evidence
                .with("off_cpu_in_gaps_seconds", seconds(off))
                .with("off_cpu_share_of_gaps", share(off, gaps.all))
                .with("off_cpu_seconds", seconds(in_span))
                .with("off_cpu_share", share(in_span, gaps.span));
        }
        let thread = (gaps.process, gaps.tid);
        let detection = Detection {
            lost_ns: gaps.waits.all,
            ..Detection::unexplained(Effect::LaunchGap, thread, (gaps.span, gaps.seen), evidence)
        };
        if gaps.thread.is_none() {
            return self.chain(Detection {
                sentence: "{comm} spends {host_gap_share|percent} of {span_seconds|seconds} between its stored CUDA calls, and \
                           the file has no waits of that thread: whether it worked or waited is not known.",
                fix: "Record the dispatcher thread too (gpucause record).".into(),
                ..detection
            });
        }
        if share(gaps.waits.all, gaps.all) < EXPLAINED {
            return self.chain(Detection {
                mechanism: "runs its own code between calls",
                sentence: "{comm} spends {host_gap_share|percent} of {span_seconds|seconds} between its stored CUDA calls, and was \
                           off the CPU for only {off_cpu_share_of_gaps|percent} of that ({off_cpu_in_gaps_seconds|seconds}): no \
                           scheduler, disk or worker kept it; it ran its own code. The longest gap took \
                           {longest_gap_seconds|seconds}.",
                fix: "Profile the thread's own code between calls: move data preparation to worker processes or to the GPU, so that it only launches.".into(),
                ..detection
            });
        }
        self.waited(gaps, detection)
    }

    /// For a thread that was off the CPU for most of the time between its calls.
    fn waited(&self, gaps: &Gaps<'_>, detection: Detection<'_>) -> Option<NodeChain> {
        if let Some((cause, reasons)) = gaps.waits.cause(gaps.waits.all) {
            return self.kept(gaps, detection, cause, gaps.waits.of(reasons));
        }
        match self.workers(gaps) {
            Some(workers) if workers.busy_share >= BUSY => self.starved(gaps, detection, &workers),
            workers => {
                let mut evidence = detection.evidence;
                let mut sentence = "{comm} was off the CPU for {off_cpu_share_of_gaps|percent} of the {host_gap_seconds|seconds} \
                                    between its stored CUDA calls. What it waited for is not recorded, so no culprit is named.";
                if let Some(workers) = workers {
                    evidence = evidence
                        .with("workers", workers.count as f64)
                        .with("workers_busy_share", workers.busy_share);
                    sentence = "{comm} was off the CPU for {off_cpu_share_of_gaps|percent} of the {host_gap_seconds|seconds} \
                                between its stored CUDA calls. Its {workers|count} {workers|worker was/workers were} busy for \
                                only {workers_busy_share|percent} of that, which does not explain it, and nothing else does.";
                }
                self.chain(Detection {
                    evidence,
                    sentence,
                    mechanism: "blocked",
                    fix: "Record it with gpucause record, which stores the reason of each wait and the thread that ended it.".into(),
                    ..detection
                })
            }
        }
    }

    fn kept(
        &self,
        gaps: &Gaps<'_>,
        detection: Detection<'_>,
        cause: Cause,
        time: u64,
    ) -> Option<NodeChain> {
        let sentences = [
            "{comm} waited for the disk between its CUDA calls: that is {explained_share|percent} of the \
             {off_cpu_in_gaps_seconds|seconds} that it was off the CPU there.",
            "{culprit} had the CPU for {culprit_seconds|seconds} in which {comm} had none between its CUDA calls: having none \
             is {explained_share|percent} of the {off_cpu_in_gaps_seconds|seconds} that it was off the CPU there.",
            "{comm} had no CPU between its CUDA calls: that is {explained_share|percent} of the \
             {off_cpu_in_gaps_seconds|seconds} that it was off the CPU there; no single task had it meanwhile.",
        ];
        let (waits, of) = (&gaps.waits, gaps.waits.all);
        self.blame(detection, &Blamed { cause, time, of, waits, sentences })
    }

    fn starved(
        &self,
        gaps: &Gaps<'_>,
        detection: Detection<'_>,
        workers: &Workers,
    ) -> Option<NodeChain> {
        let busiest: Culprit = self.culprit(gaps.process, workers.busiest)?;
        let blocked =
            gaps.waits.all.saturating_sub(gaps.waits.of(&[Reason::Preempted, Reason::Io]));
        let explained = share(blocked, gaps.waits.all);
        let evidence = detection
            .evidence
            .with("explained_seconds", seconds(blocked))
            .with("explained_share", explained)
            .with("workers", workers.count as f64)
            .with("workers_busy_share", workers.busy_share)
            .with("workers_running_seconds", seconds(workers.running))
            .with("workers_io_seconds", seconds(workers.io))
            .with("workers_without_cpu_seconds", seconds(workers.without_cpu));
        let mechanism = workers.mechanism();
        self.chain(Detection {
            cause: Cause::DataloaderStarvation,
            explained,
            lost_ns: blocked,
            evidence,
            from: Some((format!("{} ({})", busiest.comm, busiest.pid), "had no data ready")),
            mechanism: "blocked",
            sentence: "{comm} waited between its CUDA calls for {explained_seconds|seconds}, {off_cpu_share_of_gaps|percent} of the \
                       time there, while its {workers|count} {workers|worker was/workers were} busy for \
                       {workers_busy_share|percent} of it, above all {what}.",
            names: vec![("what", mechanism.to_owned())],
            fix: match mechanism {
                "reading from disk" => "Keep the dataset on a faster disk or in memory, read larger blocks, or use more workers.",
                "waiting for a CPU" => "Find out who had the CPU that the workers waited for: themselves, or another program.",
                _ => "Use more workers, or make what they compute for each sample cheaper; cache what does not change.",
            }
            .into(),
            culprit: Some(busiest),
            ..detection
        })
    }

    /// Descendants of the victim with rows in the file; only those that woke it, where wakers are recorded.
    fn workers(&self, gaps: &Gaps<'_>) -> Option<Workers> {
        let process = self.file.lists.get(gaps.process)?;
        let (node, pid) = (process.node, process.pid);
        let lists = &self.file.lists;
        let foreign = |task: u32| {
            lists.process_of_thread(node, task).is_some_and(|owner| owner != gaps.process)
        };
        let wakers: BTreeSet<u32> = gaps
            .waits
            .by_task
            .iter()
            .filter(|((reason, _), _)| *reason == Some(Reason::Other))
            .map(|(&(_, task), _)| task)
            .collect();
        let woken = wakers.iter().any(|&task| foreign(task));
        let own = lists.started_by(node, pid).filter(|&task| foreign(task));
        let own: BTreeSet<u32> = own.filter(|task| !woken || wakers.contains(task)).collect();
        let mut all =
            Workers { count: 0, busy_share: 0.0, io: 0, without_cpu: 0, running: 0, busiest: 0 };
        let (mut total, mut most) = (0u64, 0u64);
        for task in own {
            let key: Key = (node, task);
            let Some(thread) = self.threads.get(key.0, key.1) else { continue };
            if thread.off.is_empty() && thread.io.is_empty() {
                continue;
            }
            let [time, io, without_cpu, idle] = self.while_waiting(gaps, thread);
            let busy = time.saturating_sub(idle);
            all.count += 1;
            total = total.saturating_add(time);
            all.io = all.io.saturating_add(io);
            all.without_cpu = all.without_cpu.saturating_add(without_cpu);
            all.running =
                all.running.saturating_add(busy.saturating_sub(io).saturating_sub(without_cpu));
            if busy >= most {
                (most, all.busiest) = (busy, task);
            }
        }
        let busy = all.io.saturating_add(all.without_cpu).saturating_add(all.running);
        all.busy_share = share(busy, total);
        (all.count > 0).then_some(all)
    }

    /// Returns how long the victim waited, and how long a worker meanwhile waited for a disk, waited for a CPU, and was idle.
    fn while_waiting(&self, gaps: &Gaps<'_>, worker: &Thread) -> [u64; 4] {
        let [mut time, mut io, mut without_cpu, mut idle] = [0u64; 4];
        let Some(victim) = gaps.thread else { return [0; 4] };
        for &(from, to) in &gaps.gaps {
            for (wait, length) in victim.waits_in(from, to) {
                let (start, end) = (wait.start.max(from), wait.end.min(to));
                let on_disk = u64::try_from(covered(&worker.io, start, end)).unwrap_or(0);
                let (mut queued, mut blocked) = (0u64, 0u64);
                for (own, part) in worker.waits_in(start, end) {
                    match own.reason {
                        Some(Reason::Preempted | Reason::Runqueue) => {
                            queued = queued.saturating_add(part);
                        }
                        Some(Reason::Io) => {}
                        _ => blocked = blocked.saturating_add(part),
                    }
                }
                time = time.saturating_add(length);
                io = io.saturating_add(on_disk);
                without_cpu = without_cpu.saturating_add(queued);
                idle = idle.saturating_add(blocked.min(length));
            }
        }
        [time, io.min(time), without_cpu.min(time), idle]
    }

    /// Disk waits of processes without calls in the file.
    pub(super) fn waits_without_calls(&self) -> Vec<NodeChain> {
        let mut chains = Vec::new();
        let mut keys: Vec<&Key> = self.threads.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        for &(node, tid) in keys {
            let Some(process) = self.file.lists.process_of_thread(node, tid) else { continue };
            let calls = self.outermost.range((process, 0)..=(process, u32::MAX)).next();
            if let (None, Some(thread)) = (calls, self.captured(process, tid)) {
                chains.extend(self.disk_alone(process, tid, thread));
            }
        }
        chains
    }

    fn disk_alone(&self, process: ProcessIndex, tid: u32, thread: &Thread) -> Option<NodeChain> {
        let start = thread.off.first()?.start;
        let end = thread.off.iter().map(|wait| wait.end).max()?;
        let mut waits = Waits::default();
        waits.add(thread, start, end);
        let (span, disk) = (end.abs_diff(start), waits.of(&[Reason::Io]));
        let explained = share(disk, waits.all);
        if share(waits.all, span) < MIN_SHARE || explained < EXPLAINED {
            return None;
        }
        let for_disk = thread.off.iter().filter(|wait| wait.reason == Some(Reason::Io)).count();
        let comm = &self.file.lists.get(process)?.comm;
        let evidence = Evidence::default()
            .with("span_seconds", seconds(span))
            .with("waits", thread.off.len() as f64)
            .with("off_cpu_seconds", seconds(waits.all))
            .with("off_cpu_share", share(waits.all, span))
            .with("disk_waits", for_disk as f64)
            .with("disk_seconds", seconds(disk))
            .with("explained_share", explained);
        let thread = (process, tid);
        // Without calls it is not known to feed a GPU, so no feeding time is lost.
        self.chain(Detection {
            cause: Cause::BlockIo,
            explained,
            from: Some(actor(Cause::BlockIo, None)),
            mechanism: "blocked on a file",
            sentence: "{comm} was off the CPU for {off_cpu_share|percent} of {span_seconds|seconds}, and {explained_share|percent} \
                       of that ({disk_seconds|seconds} in {disk_waits|count} of {waits|count} waits) was for the disk. The file has \
                       no CUDA call of it.",
            fix: fix(Cause::BlockIo, None, comm),
            ..Detection::unexplained(Effect::LaunchGap, thread, (span, (start, end)), evidence)
        })
    }
}
