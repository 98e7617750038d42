//! Where the tasks of ongoing chains run, and which thread of a process has a victim's CPU.

use std::collections::{BTreeSet, HashMap};

use gpucause_engine::chain::{Cause, Chain, Culprit, HostCpus, Located, Place, Thread};
use gpucause_engine::cpu_list::{cpus, list};

use super::competition::Competition;
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
}

/// The threads that were read at one evaluation, by process.
#[derive(Debug, Default)]
struct Read {
    count: usize,
    usages: HashMap<u32, Option<Usage>>,
}

impl Locator {
    /// The CPUs of the host, and where the tasks of these chains run, by id of the chain; `observed` are the PIDs of observed
    /// processes.
    pub(super) fn locate(
        &mut self,
        ongoing: &[Chain],
        observed: &[u32],
    ) -> (HostCpus, HashMap<String, Located>) {
        self.competitions.retain(|id, _| ongoing.iter().any(|chain| chain.id == *id));
        if ongoing.is_empty() {
            return (HostCpus::default(), HashMap::new());
        }
        let mut read = Read::default();
        let located = ongoing.iter().map(|chain| (chain.id.clone(), self.of(chain, &mut read)));
        let located: HashMap<_, _> = located.collect();
        let online = self.places.online_cpus();
        let of_jobs = |own: &Culprit| own.feeds.is_some();
        let jobs_compete = ongoing.iter().any(|own| own.culprit.as_ref().is_some_and(of_jobs));
        let unused = match jobs_compete {
            true => self.unused(&online, &located, observed),
            false => String::new(),
        };
        (HostCpus { online, unused }, located)
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
        Located { victim, culprit: Some(Place { cpus, ..place }), thread }
    }

    /// A culprit that is a thread of the victim's own process, if only one has its name.
    fn own_thread(&self, chain: &Chain, culprit: &Culprit, victim: Option<Place>) -> Located {
        let tid = self.places.thread(culprit.pid, &culprit.comm, chain.victim.tid);
        let cpus = tid.and_then(|tid| self.places.threads().cpus(culprit.pid, tid));
        let cpus = cpus.unwrap_or_default();
        let place = victim.as_ref().map(|place| Place { cpus, ..place.clone() });
        let thread = tid.map(|tid| Thread { tid, comm: culprit.comm.clone() });
        Located { victim, culprit: place, thread }
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

    /// CPUs that none of these processes may run on; empty where that of one is unknown.
    fn unused(&self, online: &str, located: &HashMap<String, Located>, observed: &[u32]) -> String {
        let places = located.values().flat_map(|own| own.victim.iter().chain(&own.culprit));
        let named: Vec<_> = places.map(|place| cpus(&place.cpus)).collect();
        if observed.len() > MAX_OBSERVED || named.iter().any(BTreeSet::is_empty) {
            return String::new();
        }
        let threads = self.places.threads();
        // A process that has ended needs none.
        let observed = observed.iter().filter_map(|&pid| Some(cpus(&threads.cpus(pid, pid)?)));
        let used: BTreeSet<u32> = named.into_iter().chain(observed).flatten().collect();
        list(&cpus(online).difference(&used).copied().collect())
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
