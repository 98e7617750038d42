//! Processes and the kernel maps that count them.

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::measure::MEASURES;
use gpucause_abi::op::{CopyKind, OpId, op_of_symbol};
use gpucause_abi::record::{COMM_LEN, DEVICE_LEN, PHASES, STATES, SelfCounter};
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, Comm, DeviceName, HandleName, ProcessSnapshot, Snapshot, StallSnapshot,
    Wait,
};
use gpucause_abi::state::{BlockOperation, Reason, Role};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_observe::clock::WallClock;
use gpucause_observe::kernel_launches::NameSource;
use gpucause_observe::pipeline::AccountSource;
use gpucause_probes::kernel_symbols::FunctionName;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

const NAMES: [&str; 2] = ["train", "python"];
/// Numbers that stand for what work is done on: operations, tasks, kernels.
pub(super) const KEYS: usize = 40;
/// A task may have the name of all others.
const TASKS: [&str; 6] = ["a", "b", "c", "d", "e", "other"];

/// Kinds of work of a process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    Call,
    Stall,
    Error,
    Launch,
    Preempted,
    Blocked,
    Time,
    Copy,
    Memory,
    Gap,
    Scheduler,
    Host,
}

impl Work {
    pub(super) const ALL: &'static [Self] = &[
        Self::Call,
        Self::Stall,
        Self::Error,
        Self::Launch,
        Self::Preempted,
        Self::Blocked,
        Self::Time,
        Self::Copy,
        Self::Memory,
        Self::Gap,
        Self::Scheduler,
        Self::Host,
    ];
}

pub(super) fn comm(name: &str) -> Comm {
    let mut raw = [0; COMM_LEN];
    raw[..name.len()].copy_from_slice(name.as_bytes());
    Comm(raw)
}

fn op(key: usize) -> OpId {
    let symbols = ["cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpy"];
    op_of_symbol(symbols[key % symbols.len()]).unwrap()
}

fn one(value: u64) -> Histogram {
    let slot = u16::try_from(slot_of(Nanos(value))).unwrap();
    Histogram { sum: Nanos(value), max: Nanos(value), slots: vec![(slot, 1)].into() }
}

/// The entry of a key, which is added where there is none.
fn entry<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: T) -> &mut T {
    let index = all.iter().position(is).unwrap_or_else(|| {
        all.push(new);
        all.len() - 1
    });
    &mut all[index]
}

/// Names of kernels by handle.
#[derive(Debug, Default)]
struct Modules(HashMap<u64, String>);

impl NameSource for Kernel {
    fn handle_name(&mut self, _: ProcId, handle: u64) -> Option<HandleName> {
        let name =
            self.names.0.get(&handle).cloned().unwrap_or_else(|| format!("kernel{}", handle % 30));
        (!handle.is_multiple_of(7)).then(|| HandleName::Text(name.as_bytes().into()))
    }

    fn function_names(
        &mut self,
        _: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        addresses.iter().map(|&at| (at, None)).collect()
    }
}

/// A process that lives.
#[derive(Debug, Clone, Copy)]
struct Process {
    started: Nanos,
    name: usize,
    /// Its image that is counted now.
    image: Option<ProcId>,
    parent: Option<ProcId>,
}

#[derive(Debug, Default)]
pub(super) struct Kernel {
    now: u64,
    detached: bool,
    last_id: u32,
    hits: u64,
    live: BTreeMap<u32, Process>,
    images: BTreeMap<ProcId, ProcessSnapshot>,
    names: Modules,
    /// By how much current time slices of live threads are reported too short.
    pub(super) short: u64,
}

impl AccountSource for Kernel {
    type Error = Infallible;

    fn snapshot(&mut self) -> Result<Snapshot, Infallible> {
        let taken_at = self.tick();
        let processes = self.processes();
        let counters = vec![(SelfCounter::HitCall, self.hits)];
        Ok(Snapshot { taken_at, processes, counters, ..Snapshot::default() })
    }

    fn remove(&mut self, gone: &HashSet<ProcId>) -> Result<(), Infallible> {
        self.images.retain(|id, _| !gone.contains(id));
        Ok(())
    }

    /// A kernel is timed from now on, from zero if it was before.
    fn time_kernel(&mut self, id: ProcId, handle: u64) -> Result<bool, Infallible> {
        if let Some(image) = self.images.get_mut(&id) {
            image.launch_times.retain(|own| own.0 != handle);
            image.launch_times.push((handle, Histogram::default()));
        }
        Ok(true)
    }

    fn clock(&mut self, _: Nanos) -> WallClock {
        WallClock::with_origin(Duration::from_secs(1_000))
    }
}

impl Kernel {
    pub(super) fn pass(&mut self, time: Nanos) {
        self.now += time.0;
    }

    /// A later time than any before.
    fn tick(&mut self) -> Nanos {
        self.now += 1_000_000;
        Nanos(self.now)
    }

    pub(super) fn begin(&mut self, pid: u32, name: usize, worker: bool) {
        if self.live.contains_key(&pid) {
            return;
        }
        let parent = self.live.values().find_map(|process| process.image).filter(|_| worker);
        let started = self.tick();
        self.live.insert(pid, Process { started, name, image: None, parent });
        if parent.is_some() {
            self.image(pid);
        }
    }

    /// The accounts of the process, which begin with its first traced call or with the fork of a counted one.
    fn image(&mut self, pid: u32) -> Option<&mut ProcessSnapshot> {
        if self.detached {
            return None;
        }
        let now = self.tick();
        let process = self.live.get_mut(&pid)?;
        let id = *process.image.get_or_insert_with(|| {
            self.last_id += 1;
            ProcId(self.last_id)
        });
        let image = self.images.entry(id).or_insert_with(|| ProcessSnapshot {
            started_boottime: process.started,
            first_seen: now,
            parent: process.parent,
            ..ProcessSnapshot::new(id, Tgid(pid), comm(NAMES[process.name]))
        });
        Some(image)
    }

    fn close(&mut self, image: Option<ProcId>, execed: bool) {
        let now = self.tick();
        if let Some(image) = image.and_then(|id| self.images.get_mut(&id)) {
            (image.ended, image.execed) = (Some(now), execed);
        }
    }

    pub(super) fn exec(&mut self, pid: u32, name: usize) {
        let Some(process) = self.live.get_mut(&pid) else { return };
        process.name = name;
        let image = process.image.take();
        self.close(image, true);
    }

    pub(super) fn end(&mut self, pid: u32) {
        let image = self.live.remove(&pid).and_then(|process| process.image);
        self.close(image, false);
    }

    /// Without probes every process counts as ended, and as new when it is seen again.
    pub(super) fn toggle(&mut self) {
        self.detached = !self.detached;
        let images: Vec<_> = self.live.values_mut().map(|process| process.image.take()).collect();
        images.into_iter().for_each(|image| self.close(image, false));
    }

    pub(super) fn load(&mut self, handle: u64, name: usize) {
        self.names.0.insert(handle, format!("kernel{name}"));
    }

    pub(super) fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    /// All accounts.
    pub(super) fn processes(&self) -> Vec<ProcessSnapshot> {
        let mut processes: Vec<_> = self.images.values().cloned().collect();
        for process in processes.iter_mut().filter(|process| process.ended.is_none()) {
            for time in process.dispatcher_time.0.iter_mut().flatten() {
                time.0 = time.0.saturating_sub(self.short);
            }
            if self.short % 2 == 1 {
                process.host.page_faults = None;
            }
        }
        processes
    }

    pub(super) fn work_at_random(&mut self, pid: u32, seed: u64, times: usize) {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for _ in 0..times {
            let work = Work::ALL[random() as usize % Work::ALL.len()];
            self.work(pid, work, random() as usize % KEYS, random());
        }
    }

    pub(super) fn work(&mut self, pid: u32, work: Work, key: usize, amount: u64) {
        self.hits += 1;
        let Some(image) = self.image(pid) else { return };
        image.dispatches |= match work {
            Work::Scheduler | Work::Host => false,
            // Workers wait, too.
            Work::Preempted | Work::Blocked => image.parent.is_none(),
            _ => true,
        };
        let task = comm(TASKS[key % TASKS.len()]);
        match work {
            Work::Call | Work::Stall | Work::Error => call(image, work, key, amount),
            Work::Launch if key == 0 => image.measures.other_launches += 1,
            Work::Launch => (0..6).for_each(|next| launch(image, (key + next) as u64, amount)),
            Work::Preempted => {
                let reason = [Reason::Preempted, Reason::Runqueue][key % 2];
                wait(image, Wait::host(reason, task, Nanos(amount)));
            }
            Work::Blocked => {
                let reason = [Reason::Io, Reason::Futex][key / 2 % 2];
                wait(image, Wait::host(reason, task, Nanos(amount)));
            }
            Work::Time => {
                let times = &mut image.dispatcher_time.0[key % PHASES];
                times[amount as usize % STATES].0 += amount;
            }
            Work::Copy => {
                let (kind, class) = (CopyKind::ALL[key % CopyKind::COUNT], key as u16 % 6);
                image.copied[kind as usize] += amount;
                let op = op_of_symbol("cudaMemcpyAsync").unwrap();
                entry(&mut image.untimed_calls, |own| own.0 == op, (op, 0)).1 += 1;
                let new = (kind, class, Histogram::default());
                let is = |own: &(CopyKind, u16, Histogram)| (own.0, own.1) == (kind, class);
                entry(&mut image.copies, is, new).2.merge(&one(amount));
            }
            Work::Memory => {
                let op = op_of_symbol("ncclAllReduce").unwrap();
                image.memory.allocated += amount;
                image.memory.freed += amount / 2;
                entry(&mut image.collectives, |own| own.0 == op, (op, 0)).1 += amount;
            }
            Work::Gap => {
                image.launch_gap.merge(&one(amount));
                image.launches.untimed += 1;
                image.launches.observed.0 += amount;
                image.launches.unobserved.0 += amount % 7;
            }
            Work::Scheduler => schedule(image, key, amount),
            Work::Host => use_host(image, key, amount),
        }
    }
}

fn call(image: &mut ProcessSnapshot, work: Work, key: usize, amount: u64) {
    let (op, cold, nested) = (op(key), key % 4 == 3, key % 5 == 4);
    match work {
        Work::Stall => {
            let new = StallSnapshot { op, cold, nested, calls: 0, offcpu: Default::default() };
            let stall = entry(&mut image.stalls, |own| own.kind() == (op, cold, nested), new);
            stall.calls += 1;
            stall.offcpu[key % Reason::COUNT].0 += amount;
        }
        Work::Error => {
            let code = if key < 6 { 1 } else { 5_000 + key as u32 };
            let is = |own: &(OpId, u32, u64)| (own.0, own.1) == (op, code);
            entry(&mut image.errors, is, (op, code, 0)).2 += 1;
        }
        _ => {
            let new =
                CallSnapshot { nested, ..CallSnapshot::unstalled(op, cold, Histogram::default()) };
            let call = entry(&mut image.calls, |own| own.kind() == (op, cold, nested), new);
            call.durations.merge(&one(amount));
        }
    }
}

/// Adds launches: now and then as many as make a kernel worth timing.
fn launch(image: &mut ProcessSnapshot, handle: u64, amount: u64) {
    entry(&mut image.kernels, |own| own.0 == handle, (handle, 0)).1 += amount % 1_000;
    if let Some(timed) = image.launch_times.iter_mut().find(|own| own.0 == handle) {
        timed.1.merge(&one(amount));
    }
}

fn wait(image: &mut ProcessSnapshot, wait: Wait) {
    let is = |own: &Wait| (own.reason, own.on) == (wait.reason, wait.on);
    entry(&mut image.waits, is, Wait { total: Nanos(0), ..wait }).total.0 += wait.total.0;
}

fn schedule(image: &mut ProcessSnapshot, key: usize, amount: u64) {
    let (role, reason) = (Role::ALL[key % Role::COUNT], Reason::ALL[key % Reason::COUNT]);
    image.switches[role as usize][key % 2] += 1;
    image.measures.abandoned_calls += 1;
    let is = |own: &(Role, Reason, Histogram)| (own.0, own.1) == (role, reason);
    entry(&mut image.offcpu, is, (role, reason, Histogram::default())).2.merge(&one(amount));
    let new = (role, Histogram::default());
    entry(&mut image.runqueue, |own| own.0 == role, new).1.merge(&one(amount));
}

fn use_host(image: &mut ProcessSnapshot, key: usize, amount: u64) {
    let host = &mut image.host;
    let device = DeviceName([b"abc"[key % 3]; DEVICE_LEN]);
    let operation = BlockOperation::ALL[key % BlockOperation::COUNT];
    let new = BlockIo { device, operation, time: Nanos(0), bytes: 0, requests: 0 };
    let is = |own: &BlockIo| (own.device, own.operation) == (device, operation);
    let io = entry(&mut host.block_io, is, new);
    io.time.0 += amount;
    io.bytes += amount;
    io.requests += 1;
    host.page_faults.get_or_insert_default()[key % 2] += amount;
    for (measure, own) in MEASURES.iter().zip(image.measures.amounts_mut()) {
        if !measure.programs.is_empty() {
            *own += amount;
        }
    }
}
