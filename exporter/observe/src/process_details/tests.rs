//! Details of this test's own process, and of what is not there.

use super::*;
use crate::process_identity::{TICKS_PER_SECOND, start_ticks};
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::Comm;

fn process(tgid: u32, started: Nanos, ended: Option<Nanos>) -> ProcessSnapshot {
    ProcessSnapshot {
        started_boottime: started,
        ended,
        ..ProcessSnapshot::new(ProcId(1), Tgid(tgid), Comm([0; COMM_LEN]))
    }
}

fn own_start() -> Nanos {
    let ticks = start_ticks(Path::new("/proc/self")).unwrap();
    Nanos(ticks * (1_000_000_000 / TICKS_PER_SECOND) + 123)
}

#[test]
fn a_live_process_has_all_details() {
    let own = process(std::process::id(), own_start(), None);
    let details = DetailsCache::default().refresh(&[own]);
    let details = &details[&ProcId(1)];
    assert_eq!(*details.exe, *std::env::current_exe().unwrap().to_string_lossy());
    assert!(details.cgroup.starts_with('/'), "{details:?}");
    assert!(!details.user.is_empty());
    assert!(details.ns_pid.parse::<u32>().is_ok(), "{details:?}");
}

#[test]
fn details_outlive_the_process_but_not_its_accounts() {
    let mut cache = DetailsCache::default();
    let live = process(std::process::id(), own_start(), None);
    let known = cache.refresh(&[live]);
    let ended = process(std::process::id(), own_start(), Some(Nanos(5)));
    assert_eq!(cache.refresh(std::slice::from_ref(&ended)), known);
    assert!(cache.refresh(&[]).is_empty());
    assert_eq!(*cache.refresh(&[ended])[&ProcId(1)], ProcessDetails::default());
}

#[test]
fn a_reused_pid_lends_no_details_to_the_process_before_it() {
    let earlier = process(std::process::id(), Nanos(own_start().0 - 1_000_000_000), None);
    let details = DetailsCache::default().refresh(&[earlier]);
    assert_eq!(*details[&ProcId(1)], ProcessDetails::default());
}

#[test]
fn a_process_that_is_not_there_has_empty_details() {
    let details = DetailsCache::default().refresh(&[process(u32::MAX, Nanos(1), None)]);
    assert_eq!(*details[&ProcId(1)], ProcessDetails::default());
}

#[test]
fn a_user_without_a_name_is_shown_by_uid() {
    let own = process(std::process::id(), own_start(), None);
    let details = DetailsCache::at("/proc", "/nonexistent", "/nonexistent").refresh(&[own]);
    assert!(details[&ProcId(1)].user.parse::<u32>().is_ok());
}

#[test]
fn ranks_are_those_of_the_innermost_launcher_and_of_one_alone() {
    let text = |environment: &[u8]| ranks(environment).map(|number| number.to_string());
    assert_eq!(
        text(b"SLURM_PROCID=1\0SLURM_NTASKS=2\0SLURM_LOCALID=0\0RANK=11\0WORLD_SIZE=16\0"),
        ["11", "", "16"]
    );
    assert_eq!(text(b"SLURM_PROCID=1\0SLURM_NTASKS=2\0SLURM_LOCALID=0\0"), ["1", "0", "2"]);
    assert_eq!(text(b"PMI_RANK=5\0PMI_SIZE=8\0MPI_LOCALRANKID=1\0"), ["5", "1", "8"]);
    let open_mpi =
        b"OMPI_COMM_WORLD_RANK=7\0OMPI_COMM_WORLD_SIZE=8\0OMPI_COMM_WORLD_LOCAL_RANK=3\0";
    assert_eq!(text(open_mpi), ["7", "3", "8"]);
    assert_eq!(text(b"WORLD_SIZE=8\0SLURM_PROCID=x\0"), ["", "", ""]);
}

#[test]
fn a_slurm_job_has_its_number_where_its_cgroup_lacks_it() {
    let (sluid, named) = ("s5K1KKYAYG5D00", b"A=1\0SLURM_JOB_ID=4711\0".as_slice());
    let cases: [(Option<&str>, &[u8], &str); 7] = [
        (Some(sluid), named, "4711"),
        (Some("s5K1KKYAYG5D01"), b"SLURM_JOB_ID=4712\0", "4712"),
        (Some(sluid), b"SLURM_JOB_ID=x\0", sluid),
        (Some(sluid), b"", sluid),
        // A program that another job's shell started is in the job whose cgroup it is in.
        (Some("4710"), named, "4710"),
        (None, named, "4711"),
        (None, b"", ""),
    ];
    for (of_cgroup, environment, job) in cases {
        let found = job_number(of_cgroup.map(str::to_owned), environment);
        assert_eq!(found, job, "{of_cgroup:?}");
    }
}

#[test]
fn only_numbers_are_taken_from_the_environment() {
    let environment = b"RANK=3\0WORLD_SIZE=secret\0LOCAL_RANK=1\0XRANK=9\0";
    assert_eq!(number_in(environment, "RANK").as_deref(), Some("3"));
    assert_eq!(number_in(environment, "LOCAL_RANK").as_deref(), Some("1"));
    assert_eq!(number_in(environment, "WORLD_SIZE"), None);
    assert_eq!(number_in(environment, "MASTER_PORT"), None);
}

/// A `/proc` with one process, in a folder of the test's own.
fn proc_with(environment: &[u8]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("42");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("environ"), environment).unwrap();
    let [before, after] = [18, 15].map(|fields| "0 ".repeat(fields));
    fs::write(dir.join("stat"), format!("42 (torch (run) S {before}700 {after}")).unwrap();
    root
}

#[test]
fn ranks_are_those_that_the_launcher_set() {
    let root = proc_with(b"PATH=/bin\0RANK=11\0LOCAL_RANK=3\0WORLD_SIZE=16\0");
    let started = Nanos(700 * (1_000_000_000 / TICKS_PER_SECOND));
    let process = process(42, started, None);
    let details =
        DetailsCache::at(root.path(), "/nonexistent", root.path().join("pods")).refresh(&[process]);
    let ProcessDetails { rank, local_rank, world_size, .. } = &*details[&ProcId(1)];
    assert_eq!((&**rank, &**local_rank, &**world_size), ("11", "3", "16"));
}

#[test]
fn a_process_in_a_pod_has_the_pods_name_and_its_own_pid() {
    const UID: &str = "1b4c7d8e-09af-4c1d-8e2f-a1b2c3d4e5f6";
    let root = proc_with(b"");
    let file = |name| root.path().join("42").join(name);
    fs::write(file("cgroup"), format!("0::/kubepods/burstable/pod{UID}/{}\n", "a".repeat(64)))
        .unwrap();
    fs::write(file("status"), "Name:\tx\nUid:\t5\t5\t5\t5\nNSpid:\t42\t17\t1\n").unwrap();
    fs::create_dir_all(root.path().join(format!("pods/ml_train-0_{UID}"))).unwrap();
    let process = process(42, Nanos(7_000_000_000), None);
    let pods = root.path().join("pods");
    let details = DetailsCache::at(root.path(), "/nonexistent", pods).refresh(&[process]);
    let details = &details[&ProcId(1)];
    assert_eq!((&*details.namespace, &*details.pod, &*details.pod_uid), ("ml", "train-0", UID));
    assert_eq!((&*details.ns_pid, &*details.user, details.container_id.len()), ("1", "5", 64));
}

#[test]
fn the_innermost_pid_is_the_processes_own() {
    assert_eq!(ns_pid("Pid:\t9\nNSpid:\t9\n"), Some("9"));
    assert_eq!(ns_pid("NSpid:\t9\t3\t1\n"), Some("1"));
    assert_eq!(ns_pid("NSpid:\n"), None);
    assert_eq!(ns_pid("Pid:\t9\n"), None);
}

#[test]
fn what_is_written_down_of_a_process_is_read_back() {
    let mut details = ProcessDetails::default();
    for (name, field) in details.fields().into_iter().skip(1) {
        *field = format!("the {name}").into();
    }
    let named = details.named();
    assert_eq!(named.len(), 11, "what is not known is left out: {named:?}");
    assert_eq!(ProcessDetails::of_named(&named), details);
}
