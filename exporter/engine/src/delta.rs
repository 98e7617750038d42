//! Deltas of one process between two snapshots. Counters that decrease, as after a restart, give 0.

mod call;
mod since;
mod thread;
mod values;

use std::cell::OnceCell;
use std::collections::HashMap;

use gpucause_abi::hist::Histogram;
use gpucause_abi::measure::Measures;
use gpucause_abi::op::{Api, Class, CopyKind, LaunchOps, Op, OpId};
use gpucause_abi::snapshot::{
    BlockIo, DispatcherSnapshot, LaunchSampling, ProcessSnapshot, TimeAccount, Wait,
};
use gpucause_abi::state::Reason;
use gpucause_abi::{Nanos, Tid};

use crate::baseline::{ProcessBaseline, ThreadBaseline};
use crate::times::ratio;

pub(crate) use call::CallDelta;
pub(crate) use thread::ThreadDelta;
pub(crate) use values::Values;

/// `cudaErrorMemoryAllocation` and `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// Activity of one process in one window.
#[derive(Debug, Default)]
pub(crate) struct Delta<'a> {
    /// Length of the window.
    pub(crate) wall: Nanos,
    baseline: Option<&'a ProcessBaseline>,
    now: Option<&'a ProcessSnapshot>,
    // Computed on first use: most of the long window is never needed.
    calls: OnceCell<Vec<CallDelta<'a>>>,
    threads: OnceCell<Vec<ThreadDelta>>,
    waits: OnceCell<Vec<Wait>>,
    launch_gap: OnceCell<Values>,
    launches: OnceCell<(LaunchOps, u64)>,
}

/// Largest unobserved share of a window whose launch count is taken as complete.
const MAX_UNOBSERVED: f64 = 0.02;

/// Least timed launches that stand for those that were not timed.
pub(crate) const MIN_TIMED: u64 = 20;

/// A thread whose launches took less than one part in so many of another one's is no dispatcher thread any more.
const RARELY: u64 = 100;

/// Finds the matching entry of a previous list, first at the same index.
fn entry<T>(earlier: &[T], index: usize, same: impl Fn(&T) -> bool) -> Option<&T> {
    earlier
        .get(index)
        .filter(|&item| same(item))
        .or_else(|| earlier.iter().find(|&item| same(item)))
}

impl<'a> Delta<'a> {
    /// The increase from `baseline` to `now`; all of `now` without a baseline.
    pub(crate) fn between(
        baseline: Option<&'a ProcessBaseline>,
        now: &'a ProcessSnapshot,
        wall: Nanos,
    ) -> Self {
        Self { wall, baseline, now: Some(now), ..Self::default() }
    }

    pub(crate) fn calls(&self) -> &[CallDelta<'a>] {
        self.calls.get_or_init(|| {
            let Some(now) = self.now else { return Vec::new() };
            let mut calls = Vec::with_capacity(now.calls.len());
            let of = |(index, call)| CallDelta::of(self.baseline, now, index, call);
            calls.extend(now.calls.iter().enumerate().filter_map(of));
            calls
        })
    }

    /// Dispatcher threads; those that ended in the window are combined into one.
    pub(crate) fn threads(&self) -> &[ThreadDelta] {
        self.threads.get_or_init(|| {
            let Some(now) = self.now else { return Vec::new() };
            let of = |(index, thread): (usize, &DispatcherSnapshot)| {
                let same = |earlier: &ThreadBaseline| earlier.tid == thread.tid;
                let earlier =
                    self.baseline.and_then(|baseline| entry(&baseline.threads, index, same));
                thread::since(earlier, thread, self.wall)
            };
            let mut threads = Vec::with_capacity(now.dispatchers.len() + 1);
            threads.extend(now.dispatchers.iter().enumerate().filter_map(of));
            threads.extend(thread::ended(self.baseline, now, &threads, self.wall));
            threads
        })
    }

    /// One dispatcher thread, without computing the others.
    pub(crate) fn thread(&self, tid: Tid) -> Option<ThreadDelta> {
        if let Some(threads) = self.threads.get() {
            return threads.iter().find(|thread| thread.tid == tid).copied();
        }
        let Some(now) = self.now?.dispatchers.iter().find(|thread| thread.tid == tid) else {
            return self.threads().iter().find(|thread| thread.tid == tid).copied();
        };
        let baseline =
            self.baseline.and_then(|baseline| baseline.threads.iter().find(|t| t.tid == tid));
        thread::since(baseline, now, self.wall)
    }

    /// Time of all dispatcher threads, ended ones included.
    pub(crate) fn dispatcher_time(&self) -> TimeAccount {
        let now = self.now.map_or_else(TimeAccount::default, |now| now.dispatcher_time);
        self.baseline.map_or(now, |baseline| baseline.dispatcher_time.until(now))
    }

    /// The main thread of a worker.
    pub(crate) fn worker(&self) -> Option<ThreadDelta> {
        let baseline = self.baseline.and_then(|baseline| baseline.worker.as_deref());
        self.now?.worker.as_deref().and_then(|now| thread::since(baseline, now, self.wall))
    }

    /// Device memory allocated, in bytes.
    pub(crate) fn allocated(&self) -> u64 {
        let now = self.now.map_or(0, |now| now.memory.allocated);
        now.saturating_sub(self.baseline.map_or(0, |baseline| baseline.allocated))
    }

    pub(crate) fn measures(&self) -> Measures {
        let now = self.now.map_or_else(Measures::default, |now| now.measures);
        self.baseline.map_or(now, |baseline| now.since(&baseline.measures))
    }

    /// The disk that requests of the process took longest on, with those of all operations.
    pub(crate) fn busiest_disk(&self) -> Option<BlockIo> {
        let earlier = self.baseline.map_or(&[][..], |baseline| &baseline.block_io);
        let mut disks: Vec<BlockIo> = Vec::new();
        for io in &self.now?.host.block_io {
            let same = |own: &&BlockIo| (own.device, own.operation) == (io.device, io.operation);
            let before = earlier.iter().find(same);
            let time = io.time.less(before.map_or(Nanos(0), |own| own.time));
            let requests = io.requests.saturating_sub(before.map_or(0, |own| own.requests));
            match disks.iter_mut().find(|own| own.device == io.device) {
                Some(disk) => {
                    disk.time.0 = disk.time.0.saturating_add(time.0);
                    disk.requests = disk.requests.saturating_add(requests);
                }
                None => disks.push(BlockIo { time, requests, ..*io }),
            }
        }
        disks.into_iter().filter(|disk| disk.requests > 0).max_by_key(|disk| disk.time)
    }

    /// Copies by kind and size class: count and total time.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (CopyKind, u16, u64, Nanos)> {
        let copies = self.now.into_iter().flat_map(|now| now.copies.iter().enumerate());
        copies.map(|(index, (kind, class, durations))| {
            let same = |(k, c, _): &(CopyKind, u16, Histogram)| (k, c) == (kind, class);
            let earlier = self.baseline.and_then(|baseline| entry(&baseline.copies, index, same));
            let (count, sum) = earlier.map_or((0, Nanos(0)), |e| (e.2.count(), e.2.sum));
            (*kind, *class, durations.count().saturating_sub(count), durations.sum.less(sum))
        })
    }

    pub(crate) fn launch_gap(&self) -> &Values {
        let baseline = self.baseline.map(|baseline| &baseline.launch_gap);
        let since = || self.now.map(|now| Values::since(baseline, &now.launch_gap));
        self.launch_gap.get_or_init(|| since().unwrap_or_default())
    }

    pub(crate) fn waits(&self) -> &[Wait] {
        let since = |now| waits_since(self.baseline.map_or(&[], |baseline| &baseline.waits), now);
        self.waits.get_or_init(|| self.now.map(|now| since(&now.waits)).unwrap_or_default())
    }

    /// Number of outermost calls of a class. Nested calls, as of the driver by the runtime, do not count.
    pub(crate) fn count(&self, class: Class, wanted: impl Fn(&str) -> bool) -> u64 {
        let is_wanted = |id: OpId| id.op().is_some_and(|op| op.class == class && wanted(op.name));
        let untimed = |calls: &[(OpId, u64)]| {
            let calls = calls.iter().filter(|(id, _)| is_wanted(*id));
            calls.fold(0, |all: u64, own| all.saturating_add(own.1))
        };
        let before = self.baseline.map_or(0, |baseline| untimed(&baseline.untimed_calls));
        let now = self.now.map_or(0, |now| untimed(&now.untimed_calls));
        self.count_ops(class, is_wanted).saturating_add(now.saturating_sub(before))
    }

    fn count_ops(&self, class: Class, wanted: impl Fn(OpId) -> bool) -> u64 {
        self.sum(class, |call| if wanted(call.op) { call.count() } else { 0 })
    }

    /// Sum over the outermost calls of a class.
    fn sum(&self, class: Class, amount: impl Fn(&CallDelta<'_>) -> u64) -> u64 {
        let of_class = |op: OpId| op.op().is_some_and(|op| op.class == class);
        let calls = self.calls().iter().filter(|call| !call.nested && of_class(call.op));
        calls.fold(0, |all, call| all.saturating_add(amount(call)))
    }

    /// Allocations that failed for lack of device memory. Runtime calls also fail at driver level, so this takes the maximum over
    /// APIs, not the sum.
    pub(crate) fn refused_allocations(&self) -> u64 {
        let baseline: &[_] = self.baseline.map_or(&[], |baseline| &baseline.errors);
        let of_api = |api: Api| {
            let is_refusal = |&&(id, code, _): &&(OpId, u32, u64)| {
                let allocates = |op: &Op| op.api == api && op.class == Class::Alloc;
                code == OUT_OF_MEMORY && id.op().is_some_and(allocates)
            };
            let count = |errors: &[(OpId, u32, u64)]| {
                errors.iter().filter(is_refusal).fold(0, |all: u64, own| all.saturating_add(own.2))
            };
            count(self.now.map_or(&[], |now| &now.errors)).saturating_sub(count(baseline))
        };
        Api::ALL.iter().map(|&api| of_api(api)).max().unwrap_or(0)
    }

    /// Time in outermost calls of a class.
    pub(crate) fn time_in(&self, class: Class, wanted: impl Fn(&str) -> bool) -> Nanos {
        let is_wanted = |id: OpId| id.op().is_some_and(|op| wanted(op.name));
        Nanos(self.sum(class, |call| if is_wanted(call.op) { call.sum.0 } else { 0 }))
    }

    /// Launches were counted for nearly all of the window.
    pub(crate) fn saw_launches(&self) -> bool {
        ratio(self.unobserved(), self.wall) <= MAX_UNOBSERVED
    }

    /// Launches were counted for hardly any of the window.
    pub(crate) fn saw_no_launches(&self) -> bool {
        ratio(self.observed(), self.wall) <= MAX_UNOBSERVED
    }

    /// The part of the window in which launches were counted.
    pub(crate) fn observed(&self) -> Nanos {
        self.wall.less(self.unobserved())
    }

    fn unobserved(&self) -> Nanos {
        let unobserved = |launches: &LaunchSampling| launches.unobserved;
        let baseline = self.baseline.map_or(Nanos(0), |baseline| unobserved(&baseline.launches));
        self.now.map_or(Nanos(0), |now| unobserved(&now.launches)).less(baseline)
    }

    /// The op that is launched most, and what its quickest tenth takes at most; `None` with few timed ones.
    pub(crate) fn quick_launch(&self, ops: &LaunchOps) -> Option<(OpId, Nanos)> {
        let is_plain = |call: &&CallDelta<'_>| !call.cold && !call.nested && ops.contains(call.op);
        let call = self.calls().iter().filter(is_plain).max_by_key(|call| call.count())?;
        let mut durations = Values::default();
        call.durations_into(&mut durations);
        (durations.count >= MIN_TIMED).then_some((call.op, durations.quantile(0.1)?))
    }

    /// Outermost launches as metrics count them, whatever the rules are set to.
    pub(crate) fn all_launches(&self) -> u64 {
        self.launched(|id| id.op().is_some_and(Op::is_launch))
    }

    /// Kernel and graph launches.
    pub(crate) fn launches(&self, ops: &LaunchOps) -> u64 {
        // Cached: all rules ask for the ops of the settings.
        if let Some((known, launches)) = self.launches.get()
            && known == ops
        {
            return *launches;
        }
        let launches = self.launched(|id| ops.contains(id));
        self.launches.get_or_init(|| (*ops, launches));
        launches
    }

    fn launched(&self, is_launch: impl Fn(OpId) -> bool) -> u64 {
        let of_class = |&class| self.count_ops(class, &is_launch);
        let baseline = self.baseline.map_or(0, |baseline| baseline.launches.untimed);
        let untimed = self.now.map_or(0, |now| now.launches.untimed).saturating_sub(baseline);
        Class::ALL.iter().map(of_class).fold(untimed, u64::saturating_add)
    }

    /// The dispatcher threads; if none feeds now, the one that fed most so far.
    pub(crate) fn feeders(&self) -> impl Iterator<Item = &ThreadDelta> {
        let nobody = !self.threads().iter().any(|thread| self.feeds(thread));
        let main = self.threads().iter().filter(|thread| nobody && thread.fed.0 > 0);
        let main = main.max_by_key(|thread| thread.fed);
        self.threads().iter().filter(|thread| self.feeds(thread)).chain(main)
    }

    /// Returns true if a thread launched work. Its account has no trace of unobserved launches: where the process has any, a thread that
    /// launched before, and not rarely, counts too.
    fn feeds(&self, thread: &ThreadDelta) -> bool {
        let most = || self.threads().iter().map(|own| own.fed.0).max().unwrap_or_default();
        thread.launched() || (self.has_unobserved_launches() && thread.fed.0 > most() / RARELY)
    }

    fn has_unobserved_launches(&self) -> bool {
        self.unobserved() > Nanos(0)
    }

    /// The dispatcher thread with the largest `amount`.
    pub(crate) fn victim(&self, amount: impl Fn(&ThreadDelta) -> Nanos) -> Option<&ThreadDelta> {
        let feeders = self.feeders().map(|thread| (amount(thread), thread));
        feeders
            .filter(|(amount, _)| amount.0 > 0)
            .max_by_key(|&(amount, _)| amount)
            .map(|best| best.1)
    }

    /// The dispatcher thread with most time in launches.
    pub(crate) fn main_feeder(&self) -> Option<&ThreadDelta> {
        self.feeders().max_by_key(|thread| thread.fed)
    }
}

fn waits_since(baseline: &[Wait], now: &[Wait]) -> Vec<Wait> {
    let key = |wait: &Wait| {
        (
            wait.tid,
            wait.reason as u8,
            wait.phase as u8,
            wait.on,
            wait.holder,
            wait.lock,
            wait.syscall,
        )
    };
    // Most are at the same index; the others are found by key.
    let elsewhere = OnceCell::new();
    let earlier = |index: usize, wait: &Wait| match baseline.get(index) {
        Some(earlier) if key(earlier) == key(wait) => Some(earlier),
        _ => {
            let by_key =
                || baseline.iter().map(|wait| (key(wait), wait)).collect::<HashMap<_, _>>();
            elsewhere.get_or_init(by_key).get(&key(wait)).copied()
        }
    };
    let since = |(index, wait): (usize, &Wait)| {
        let known = earlier(index, wait).map(|own| (own.total, own.held, own.behind));
        let (total, held, behind) = known.unwrap_or_default();
        let total = wait.total.less(total);
        let held = wait.held.less(held).min(total);
        Wait { total, held, behind: wait.behind.less(behind).min(total), ..*wait }
    };
    let mut waits = Vec::with_capacity(now.len());
    waits.extend(now.iter().enumerate().map(since).filter(|wait| wait.total.0 > 0));
    waits
}

/// Reasons for which a thread that could run has no CPU.
pub(crate) const NO_CPU: [Reason; 2] = [Reason::Preempted, Reason::Runqueue];
