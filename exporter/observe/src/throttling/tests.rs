//! Counters of cgroups, of processes that start, move and exit.

use super::*;
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::Comm;
use std::fs;
use tempfile::TempDir;

/// A host with one process, 7, that began at 50 ticks.
struct Host {
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Self { dir };
        for made in ["proc/self", "proc/7", "cg/job/pod", "cg/other"] {
            fs::create_dir_all(host.dir.path().join(made)).unwrap();
        }
        let mount =
            format!("25 22 0:23 / {}/cg rw - cgroup2 cgroup2 rw\n", host.dir.path().display());
        host.write("proc/self/mountinfo", &mount);
        let stat = format!("7 (a) b) {}", "0 ".repeat(19) + "50" + &" 0".repeat(15));
        host.write("proc/7/stat", &stat);
        host.move_to("/job/pod");
        host
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.path().join(file), text).unwrap();
    }

    fn move_to(&self, cgroup: &str) {
        self.write("proc/7/cgroup", &format!("0::{cgroup}\n"));
    }

    fn set_counters(&self, group: &str, micros: u64, periods: u64) {
        let stat = format!(
            "usage_usec 5\nnr_periods 9\nnr_throttled {periods}\nthrottled_usec {micros}\n"
        );
        self.write(&format!("cg/{group}/cpu.stat"), &stat);
    }

    fn throttling(&self) -> Throttling {
        Throttling::at(self.dir.path().join("proc"))
    }
}

fn process(id: u32, started: u64) -> ProcessSnapshot {
    let mut process = ProcessSnapshot::new(ProcId(id), Tgid(7), Comm([0; COMM_LEN]));
    process.started_boottime = Nanos(started);
    process
}

const STARTED: u64 = 500_000_000;

fn throttled(micros: u64, periods: u64) -> Throttled {
    Throttled { time: Nanos(micros * 1_000), periods }
}

#[test]
fn groups_above_count_and_what_came_before_the_first_look_does_not() {
    let host = Host::new();
    host.set_counters("job", 100, 1);
    host.set_counters("job/pod", 1_000, 10);
    let mut throttling = host.throttling();
    let first = throttling.refresh(&[process(1, STARTED)]);
    assert_eq!(first[&ProcId(1)], Throttled::default());
    host.set_counters("job", 103, 2);
    host.set_counters("job/pod", 1_040, 13);
    let later = throttling.refresh(&[process(1, STARTED)]);
    assert_eq!(later[&ProcId(1)], throttled(43, 4));
}

#[test]
fn images_of_a_process_and_its_end_keep_the_count() {
    let host = Host::new();
    host.set_counters("job/pod", 10, 1);
    let mut throttling = host.throttling();
    throttling.refresh(&[process(1, STARTED)]);
    host.set_counters("job/pod", 30, 2);
    let mut old = process(1, STARTED);
    old.ended = Some(Nanos(1));
    let both = throttling.refresh(&[old, process(2, STARTED)]);
    assert_eq!(both[&ProcId(1)], both[&ProcId(2)]);
    assert_eq!(both[&ProcId(2)], throttled(20, 1));
    let mut ended = process(2, STARTED);
    ended.ended = Some(Nanos(2));
    assert_eq!(throttling.refresh(&[ended])[&ProcId(2)], throttled(20, 1));
}

#[test]
fn a_process_that_moves_keeps_its_count_and_takes_none_from_its_new_group() {
    let host = Host::new();
    host.set_counters("job/pod", 10, 1);
    host.set_counters("other", 9_000, 900);
    let mut throttling = host.throttling();
    throttling.refresh(&[process(1, STARTED)]);
    host.set_counters("job/pod", 15, 2);
    throttling.refresh(&[process(1, STARTED)]);
    host.move_to("/other");
    assert_eq!(throttling.refresh(&[process(1, STARTED)])[&ProcId(1)], throttled(5, 1));
    host.set_counters("other", 9_001, 901);
    assert_eq!(throttling.refresh(&[process(1, STARTED)])[&ProcId(1)], throttled(6, 2));
}

#[test]
fn a_reused_pid_and_a_silent_kernel_have_no_answer() {
    let host = Host::new();
    host.set_counters("job/pod", 10, 1);
    let mut throttling = host.throttling();
    assert!(throttling.refresh(&[process(1, STARTED * 9)]).is_empty());
    host.write("cg/job/pod/cpu.stat", "usage_usec 5\n");
    assert!(host.throttling().refresh(&[process(1, STARTED)]).is_empty());
}
