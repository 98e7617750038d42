//! Launches by the names of kernels. Few names of a process are told apart, and no counter steps back.
//!
//! Launches are shared out as they are seen: what came since the last look goes to the name that a handle has now, if that
//! is among those told apart, and else to the others. So each launch is in one series and stays there, although handles
//! are given out again and the names that are told apart change.

pub(crate) mod readable;

use gpucause_abi::ProcId;
use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot};
use gpucause_probes::host_functions::FunctionName;
use readable::readable;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Names told apart for each process, and functions of it whose launches are timed.
const LIMIT: usize = 10;
/// Handles of a process, the most launched, whose names are asked for.
const NAMED: usize = 64;
/// Names of a process that are ranked by their launches: a program that makes kernels as it runs has names without end.
const RANKED: usize = 1024;
/// Launches after which a kernel is worth timing.
const HOT: u64 = 100;
/// Handles that may stand for one another in a row.
const MAX_HOPS: usize = 4;
/// The label of launches of all kernels that are not told apart.
pub const OTHER: &str = "other";
/// The label of launches of kernels without a name.
pub const UNKNOWN: &str = "unknown";
/// What no kernel is called.
const RESERVED: [&str; 2] = [OTHER, UNKNOWN];

/// Where names come from.
pub trait NameSource {
    /// What the process was told when it asked for this handle.
    fn handle_name(&mut self, id: ProcId, handle: u64) -> Option<HandleName>;

    /// The names of functions of the process. Those about which nothing can be found out now are left out.
    fn function_names(
        &mut self,
        process: &ProcessSnapshot,
        addresses: &[u64],
    ) -> BTreeMap<u64, FunctionName>;
}

/// The launches of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelLaunches {
    /// By name, the most launched first.
    pub by_name: Vec<(Arc<str>, u64)>,
    /// By names that were exported and are not now: another image of the process may still have them.
    pub former: Vec<(Arc<str>, u64)>,
    /// Of kernels without a name.
    pub unknown: u64,
    /// Of all other kernels.
    pub other: u64,
    /// Of all kernels, those among them whose name is not told apart any more.
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
            add_launches(&mut self.by_name, name, before + launches);
        }
        for (name, launches) in &more.former {
            let is_exported = self.by_name.iter().any(|(own, _)| own == name);
            let names = if is_exported { &mut self.by_name } else { &mut self.former };
            add_launches(names, name, *launches);
        }
        for (name, times) in &more.times {
            add_times(&mut self.times, name, times);
        }
        self.unknown += more.unknown;
        self.other += more.other;
        self.total += more.total;
    }
}

fn add_launches(all: &mut Vec<(Arc<str>, u64)>, name: &Arc<str>, launches: u64) {
    match all.iter_mut().find(|(own, _)| own == name) {
        Some((_, total)) => *total += launches,
        None => all.push((Arc::clone(name), launches)),
    }
}

fn add_times(all: &mut Vec<(Arc<str>, Histogram)>, name: &Arc<str>, times: &Histogram) {
    match all.iter_mut().find(|(own, _)| own == name) {
        Some((_, total)) => total.merge(times),
        None => all.push((Arc::clone(name), times.clone())),
    }
}

/// What is known of a handle.
#[derive(Debug, Clone)]
struct Known {
    /// As it was told; kept to see whether it changes.
    told: Option<HandleName>,
    /// `None` for a kernel without a name.
    name: Option<Arc<str>>,
    /// Whether nothing could be found out, so that it is asked for again.
    unanswered: bool,
}

/// What was told so far of one process.
#[derive(Debug, Default)]
struct Told {
    /// Launches by handle when last looked at.
    seen: HashMap<u64, u64>,
    other_seen: u64,
    handles: HashMap<u64, Known>,
    /// Launches of names, for the ranking: at most [`RANKED`] of them.
    named: HashMap<Arc<str>, u64>,
    top: HashSet<Arc<str>>,
    /// Launches of names while they were exported. They stay few: each that is exported later has twice the launches of the one
    /// before.
    told: HashMap<Arc<str>, u64>,
    unknown: u64,
    other: u64,
    total: u64,
    folded: u64,
    /// Handles whose launches are timed, with the name that they had when it began.
    timed: HashMap<u64, Arc<str>>,
    /// The times of those handles as last told.
    times_told: HashMap<u64, Histogram>,
    /// What was told of names under handles that are other kernels' by now. Once there are [`LIMIT`] of them, no further name is
    /// timed: a name that was is exported for as long as the process.
    retired: BTreeMap<Arc<str>, Histogram>,
}

/// What was told so far of every process.
#[derive(Debug, Default)]
pub struct KernelNames {
    told: HashMap<ProcId, Told>,
    /// Of processes that are not observed any more.
    folded: u64,
}

impl KernelNames {
    /// Takes the launches of `processes` in; what was told of others is forgotten.
    pub fn update(&mut self, processes: &[ProcessSnapshot], names: &mut dyn NameSource) {
        let mut before = std::mem::take(&mut self.told);
        for process in processes {
            let mut told = before.remove(&process.id).unwrap_or_default();
            told.update(process, names);
            self.told.insert(process.id, told);
        }
        self.folded += before.into_values().map(|gone| gone.folded).sum::<u64>();
    }

    /// The launches of these processes, as last taken in, with the times that they bring. To be asked before functions are
    /// timed anew: the times are those of the kernels that the handles had.
    #[must_use]
    pub fn launches(&mut self, processes: &[ProcessSnapshot]) -> HashMap<ProcId, KernelLaunches> {
        let mut launches = HashMap::with_capacity(processes.len());
        for process in processes {
            if let Some(told) = self.told.get_mut(&process.id) {
                launches.insert(process.id, told.launches(process));
            }
        }
        launches
    }

    /// The handles that have names.
    #[must_use]
    pub fn names(&self) -> Vec<(ProcId, u64, Arc<str>)> {
        let of = |(&id, told): (&ProcId, &Told)| {
            let named = told.handles.iter();
            let named =
                named.filter_map(|(&handle, known)| Some((id, handle, known.name.clone()?)));
            named.collect::<Vec<_>>()
        };
        self.told.iter().flat_map(of).collect()
    }

    /// Functions that should be timed and are not: the most launched of each process, with their names.
    #[must_use]
    pub fn untimed(&self, processes: &[ProcessSnapshot]) -> Vec<(ProcId, u64, Arc<str>)> {
        let mut chosen = Vec::new();
        for process in processes.iter().filter(|process| process.ended.is_none()) {
            let Some(told) = self.told.get(&process.id) else { continue };
            let room = LIMIT.saturating_sub(told.timed.len());
            let mut hot: Vec<_> = process
                .kernels
                .iter()
                .filter(|(handle, launches)| *launches >= HOT && !told.timed.contains_key(handle))
                .filter_map(|&(handle, launches)| {
                    let name = told.handles.get(&handle)?.name.clone()?;
                    let has_room = told.retired.len() < LIMIT || told.retired.contains_key(&name);
                    has_room.then_some(())?;
                    Some((Reverse(launches), handle, name))
                })
                .collect();
            hot.sort_unstable();
            let hottest = hot.into_iter().take(room);
            chosen.extend(hottest.map(|(_, handle, name)| (process.id, handle, name)));
        }
        chosen
    }

    /// A function is timed from now on.
    pub fn timed(&mut self, id: ProcId, handle: u64, name: Arc<str>) {
        if let Some(told) = self.told.get_mut(&id) {
            told.timed.insert(handle, name);
        }
    }

    /// Times that a name's launches were added to `other`.
    #[must_use]
    pub fn folded(&self) -> u64 {
        self.folded + self.told.values().map(|told| told.folded).sum::<u64>()
    }
}

impl Told {
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
        self.ask(process, &fresh, source);
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
                *self.told.entry(name).or_default() += launches;
            } else {
                self.folded += 1;
                other += launches;
            }
        }
        self.other += other;
    }

    /// Finds out the names of the most launched handles, as far as they are not known. Handles that were given out by name
    /// are asked about again: they may be another kernel's by now.
    fn ask(
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
            let told = source.handle_name(process.id, handle);
            let is_known = |known: &Known| !known.unanswered && known.told == told;
            if self.handles.get(&handle).is_some_and(is_known) {
                continue;
            }
            match follow(process.id, handle, told.clone(), source) {
                Ok(text) => {
                    let name = readable(&text);
                    self.know(handle, Known { told, name, unanswered: false });
                }
                Err(address) => functions.push((handle, address, told)),
            }
        }
        if functions.is_empty() {
            return;
        }
        let addresses: Vec<u64> = functions.iter().map(|&(_, address, _)| address).collect();
        let names = source.function_names(process, &addresses);
        for (handle, address, told) in functions {
            let symbol = names.get(&address);
            let name = symbol.and_then(|symbol| symbol.as_deref().and_then(readable));
            let unanswered = symbol.is_none();
            self.know(handle, Known { told, name, unanswered });
        }
    }

    /// A handle that is another kernel's by now is no longer timed as that of the old one, which keeps what was told of it.
    fn know(&mut self, handle: u64, known: Known) {
        if self.timed.get(&handle).is_some_and(|name| Some(name) != known.name.as_ref())
            && let Some(name) = self.timed.remove(&handle)
            && let Some(times) = self.times_told.remove(&handle)
        {
            self.retired.entry(name).or_default().merge(&times);
        }
        self.handles.insert(handle, known);
    }

    /// Forgets the names with the fewest launches when there are too many. None of them is among the most launched.
    fn forget_rare(&mut self) {
        if self.named.len() <= RANKED {
            return;
        }
        let mut launches: Vec<u64> = self.named.values().copied().collect();
        let (_, &mut least, _) = launches.select_nth_unstable_by_key(RANKED / 2, |&n| Reverse(n));
        self.named.retain(|name, launches| *launches > least || self.top.contains(name));
    }

    /// Chooses the names that are told apart. One that is already is given up only for one with more than twice its launches,
    /// so that series do not come and go.
    fn rank(&mut self) {
        let rank = |(name, &launches): (&Arc<str>, &u64)| {
            let is_told = self.top.contains(name);
            let weight = if is_told { launches.saturating_mul(2) } else { launches };
            (Reverse((weight, is_told)), Arc::clone(name))
        };
        let mut ranked: Vec<_> = self.named.iter().map(rank).collect();
        if ranked.len() > LIMIT {
            ranked.select_nth_unstable(LIMIT);
        }
        self.top = ranked.into_iter().take(LIMIT).map(|(_, name)| name).collect();
    }

    fn launches(&mut self, process: &ProcessSnapshot) -> KernelLaunches {
        let told = self.told.iter().map(|(name, &launches)| (Arc::clone(name), launches));
        let (mut by_name, former): (Vec<_>, Vec<_>) =
            told.partition(|(name, _)| self.top.contains(name));
        by_name.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let mut times: Vec<_> =
            self.retired.iter().map(|(name, times)| (Arc::clone(name), times.clone())).collect();
        for (handle, durations) in &process.launch_times {
            if let Some(name) = self.timed.get(handle) {
                add_times(&mut times, name, durations);
                self.times_told.insert(*handle, durations.clone());
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
    told: Option<HandleName>,
    source: &mut dyn NameSource,
) -> Result<Box<[u8]>, u64> {
    let (mut handle, mut told) = (handle, told);
    for _ in 0..MAX_HOPS {
        match told {
            Some(HandleName::Text(text)) => return Ok(text),
            Some(HandleName::SameAs(next)) => {
                handle = next;
                told = source.handle_name(id, next);
            }
            None => break,
        }
    }
    Err(handle)
}

#[cfg(test)]
mod tests;
