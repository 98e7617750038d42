//! Where the tasks of ongoing chains run, and which thread of a process has a victim's CPU.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use gpucause_engine::chain::{Cause, Chain, Culprit, HostCpus, Located, Place, Thread};
use gpucause_engine::cpu_list::{cpus, list};

use super::busy_threads::BusyThreads;
use super::competition::Competition;
use super::evaluated::Evaluated;
use super::idle_cpus::IdleCpus;
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
        if ongoing.is_empty() {
            self.idle_cpus.clear();
            return (HostCpus::default(), HashMap::new());
        }
        let mut read = Read::default();
        let located = ongoing.iter().map(|chain| (chain.id.clone(), self.of(chain, &mut read)));
        let mut located: HashMap<_, _> = located.collect();
        for chain in ongoing.iter().filter(|chain| chain.is_of_own_threads()) {
            let victim = located.get_mut(&chain.id).and_then(|own| own.victim.as_mut());
            if let Some(victim) = victim {
                victim.busy_threads = self.busy_threads(chain, observed, &mut read);
            }
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
    fn busy_threads(
        &mut self,
        chain: &Chain,
        observed: &[Evaluated],
        read: &mut Read,
    ) -> usize {
        let pid = chain.victim.pid;
        let workers = observed.iter().filter(|own| own.works_for == Some(pid)).map(|own| own.pid);
        let pids: Vec<u32> = [pid].into_iter().chain(workers.take(MAX_OBSERVED)).collect();
        for &pid in &pids {
            read.usage(&self.places, pid);
        }
        let usage = |pid: &u32| read.usages.get(pid)?.as_ref();
        let usages: Option<Vec<&Usage>> = pids.iter().map(usage).collect();
        let busy = self.busy_threads.entry(chain.id.clone()).or_default();
        busy.update(Instant::now(), usages.as_deref())
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

    /// A culprit that is a thread of the victim's own process: the one that held the lock, or else the only one of its name.
    fn own_thread(&self, chain: &Chain, culprit: &Culprit, victim: Option<Place>) -> Located {
        let holder = culprit.tid.filter(|_| chain.cause == Cause::LockWait);
        let tid =
            holder.or_else(|| self.places.thread(culprit.pid, &culprit.comm, chain.victim.tid));
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
mod tests {
    use std::fs;
    use std::path::Path;

    use gpucause_engine::chain::{Course, Effect, Evidence, Feeder, Loss, Severity, Victim};

    use super::*;

    fn thread(root: &Path, pid: u32, (tid, comm, cpus, ms): (u32, &str, &str, u64)) {
        let dir = root.join(format!("{pid}/task/{tid}"));
        fs::create_dir_all(&dir).unwrap();
        let status = format!("Name:\t{comm}\nCpus_allowed_list:\t{cpus}\n");
        if tid == pid {
            let leader = root.join(pid.to_string());
            fs::write(leader.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(leader.join("status"), &status).unwrap();
        }
        fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(dir.join("status"), &status).unwrap();
        fs::write(dir.join("schedstat"), format!("{} 0 0\n", ms * 1_000_000)).unwrap();
        fs::write(root.join(format!("{pid}/cgroup")), "0::/\n").unwrap();
    }

    /// A process whose threads ran for so many milliseconds in all.
    fn process(root: &Path, pid: u32, threads: &[(u32, &str, &str, u64)]) {
        threads.iter().for_each(|&own| thread(root, pid, own));
        let ticks = threads.iter().map(|own| own.3).sum::<u64>() / 10;
        let stat = format!("{pid} (x) S 1 7 7 0 -1 0 1 0 0 0 {ticks} 0 0 0 20 0 3 0 1 1 1");
        fs::write(root.join(format!("{pid}/stat")), stat).unwrap();
    }

    fn chain(culprit: Culprit, taken: f64) -> Chain {
        let loss = Loss { pid: Some(culprit.pid), comm: culprit.comm.clone(), seconds: taken };
        Chain {
            id: "1".into(),
            cause: Cause::CpuPreemption,
            effect: Effect::LaunchGap,
            severity: Severity::High,
            victim: Victim { pid: 10, tid: 12, comm: "train".into(), ..Victim::default() },
            culprit: Some(culprit),
            explained: 1.0,
            lost_seconds: taken,
            losses: vec![loss],
            evidence: Evidence::default(),
            path: Vec::new(),
            sentence: String::new(),
            fix: String::new(),
            first_seen: 1.0,
            last_seen: 2.0,
            ongoing: Some(true),
            code: Vec::new(),
            course: Course::default(),
        }
    }

    /// Has each CPU be idle for so many ticks since the host was booted, or else busy.
    fn cpu_times(root: &Path, ticks: u64, busy: Option<u32>) {
        let times = |cpu| if Some(cpu) == busy { (ticks, 0) } else { (0, ticks) };
        let line = |cpu| (cpu, times(cpu));
        let lines = (0..4)
            .map(line)
            .map(|(cpu, (busy, idle))| format!("cpu{cpu} {busy} 0 0 {idle} 0 0 0 0\n"));
        fs::write(root.join("stat"), lines.collect::<String>()).unwrap();
    }

    fn observed((pid, works_for): (u32, Option<u32>)) -> Evaluated {
        Evaluated { pid, comm: None, works_for }
    }

    fn located(locator: &mut Locator, chain: &Chain) -> (String, Located) {
        let observed = [(10, None), (20, None)].map(observed);
        let (cpus, mut located) = locator.locate(std::slice::from_ref(chain), &observed);
        (cpus.unused, located.remove("1").unwrap())
    }

    fn locator(root: &Path) -> Locator {
        fs::write(root.join("online"), "0-3\n").unwrap();
        let places = Places::at(root, root, root.join("online"));
        let mut locator = Locator { places, ..Locator::default() };
        cpu_times(root, 0, None);
        locator.idle_cpus.update(&locator.places.cpu_times());
        cpu_times(root, 150, None);
        locator
    }

    #[test]
    fn cpus_are_those_of_the_threads_that_compete() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        process(root, 10, &[(10, "train", "0-1", 0), (12, "feeder", "1", 0)]);
        process(root, 20, &[(20, "serve", "0", 5_000), (26, "flusher", "1", 100)]);
        let feeds = Some(Feeder { pid: 20, comm: "serve".into() });
        let culprit = Culprit { pid: 20, comm: "serve".into(), feeds, ..Culprit::default() };
        let (unused, first) = located(&mut locator, &chain(culprit.clone(), 1.0));
        assert_eq!(first.victim.unwrap().cpus, "1", "those of its thread");
        assert_eq!((first.culprit.unwrap().cpus, first.thread), ("0-1".into(), None));
        assert_eq!(unused, "2-3");
        process(root, 20, &[(20, "serve", "0", 6_000), (26, "flusher", "1", 700)]);
        let (_, second) = located(&mut locator, &chain(culprit, 1.6));
        let thread = Thread { tid: 26, comm: "flusher".into() };
        assert_eq!((second.culprit.unwrap().cpus, second.thread), ("1".into(), Some(thread)));
    }

    #[test]
    fn a_cpu_stays_unused_when_it_is_not_known_which_thread_of_the_culprit_competes() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        process(root, 10, &[(10, "train", "0", 0), (12, "feeder", "1", 0)]);
        process(root, 20, &[(20, "serve", "1", 5_000), (26, "flusher", "0-3", 100)]);
        let feeds = Some(Feeder { pid: 20, comm: "serve".into() });
        let culprit = Culprit { pid: 20, comm: "serve".into(), feeds, ..Culprit::default() };
        let (unused, own) = located(&mut locator, &chain(culprit.clone(), 1.0));
        assert_eq!((own.culprit.unwrap().cpus, own.thread), ("0-3".into(), None));
        assert_eq!(unused, "2-3");
        process(root, 20, &[(20, "serve", "1", 5_600), (26, "flusher", "0-3", 100)]);
        let (unused, own) = located(&mut locator, &chain(culprit.clone(), 1.6));
        assert_eq!((own.culprit.unwrap().cpus, own.thread.unwrap().tid), ("1".into(), 20));
        assert_eq!(unused, "2-3", "the same");
        thread(root, 20, (20, "serve", "0-3", 5_600));
        let (unused, _) = located(&mut locator, &chain(culprit, 1.6));
        assert_eq!(unused, "", "another job may use all");
    }

    #[test]
    fn a_cpu_that_a_thread_of_another_process_is_busy_on_is_not_unused() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        process(root, 10, &[(10, "train", "0", 0), (12, "feeder", "1", 0)]);
        process(root, 20, &[(20, "serve", "1", 0)]);
        let feeds = Some(Feeder { pid: 20, comm: "serve".into() });
        let culprit = Culprit { pid: 20, comm: "serve".into(), feeds, ..Culprit::default() };
        let chain = chain(culprit, 1.0);
        assert_eq!(located(&mut locator, &chain).0, "2-3");
        // Such as a polling thread, whose process has a main thread that may run anywhere.
        process(root, 30, &[(30, "proxy", "0-3", 0), (31, "poller", "3", 0)]);
        cpu_times(root, 300, Some(3));
        assert_eq!(located(&mut locator, &chain).0, "2");
    }

    #[test]
    fn the_holder_of_a_lock_has_cpus_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        process(root, 10, &[(10, "train", "0", 0), (12, "feeder", "0", 0), (13, "holder", "1", 0)]);
        let holder = Culprit { pid: 10, comm: "holder".into(), ..Culprit::default() };
        let (unused, own) = located(&mut locator, &chain(holder, 1.0));
        assert_eq!((&*own.culprit.unwrap().cpus, own.thread.unwrap().tid), ("1", 13));
        assert_eq!((own.victim.unwrap().cpus, unused), ("0".into(), String::new()));
    }

    #[test]
    fn a_process_with_too_many_threads_or_another_name_has_unknown_cpus() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        process(root, 10, &[(10, "train", "0", 0), (12, "feeder", "0", 0)]);
        let many = (20..=150).map(|tid| (tid, "hog", "0-3", 0));
        process(root, 20, &many.collect::<Vec<_>>());
        let mut culprit = Culprit { pid: 20, comm: "hog".into(), ..Culprit::default() };
        let (_, own) = located(&mut locator, &chain(culprit.clone(), 1.0));
        assert_eq!(own.culprit.unwrap().cpus, "");
        culprit.comm = "gone".into();
        assert_eq!(located(&mut locator, &chain(culprit, 1.0)).1.culprit, None);
    }

    #[test]
    fn own_threads_that_compete_are_counted_with_those_of_workers_beside_the_idle_cpus() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut locator = locator(root);
        let threads = |ran: u64| {
            process(
                root,
                10,
                &[(10, "train", "0-1", ran), (12, "feeder", "0-1", ran), (13, "rests", "0-1", 7)],
            );
            process(root, 20, &[(20, "pt_data_worker", "0-1", 3 * ran)]);
            process(root, 30, &[(30, "serve", "0-3", 3 * ran)]);
        };
        let own = Culprit { pid: 10, comm: "feeder".into(), ..Culprit::default() };
        let mut chain = chain(own, 1.0);
        let mut locate = |chain: &Chain| {
            let observed = [(10, None), (20, Some(10)), (30, None)].map(observed);
            let (cpus, mut located) = locator.locate(std::slice::from_ref(chain), &observed);
            let victim = located.remove("1").unwrap().victim.unwrap();
            (victim.busy_threads, cpus.idle, cpus.unused)
        };
        threads(100);
        assert_eq!(locate(&chain), (0, String::new(), String::new()), "others compete");
        chain.evidence = Evidence::default().with("own_share", 0.9);
        let nothing_measured = (0, String::new(), String::new());
        assert_eq!(locate(&chain), nothing_measured);
        std::thread::sleep(std::time::Duration::from_millis(600));
        threads(600);
        cpu_times(root, 300, Some(3));
        assert_eq!(locate(&chain), (3, "0-2".into(), String::new()));
    }
}
