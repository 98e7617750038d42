//! Tasks of chains below a made-up `/proc`.

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
    let rest = " 0".repeat(15);
    let stat = format!("{pid} (x) S 1 7 7 0 -1 0 1 0 0 0 {ticks} 0 0 0 20 0 3 0 1{rest}");
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
    let lines =
        (0..4).map(line).map(|(cpu, (busy, idle))| format!("cpu{cpu} {busy} 0 0 {idle} 0 0 0 0\n"));
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

#[test]
fn a_job_is_on_one_cpu_when_all_of_its_threads_are() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let mut locator = locator(root);
    let observed = [(10, None), (20, Some(10))].map(observed);
    let own = Culprit { pid: 10, comm: "feeder".into(), ..Culprit::default() };
    let chain = chain(own, 1.0);
    process(root, 10, &[(10, "train", "0", 0), (12, "feeder", "0", 0)]);
    for (worker, expected) in [("0", true), ("0-3", false)] {
        process(root, 20, &[(20, "pt_data_worker", worker, 0)]);
        let (_, mut located) = locator.locate(std::slice::from_ref(&chain), &observed);
        let victim = located.remove("1").unwrap().victim.unwrap();
        assert_eq!(victim.on_one_cpu, expected, "{worker}");
    }
}

#[test]
fn the_pool_of_threads_that_uses_up_a_cpu_limit_is_found_below_its_cgroup() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let group = root.join("cgroup");
    fs::create_dir_all(root.join("self")).unwrap();
    fs::create_dir_all(&group).unwrap();
    let mount = format!("25 22 0:23 / {} rw - cgroup2 cgroup2 rw\n", group.display());
    fs::write(root.join("self/mountinfo"), mount).unwrap();
    fs::write(group.join("cpu.max"), "200000 100000\n").unwrap();
    fs::write(group.join("cgroup.procs"), "10\n20\n").unwrap();
    let mut locator = locator(root);
    let mut chain = chain(Culprit::default(), 1.0);
    (chain.cause, chain.culprit) = (Cause::NoisyCgroup, None);
    let mut user = |ms: u64| {
        let pool = |tid| (tid, "omp", "0-3", ms);
        process(
            root,
            10,
            &[(10, "train", "0-3", 10), (12, "feeder", "0-3", 10), pool(13), pool(14)],
        );
        process(root, 20, &[(20, "serve", "0-3", ms / 10)]);
        let (_, mut located) = locator.locate(std::slice::from_ref(&chain), &[]);
        std::thread::sleep(std::time::Duration::from_millis(600));
        located.remove("1").unwrap().user
    };
    assert_eq!(user(100), None, "nothing is measured");
    user(1_000);
    let found = user(2_000).unwrap();
    let of_pool = (found.culprit.pid, &*found.culprit.comm, &*found.process, found.threads);
    assert_eq!(of_pool, (10, "omp", "train", 2));
    assert!(found.share > 0.9, "{}", found.share);
}
