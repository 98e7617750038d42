//! Launches by the names of kernels. Few names of a process are tracked individually, and no counter decreases.
//!
//! Launches since the last update are added to the name that a handle has now, if that is tracked, and else to `other`. So each
//! launch stays in one series, although handles are reused and the tracked names change.

pub mod readable;

use gpucause_abi::ProcId;
use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot};
use gpucause_probes::kernel_symbols::FunctionName;
use readable::readable;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Names that are tracked for each process, and functions of it whose launches are timed.
const LIMIT: usize = 10;
/// Handles of a process, the most launched, whose names are resolved.
const NAMED: usize = 64;
/// Names of a process that are ranked by their launches: a program that compiles kernels as it runs has no end of names.
const RANKED: usize = 1024;
/// Launches after which a kernel is worth timing.
const HOT: u64 = 100;
/// Aliases that are followed from a handle to its name.
const MAX_HOPS: usize = 4;
/// The label of launches of all kernels that are not tracked individually.
pub const OTHER: &str = "other";
/// The label of launches of kernels without a name.
pub const UNKNOWN: &str = "unknown";
/// Names that no kernel may have.
const RESERVED: [&str; 2] = [OTHER, UNKNOWN];

/// Where names come from.
pub trait NameSource {
    /// Returns the name with which the process asked for this handle.
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName>;

    /// The names of functions of the process, without those that cannot be resolved now.
    fn function_names(
        &mut self,
        process: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName> {
        let _ = (process, addresses);
        BTreeMap::new()
    }
}

/// The launches of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelLaunches {
    /// By name, the most launched first.
    pub by_name: Vec<(Arc<str>, u64)>,
    /// By names that were exported and are not now: another image of the process may still have them.
    pub former: Vec<(Arc<str>, u64)>,
    /// Launches of kernels without a name.
    pub unknown: u64,
    /// Launches of all other kernels.
    pub other: u64,
    /// Launches of all kernels, also of those whose name is no longer tracked.
    pub total: u64,
    /// How long warm launches took since they have been timed.
    pub times: Vec<(Arc<str>, Histogram)>,
}

impl KernelLaunches {
    /// Adds those of another image of the process.
    pub fn merge(&mut self, more: &Self) {
        for (name, launches) in &more.by_name {
            let former = self.former.extract_if(.., |(own, _)| own == name);
            let before = former.map(|(_, launches)| launches).sum::<u64>();
            add(&mut self.by_name, name, &(before + launches), |a, b| *a += b);
        }
        for (name, launches) in &more.former {
            let is_exported = self.by_name.iter().any(|(own, _)| own == name);
            let names = if is_exported { &mut self.by_name } else { &mut self.former };
            add(names, name, launches, |a, b| *a += b);
        }
        for (name, times) in &more.times {
            add(&mut self.times, name, times, Histogram::merge);
        }
        self.unknown += more.unknown;
        self.other += more.other;
        self.total += more.total;
    }
}

fn add<T: Clone>(all: &mut Vec<(Arc<str>, T)>, name: &Arc<str>, more: &T, merge: fn(&mut T, &T)) {
    match all.iter_mut().find(|(own, _)| own == name) {
        Some((_, total)) => merge(total, more),
        None => all.push((Arc::clone(name), more.clone())),
    }
}

/// A handle with its name.
#[derive(Debug, Clone)]
struct Known {
    /// Name that the process gave; kept to detect a change.
    handle_name: Option<HandleName>,
    /// `None` for a kernel without a name.
    name: Option<Arc<str>>,
    /// True if the name could not be resolved, so that this is tried again.
    unresolved: bool,
}

/// The kernels of one process.
#[derive(Debug, Default)]
struct ProcessKernels {
    /// Launches by handle at the last update.
    seen: HashMap<u64, u64>,
    other_seen: u64,
    handles: HashMap<u64, Known>,
    /// Launches of names, for the ranking: at most [`RANKED`] of them.
    named: HashMap<Arc<str>, u64>,
    top: HashSet<Arc<str>>,
    /// Launches of names while they were tracked. They stay few: each that is tracked later has twice the launches of the one
    /// before.
    exported: HashMap<Arc<str>, u64>,
    unknown: u64,
    other: u64,
    total: u64,
    /// Times that a name's launches were added to `other`.
    aggregated: u64,
    /// Handles whose launches are timed, with the names that they had when timing began.
    timed: HashMap<u64, Arc<str>>,
    /// The times of those handles at the last update.
    last_times: HashMap<u64, Histogram>,
    /// Times of names whose handles are reused by other kernels. Once there are [`LIMIT`] of them, no further name is timed: a timed
    /// name is exported for as long as the process.
    retired: BTreeMap<Arc<str>, Histogram>,
}

/// The kernels of every process.
#[derive(Debug, Default)]
pub struct KernelNames {
    processes: HashMap<ProcId, ProcessKernels>,
    /// Additions to `other` of processes that are no longer observed.
    aggregated: u64,
}

impl KernelNames {
    /// Adds the launches of `processes`; other processes are forgotten.
    pub fn update(&mut self, processes: &[ProcessSnapshot], names: &mut dyn NameSource) {
        let mut before = std::mem::take(&mut self.processes);
        for process in processes {
            let mut kernels = before.remove(&process.id).unwrap_or_default();
            kernels.update(process, names);
            self.processes.insert(process.id, kernels);
        }
        self.aggregated += before.into_values().map(|gone| gone.aggregated).sum::<u64>();
    }

    /// The launches of these processes at the last update, with the times in `processes`. To be called before further functions
    /// are timed: the times are those of the kernels that the handles had.
    #[must_use]
    pub fn launches(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, KernelLaunches> {
        let mut launches = HashMap::with_capacity(processes.len());
        for process in processes {
            if let Some(kernels) = self.processes.get_mut(&process.id) {
                launches.insert(process.id, kernels.launches(process));
            }
        }
        launches
    }

    /// The handles that have names.
    #[must_use]
    pub fn names(&self) -> Vec<(ProcId, u64, Arc<str>)> {
        let of = |(&id, kernels): (&ProcId, &ProcessKernels)| {
            let named = kernels.handles.iter();
            let named =
                named.filter_map(|(&handle, known)| Some((id, handle, known.name.clone()?)));
            named.collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    /// Functions that should be timed and are not: the most launched of each process, with their names.
    #[must_use]
    pub fn untimed(&self, processes: &[ProcessSnapshot]) -> Vec<(ProcId, u64, Arc<str>)> {
        let mut chosen = Vec::new();
        for process in processes.iter().filter(|process| process.ended.is_none()) {
            let Some(kernels) = self.processes.get(&process.id) else { continue };
            let free = LIMIT.saturating_sub(kernels.timed.len());
            let mut hot: Vec<_> = process
                .kernels
                .iter()
                .filter(|(handle, launches)| {
                    *launches >= HOT && !kernels.timed.contains_key(handle)
                })
                .filter_map(|&(handle, launches)| {
                    let name = kernels.handles.get(&handle)?.name.clone()?;
                    let retired = &kernels.retired;
                    let is_free = retired.len() < LIMIT || retired.contains_key(&name);
                    is_free.then_some((Reverse(launches), handle, name))
                })
                .collect();
            hot.sort_unstable();
            let hottest = hot.into_iter().take(free);
            chosen.extend(hottest.map(|(_, handle, name)| (process.id, handle, name)));
        }
        chosen
    }

    /// A function is timed from now on.
    pub fn timed(&mut self, id: ProcId, handle: u64, name: Arc<str>) {
        if let Some(kernels) = self.processes.get_mut(&id) {
            kernels.timed.insert(handle, name);
        }
    }

    /// Times that a name's launches were added to `other`.
    #[must_use]
    pub fn aggregated(&self) -> u64 {
        self.aggregated + self.processes.values().map(|own| own.aggregated).sum::<u64>()
    }
}

impl ProcessKernels {
    fn update(&mut self, process: &ProcessSnapshot, source: &mut dyn NameSource) {
        let mut fresh: Vec<(u64, u64)> = Vec::new();
        for &(handle, launches) in &process.kernels {
            let seen = self.seen.entry(handle).or_default();
            if launches > *seen {
                fresh.push((handle, launches - *seen));
                *seen = launches;
            }
        }
        let mut other = process.measures.other_launches.saturating_sub(self.other_seen);
        self.other_seen += other;
        self.total += other;
        if fresh.is_empty() {
            self.other += other;
            return;
        }
        self.resolve(process, &fresh, source);
        let mut fresh_by_name: HashMap<Arc<str>, u64> = HashMap::new();
        for (handle, launches) in fresh {
            self.total += launches;
            match self.handles.get(&handle).map(|known| &known.name) {
                Some(Some(name)) => *fresh_by_name.entry(Arc::clone(name)).or_default() += launches,
                Some(None) => self.unknown += launches,
                None => other += launches,
            }
        }
        for (name, launches) in &fresh_by_name {
            *self.named.entry(Arc::clone(name)).or_default() += launches;
        }
        self.forget_rare();
        self.rank();
        for (name, launches) in fresh_by_name {
            if self.top.contains(&name) {
                *self.exported.entry(name).or_default() += launches;
            } else {
                self.aggregated += 1;
                other += launches;
            }
        }
        self.other += other;
    }

    /// Resolves the names of the most launched handles. Handles that the process asked for by name are resolved again: they may be
    /// reused.
    fn resolve(
        &mut self,
        process: &ProcessSnapshot,
        fresh: &[(u64, u64)],
        source: &mut dyn NameSource,
    ) {
        let mut ranked: Vec<_> = process.kernels.iter().map(|&(h, n)| (Reverse(n), h)).collect();
        if ranked.len() > NAMED {
            ranked.select_nth_unstable(NAMED - 1);
            ranked.truncate(NAMED);
        }
        let most: HashSet<u64> = ranked.into_iter().map(|(_, handle)| handle).collect();
        let mut functions: Vec<(u64, u64, Option<HandleName>)> = Vec::new();
        for &(handle, _) in fresh.iter().filter(|(handle, _)| most.contains(handle)) {
            let handle_name = source.handle_name(process.id, handle);
            let is_known = |known: &Known| !known.unresolved && known.handle_name == handle_name;
            if self.handles.get(&handle).is_some_and(is_known) {
                continue;
            }
            match follow(process.id, handle, handle_name.clone(), source) {
                Ok(text) => {
                    let name = readable(&text);
                    self.set_name(handle, Known { handle_name, name, unresolved: false });
                }
                Err(address) => functions.push((handle, address, handle_name)),
            }
        }
        if functions.is_empty() {
            return;
        }
        let addresses: Vec<u64> = functions.iter().map(|&(_, address, _)| address).collect();
        let names = source.function_names(process, &addresses);
        for (handle, address, handle_name) in functions {
            let symbol = names.get(&address);
            let name = symbol.and_then(|symbol| symbol.as_deref().and_then(readable));
            let unresolved = symbol.is_none();
            self.set_name(handle, Known { handle_name, name, unresolved });
        }
    }

    /// A handle that is reused by another kernel is no longer timed for the old one, whose times are kept.
    fn set_name(&mut self, handle: u64, known: Known) {
        if self.timed.get(&handle).is_some_and(|name| Some(name) != known.name.as_ref())
            && let Some(name) = self.timed.remove(&handle)
            && let Some(times) = self.last_times.remove(&handle)
        {
            self.retired.entry(name).or_default().merge(&times);
        }
        self.handles.insert(handle, known);
    }

    /// Forgets the names with the fewest launches when there are too many. No tracked name is among them.
    fn forget_rare(&mut self) {
        if self.named.len() <= RANKED {
            return;
        }
        let mut launches: Vec<u64> = self.named.values().copied().collect();
        let (_, &mut least, _) = launches.select_nth_unstable_by_key(RANKED / 2, |&n| Reverse(n));
        self.named.retain(|name, launches| *launches > least || self.top.contains(name));
    }

    /// Chooses the tracked names. A tracked one is replaced only by one with more than twice its launches, so that series do not
    /// come and go.
    fn rank(&mut self) {
        let rank = |(name, &launches): (&Arc<str>, &u64)| {
            let is_tracked = self.top.contains(name);
            let weight = if is_tracked { launches.saturating_mul(2) } else { launches };
            (Reverse((weight, is_tracked)), Arc::clone(name))
        };
        let mut ranked: Vec<_> = self.named.iter().map(rank).collect();
        if ranked.len() > LIMIT {
            ranked.select_nth_unstable(LIMIT);
        }
        self.top = ranked.into_iter().take(LIMIT).map(|(_, name)| name).collect();
    }

    fn launches(&mut self, process: &ProcessSnapshot) -> KernelLaunches {
        let names = self.exported.iter().map(|(name, &launches)| (Arc::clone(name), launches));
        let (mut by_name, former): (Vec<_>, Vec<_>) =
            names.partition(|(name, _)| self.top.contains(name));
        by_name.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let mut times: Vec<_> =
            self.retired.iter().map(|(name, times)| (Arc::clone(name), times.clone())).collect();
        for (handle, durations) in &process.launch_times {
            if let Some(name) = self.timed.get(handle) {
                add(&mut times, name, durations, Histogram::merge);
                self.last_times.insert(*handle, durations.clone());
            }
        }
        times.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        KernelLaunches {
            by_name,
            former,
            unknown: self.unknown,
            other: self.other,
            total: self.total,
            times,
        }
    }
}

/// The text that a handle stands for, or else the function of the host.
fn follow(
    id: ProcId,
    handle: u64,
    name: Option<HandleName>,
    source: &mut dyn NameSource,
) -> Result<Box<[u8]>, u64> {
    let (mut handle, mut name) = (handle, name);
    for _ in 0..MAX_HOPS {
        match name {
            Some(HandleName::Text(text)) => return Ok(text),
            Some(HandleName::SameAs(next)) => {
                handle = next;
                name = source.handle_name(id, next);
            }
            None => break,
        }
    }
    Err(handle)
}

#[cfg(test)]
mod tests;
