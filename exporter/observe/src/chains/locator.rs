//! Where the tasks of ongoing chains run, and which thread of a process has a victim's CPU.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use gpucause_engine::chain::{Cause, Chain, Culprit, HostCpus, LimitUser, Located, Place, Thread};
use gpucause_engine::cpu_list::{cpus, list};

use super::busy_threads::BusyThreads;
use super::competition::Competition;
use super::evaluated::Evaluated;
use super::idle_cpus::IdleCpus;
use super::limit_users::{LimitUsers, MOST};
use crate::process_details::place::Places;
use crate::process_details::threads::Usage;

/// Threads of one process that are read at most.
const MAX_THREADS_OF_ONE: usize = 128;
/// Threads that are read at one evaluation at most.
const MAX_THREADS: usize = 256;
/// Observed processes whose CPUs are read at most.
const MAX_OBSERVED: usize = 256;

/// Locates the tasks of chains.
#[derive(Debug, Default)]
pub(super) struct Locator {
    places: Places,
    /// By id of the chain.
    competitions: HashMap<String, Competition>,
    /// By id of the chain.
    busy_threads: HashMap<String, BusyThreads>,
    /// By id of the chain.
    limit_users: HashMap<String, LimitUsers>,
    idle_cpus: IdleCpus,
}

/// The threads that were read at one evaluation, by process.
#[derive(Debug, Default)]
struct Read {
    count: usize,
    usages: HashMap<u32, Option<Usage>>,
}

impl Locator {
    /// The CPUs of the host, and where the tasks of these chains run, by id of the chain.
    pub(super) fn locate(
        &mut self,
        ongoing: &[Chain],
        observed: &[Evaluated],
    ) -> (HostCpus, HashMap<String, Located>) {
        let is_ongoing = |id: &String| ongoing.iter().any(|chain| chain.id == *id);
        self.competitions.retain(|id, _| is_ongoing(id));
        self.busy_threads.retain(|id, _| is_ongoing(id));
        self.limit_users.retain(|id, _| is_ongoing(id));
        if ongoing.is_empty() {
            self.idle_cpus.clear();
            return (HostCpus::default(), HashMap::new());
        }
        let mut read = Read::default();
        let located = ongoing.iter().map(|chain| (chain.id.clone(), self.of(chain, &mut read)));
        let mut located: HashMap<_, _> = located.collect();
        for chain in ongoing {
            let Some(own) = located.get_mut(&chain.id) else { continue };
            let Some(victim) = own.victim.as_mut() else { continue };
            if chain.is_of_own_threads() {
                victim.busy_threads = self.busy_threads(chain, observed, &mut read);
            }
            if matches!(chain.cause, Cause::CpuPreemption | Cause::RunqueueWait) {
                victim.on_one_cpu = self.is_on_one_cpu(chain, victim, observed, &mut read);
            }
            own.user = self.limit_user((chain, victim), observed, &mut read);
        }
        let online = self.places.online_cpus();
        let of_jobs = |own: &Culprit| own.feeds.is_some();
        let jobs_compete = ongoing.iter().any(|own| own.culprit.as_ref().is_some_and(of_jobs));
        if !jobs_compete && !ongoing.iter().any(Chain::is_of_own_threads) {
            self.idle_cpus.clear();
            return (HostCpus { online, ..HostCpus::default() }, located);
        }
        let idle = self.idle_cpus.update(&self.places.cpu_times());
        let unused = match jobs_compete {
            true => self.unused(&online, &idle, &located, observed),
            false => String::new(),
        };
        let idle = list(&idle.intersection(&cpus(&online)).copied().collect());
        (HostCpus { online, unused, idle }, located)
    }

    /// Threads of the victim's process and of its workers that used CPUs lately.
    fn busy_threads(&mut self, chain: &Chain, observed: &[Evaluated], read: &mut Read) -> usize {
        let usages = read.usages_of_job(&self.places, chain.victim.pid, observed);
        let busy = self.busy_threads.entry(chain.id.clone()).or_default();
        busy.update(Instant::now(), usages.as_deref())
    }

    /// Returns true if the victim and all threads of its process and of its workers may run on one CPU only, the same one.
    fn is_on_one_cpu(
        &self,
        chain: &Chain,
        victim: &Place,
        observed: &[Evaluated],
        read: &mut Read,
    ) -> bool {
        if victim.cpus.parse::<u32>().is_err() {
            return false;
        }
        let usages = read.usages_of_job(&self.places, chain.victim.pid, observed);
        usages.is_some_and(|usages| usages.iter().all(|usage| usage.all_cpus() == victim.cpus))
    }

    /// Who uses most of what a limit of the victim's cgroup leaves, where that is the cause.
    fn limit_user(
        &mut self,
        (chain, victim): (&Chain, &Place),
        observed: &[Evaluated],
        read: &mut Read,
    ) -> Option<LimitUser> {
        if !matches!(chain.cause, Cause::NoisyCgroup | Cause::PageFault) {
            return None;
        }
        // Files are read from a file system, and memory is not short.
        if chain.evidence.get("file_share").is_some_and(|share| share >= MOST) {
            return None;
        }
        let is_cpu = chain.cause == Cause::NoisyCgroup;
        let used = self.places.limit_use(chain.victim.pid, victim, is_cpu)?;
        let users = self.limit_users.entry(chain.id.clone()).or_default();
        let (pid, share) = users.update(Instant::now(), used)?;
        let usage = read.usage(&self.places, pid).filter(|_| is_cpu);
        let pool = usage.and_then(|usage| users.pool(usage));
        let process = self.places.comm(pid)?;
        let place = self.places.of(pid, Some(&process))?;
        let (comm, threads) =
            pool.map_or_else(|| (process.clone(), 0), |pool| (pool.name, pool.threads));
        let culprit = Culprit { pid, comm, place, ..Culprit::default() };
        let works_for = |own: &Evaluated| own.pid == pid && own.works_for == Some(chain.victim.pid);
        let is_worker = observed.iter().any(works_for);
        Some(LimitUser { culprit, process, threads, share, is_worker })
    }

    fn of(&mut self, chain: &Chain, read: &mut Read) -> Located {
        let victim = self.places.of(chain.victim.pid, None).map(|place| {
            let cpus = self.places.threads().cpus(chain.victim.pid, chain.victim.tid);
            Place { cpus: cpus.unwrap_or_default(), ..place }
        });
        let Some(culprit) = &chain.culprit else {
            return Located { victim, ..Located::default() };
        };
        if culprit.pid == chain.victim.pid {
            return self.own_thread(chain, culprit, victim);
        }
        // A PID that is another process's by now has another name.
        let Some(place) = self.places.of(culprit.pid, Some(&culprit.comm)) else {
            return Located { victim, ..Located::default() };
        };
        let usage = read.usage(&self.places, culprit.pid);
        let victim_cpus = victim.as_ref().map_or("", |place| &*place.cpus);
        let thread = usage.and_then(|usage| self.competitor(chain, culprit, usage, victim_cpus));
        let cpus = match (&thread, usage) {
            (Some(thread), Some(usage)) => usage.cpus_of(thread.tid),
            (None, Some(usage)) => usage.all_cpus(),
            (_, None) => String::new(),
        };
        let serves = match chain.cause {
            Cause::BlockIo | Cause::PageFault => self.places.served(culprit.pid, chain.victim.pid),
            _ => Vec::new(),
        };
        Located { victim, culprit: Some(Place { cpus, serves, ..place }), thread, user: None }
    }

    /// A culprit that is a thread of the victim's own process: the one that held the lock, or else the only one of its name.
    fn own_thread(&self, chain: &Chain, culprit: &Culprit, victim: Option<Place>) -> Located {
        let holder = culprit.tid.filter(|_| chain.cause.has_holder());
        let tid =
            holder.or_else(|| self.places.thread(culprit.pid, &culprit.comm, chain.victim.tid));
        let cpus = tid.and_then(|tid| self.places.threads().cpus(culprit.pid, tid));
        let cpus = cpus.unwrap_or_default();
        let place = victim.as_ref().map(|place| Place { cpus, ..place.clone() });
        let thread = tid.map(|tid| Thread { tid, comm: culprit.comm.clone() });
        Located { victim, culprit: place, thread, user: None }
    }

    /// The thread that has the victim's CPU, if that is measured.
    fn competitor(
        &mut self,
        chain: &Chain,
        culprit: &Culprit,
        usage: &Usage,
        victim_cpus: &str,
    ) -> Option<Thread> {
        if !matches!(chain.cause, Cause::CpuPreemption | Cause::RunqueueWait) {
            return None;
        }
        let taken = chain.losses.iter().find(|loss| loss.pid == Some(culprit.pid));
        let taken = taken.filter(|loss| loss.comm == culprit.comm)?.seconds;
        let competition = self.competitions.entry(chain.id.clone()).or_default();
        competition.update(culprit.pid, taken, usage, victim_cpus)
    }

    /// Idle CPUs that no victim, culprit or observed process may run on, apart from culprits that may run on all: they can leave
    /// them. Empty where the CPUs of one are unknown.
    fn unused(
        &self,
        online: &str,
        idle: &BTreeSet<u32>,
        located: &HashMap<String, Located>,
        observed: &[Evaluated],
    ) -> String {
        let online = cpus(online);
        let of = |place: &Place| cpus(&place.cpus);
        let victims = located.values().filter_map(|own| own.victim.as_ref().map(of));
        // With all threads of a process, which one competes is not always known.
        let culprits = located.values().filter_map(|own| own.culprit.as_ref().map(of));
        let confined = culprits.filter(|own| !own.is_superset(&online));
        let named: Vec<_> = victims.chain(confined).collect();
        if observed.len() > MAX_OBSERVED || named.iter().any(BTreeSet::is_empty) {
            return String::new();
        }
        let threads = self.places.threads();
        // A process that has ended needs none.
        let observed =
            observed.iter().filter_map(|own| Some(cpus(&threads.cpus(own.pid, own.pid)?)));
        let used: BTreeSet<u32> = named.into_iter().chain(observed).flatten().collect();
        list(&idle.intersection(&online).filter(|cpu| !used.contains(cpu)).copied().collect())
    }
}

impl Read {
    fn usage(&mut self, places: &Places, pid: u32) -> Option<&Usage> {
        let most = MAX_THREADS.saturating_sub(self.count).min(MAX_THREADS_OF_ONE);
        let usage = self.usages.entry(pid).or_insert_with(|| {
            let usage = places.threads().of(pid, most);
            self.count += usage.as_ref().map_or(0, |usage| usage.threads.len());
            usage
        });
        usage.as_ref()
    }
}

impl Read {
    /// The threads of a process and of its workers; `None` where those of one are unknown.
    fn usages_of_job(
        &mut self,
        places: &Places,
        pid: u32,
        observed: &[Evaluated],
    ) -> Option<Vec<&Usage>> {
        let workers = observed.iter().filter(|own| own.works_for == Some(pid)).map(|own| own.pid);
        let pids: Vec<u32> = [pid].into_iter().chain(workers.take(MAX_OBSERVED)).collect();
        for &pid in &pids {
            self.usage(places, pid);
        }
        pids.iter().map(|pid| self.usages.get(pid)?.as_ref()).collect()
    }
}

impl Usage {
    fn cpus_of(&self, tid: u32) -> String {
        let thread = self.threads.iter().find(|thread| thread.tid == tid);
        thread.map(|thread| thread.cpus.clone()).unwrap_or_default()
    }

    /// The CPUs that any of its threads may run on.
    fn all_cpus(&self) -> String {
        list(&self.threads.iter().flat_map(|thread| cpus(&thread.cpus)).collect())
    }
}

#[cfg(test)]
mod tests;
