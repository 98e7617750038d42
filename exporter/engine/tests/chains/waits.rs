//! Locks, data, disks and pages; and waits that are idleness.

use gpucause_abi::record::DEVICE_LEN;
use gpucause_abi::snapshot::{BlockIo, DeviceName, Wait};
use gpucause_abi::state::{BlockOperation, Phase, Reason, Relation, State};
use gpucause_abi::{Nanos, Tgid, Tid};
use gpucause_engine::chain::{Cause, Culprit, Effect, Place, Severity};

use crate::host::{Host, lost, takes};
use crate::process::{KERNEL, MS, Task, US, comm};
use crate::scenarios::{self, FAULT_WINDOWS, HOLDER, WORKER, steady, trained};

#[test]
fn the_holder_of_a_lock_is_named() {
    let host = scenarios::locked();
    let chain = host.only(Cause::LockWait);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::High));
    assert_eq!(
        chain.culprit,
        Some(Culprit { pid: 100, comm: "lock-holder".into(), ..Culprit::default() })
    );
    lost(chain, u64::from(FAULT_WINDOWS) * 680 * MS);
}

#[test]
fn only_the_waits_inside_launches_are_lost_to_the_lock_that_launches_wait_for() {
    let host = scenarios::locked_in_launches();
    let chain = host.only(Cause::LockWait);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchTail, Severity::Medium));
    assert_eq!(
        chain.culprit,
        Some(Culprit { pid: 100, comm: "lock-holder".into(), ..Culprit::default() })
    );
    lost(chain, u64::from(FAULT_WINDOWS) * 200 * MS);
}

#[test]
fn what_a_thread_waits_for_another_one_that_waits_for_the_lock_is_part_of_the_loss() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Lock, HOLDER, 400 * MS, 400 * MS);
        train.waits_behind("pt_autograd_0", 500 * MS, 300 * MS);
        train.on(101).launches(100, 5 * US);
        train.rests(Phase::Host, State::Off(Reason::Futex));
        train.waits(Reason::Lock, HOLDER, 300 * MS, 300 * MS).on(100);
    });
    let chain = host.only(Cause::LockWait);
    assert_eq!(chain.victim.tid, 100);
    lost(chain, u64::from(FAULT_WINDOWS) * 700 * MS);
    let holders = chain.losses.iter().map(|loss| (&*loss.comm, loss.seconds.round()));
    let all = f64::from(FAULT_WINDOWS) * 0.7;
    assert_eq!(holders.collect::<Vec<_>>(), [("lock-holder", all.round())]);
}

#[test]
fn waiting_for_work_from_a_thread_that_idled_is_no_lock() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        steady(train);
        train.waits(Reason::Futex, Task("frontend", 100, Relation::Thread), 900 * MS, 30 * MS);
    });
    host.is_silent();
}

#[test]
fn workers_that_read_from_a_slow_disk_starve_their_trainer() {
    let host = scenarios::starved();
    let chain = host.only(Cause::DataloaderStarvation);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::High));
    let culprit = chain.culprit.as_ref().unwrap();
    assert_eq!((&*culprit.comm, [200, 201].contains(&culprit.pid)), ("pt_data_worker", true));
    assert_eq!(
        (chain.evidence.get("workers"), &*chain.path[0].from),
        (Some(2.0), "reading from disk")
    );
    assert!(
        chain.sentence.contains(
            "It waited for 2 workers in the last 10 s (2 so far, of 3 child processes), busy"
        ),
        "{}",
        chain.sentence
    );
    takes(chain, u64::from(FAULT_WINDOWS) * 900 * MS);
}

#[test]
fn workers_go_by_the_name_that_they_have_given_themselves() {
    let mut host = trained();
    host.start_worker(0, 200).now.comm = comm("train");
    host.run_all(4, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 900 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    let chain = host.only(Cause::DataloaderStarvation);
    assert_eq!(chain.culprit.as_ref().unwrap().comm, "pt_data_worker");
}

#[test]
fn a_busy_child_that_hands_nothing_over_is_no_worker() {
    let mut host = trained();
    host.start_worker(0, 200).now.comm = comm("tensorboard");
    host.start_worker(0, 201).now.comm = comm("pt_data_worker");
    host.run_all(4, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(
            Reason::Poll,
            Task("pt_data_worker", 201, Relation::Worker),
            900 * MS,
            0,
        );
        processes[1].is_busy(&[(State::Running, 2_000 * MS)]);
        processes[2].works(&[(State::Running, 1_900 * MS), (State::Off(Reason::Poll), 100 * MS)]);
    });
    let chain = host.only(Cause::DataloaderStarvation);
    assert_eq!(chain.culprit.as_ref().unwrap().pid, 201);
    assert_eq!(chain.evidence.get("workers"), Some(1.0));
    let so_far = "It waited for 1 worker in the last 10 s (1 so far, of 2 child processes), busy";
    assert!(chain.sentence.contains(so_far), "{}", chain.sentence);
}

/// Two workers lose their CPU; the second is waited for only at first.
fn starved_without_cpus(had_by: Task) -> Host {
    let mut host = trained();
    for tgid in [200, 201] {
        host.start_worker(0, tgid);
    }
    host.start("serve", 900).on(900);
    host.run_all(8, |processes, window| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 900 * MS, 0);
        let parts = [(State::Running, 800 * MS), (State::Off(Reason::Runqueue), 1_200 * MS)];
        for worker in &mut processes[1..3] {
            let tid = Some(Tid(worker.now.tgid.0));
            let Task(name, tgid, relation) = had_by;
            let total = worker.now.waits.first().map_or(0, |wait| wait.total.0) + 1_100 * MS;
            let wait = Wait::host(Reason::Runqueue, comm(name), Nanos(total));
            worker.now.waits = vec![Wait { tid, tgid: Some(Tgid(tgid)), relation, ..wait }];
            if tid == Some(Tid(200)) || window < 2 {
                worker.works(&parts);
            } else {
                worker.is_busy(&parts);
            }
        }
    });
    host
}

#[test]
fn who_had_the_cpu_that_workers_waited_for_is_named_with_all_of_its_time() {
    for (task, expected) in [
        (Task("pt_data_worker", 201, Relation::Other), "Run fewer workers, or fewer threads"),
        (Task("train", 100, Relation::Other), "Run fewer workers, or fewer threads"),
        (Task("cron", 901, Relation::Other), "Keep cron (PID 901) off the CPUs of the workers"),
        (Task("serve", 900, Relation::Other), "serve (PID 900) feeds a GPU itself and had"),
    ] {
        let host = starved_without_cpus(task);
        let chain = host.only(Cause::DataloaderStarvation);
        assert!(chain.fix.starts_with(expected), "{}", chain.fix);
        assert!(chain.fix.contains("waited for a CPU for"), "{}", chain.fix);
        let mut takers = chain.path.iter().filter(|step| step.mechanism.starts_with("had the CPU"));
        let expected = match task.1 {
            900.. => format!("{} ({})", task.0, task.1),
            _ => "the job's own tasks".to_owned(),
        };
        let taker = takers.next().map(|step| &*step.from);
        assert_eq!((taker, takers.next()), (Some(&*expected), None));
    }
}

#[test]
fn workers_that_may_run_on_all_cpus_of_the_host_are_given_no_larger_set() {
    for (cpus, is_larger) in [("0-1", true), ("0-3", false), ("", true)] {
        let mut host = starved_without_cpus(Task("train", 100, Relation::Other));
        host.set_places([(200, Place { cpus: cpus.into(), ..Place::default() })]);
        let fix = &host.only(Cause::DataloaderStarvation).fix;
        assert!(
            fix.starts_with("Run fewer workers, or fewer threads in those that have several"),
            "{fix}"
        );
        assert_eq!(fix.contains("a larger CPU set"), is_larger, "{cpus}: {fix}");
    }
}

#[test]
fn workers_that_are_not_waited_for_now_are_counted_all_the_same() {
    let host = starved_without_cpus(Task("cron", 901, Relation::Other));
    let chain = host.only(Cause::DataloaderStarvation);
    let number = |name| chain.evidence.get(name);
    assert_eq!((number("workers"), number("workers_waited_for")), (Some(2.0), Some(1.0)));
    assert_eq!(chain.culprit.as_ref().unwrap().pid, 200, "the one that was waited for");
}

/// A trainer with two workers: for how long it waits for each in a window, and how long each computes in one.
fn waiting_for(waited: impl Fn(u32) -> [u64; 2], computes: [u64; 2]) -> Host {
    let mut host = trained();
    for tgid in [200, 201] {
        host.start_worker(0, tgid);
    }
    host.run_all(6, |processes, window| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 900 * MS, 0);
        for (index, (waited, ns)) in waited(window).into_iter().zip(computes).enumerate() {
            let idle = (State::Off(Reason::Poll), 2_000 * MS - ns);
            processes[1 + index].works_after(waited, &[(State::Running, ns), idle]);
        }
    });
    host
}

/// The PID of the worker that a chain names, what keeps the trainer waiting, and of how many workers the sentence speaks.
fn late(host: &Host) -> (u32, &str, &str) {
    let chain = host.only(Cause::DataloaderStarvation);
    let step = chain.path.iter().find(|step| step.to.starts_with("train")).unwrap();
    let count = chain.sentence.split("It waited for ").nth(1).unwrap();
    let count = count.split(", of").next().unwrap();
    (chain.culprit.as_ref().unwrap().pid, &step.from, count)
}

#[test]
fn the_worker_that_was_waited_for_longest_is_named_and_not_the_busiest() {
    let host = waiting_for(|_| [500 * MS, 400 * MS], [1_700 * MS, 2_000 * MS]);
    let from = "pt_data_worker (200) and 1 other";
    assert_eq!(late(&host), (200, from, "2 workers in the last 10 s (2 so far"));
}

#[test]
fn a_worker_that_was_not_waited_for_in_this_window_kept_nobody_waiting_in_it() {
    let waited = |window| [900 * MS, if window == 3 { MS } else { 0 }];
    let host = waiting_for(waited, [1_700 * MS, 2_000 * MS]);
    let from = "pt_data_worker (200)";
    assert_eq!(late(&host), (200, from, "2 workers in the last 10 s (2 so far"));
}

#[test]
fn while_a_wait_goes_on_the_worker_that_was_waited_for_longest_before_is_named() {
    let waited = |window| [MS, 900 * MS].map(|ns| if window == 3 { ns } else { 0 });
    let host = waiting_for(waited, [2_000 * MS, 1_700 * MS]);
    assert_eq!(late(&host).0, 201);
}

#[test]
fn a_child_that_answers_another_thread_is_not_the_worker_that_is_late() {
    // The child is idle, and ends more waits than anybody.
    let host = waiting_for(|_| [100 * MS, 1_900 * MS], [2_000 * MS, 1_400 * MS]);
    assert_eq!(late(&host).0, 200);
    assert_eq!(late(&host).1, "pt_data_worker (200)");
}

#[test]
fn time_that_several_workers_kept_their_trainer_waiting_is_not_that_of_one() {
    let host = scenarios::starved();
    let chain = host.only(Cause::DataloaderStarvation);
    let step = chain.path.iter().find(|step| step.to.starts_with("train")).unwrap();
    assert!(step.from.ends_with(") and 1 other"), "{step:?}");
}

#[test]
fn a_culprit_is_one_of_several_where_others_of_its_name_took_time_too() {
    let place = |pids: [u32; 2]| {
        let mut host = trained();
        for pid in pids.into_iter().cycle().take(4) {
            host.run(1, |train| {
                steady(train);
                let task = Task("pt_data_worker", pid, Relation::Other);
                train.waits(Reason::Preempted, task, 900 * MS, 0);
                // Waits are kept by name, with the last that had it.
                train.now.waits.iter_mut().for_each(|wait| wait.tgid = Some(Tgid(pid)));
            });
        }
        host.only(Cause::CpuPreemption).place_of_culprit().unwrap()
    };
    assert_eq!(place([301, 300]), "PID 300; one of several of this name");
    assert_eq!(place([300, 300]), "PID 300");
}

#[test]
fn what_others_did_to_another_thread_is_not_blamed_for_this_one() {
    let mut host = trained();
    let (backup, shipper) =
        (Task("backup", 900, Relation::Other), Task("fluent-bit", 901, Relation::Other));
    host.run_all(4, |processes, _| {
        let train = &mut processes[0];
        train.on(101).calls("cudaEventQuery", 100, 10 * US, &[]);
        train.waits(Reason::Preempted, backup, 1_500 * MS, 0);
        steady(train);
        train.waits(Reason::Preempted, shipper, 1_000 * MS, 0);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.victim.tid, 100);
    assert_eq!(
        chain.culprit,
        Some(Culprit { pid: 901, comm: "fluent-bit".into(), ..Culprit::default() })
    );
}

#[test]
fn a_thread_that_pins_memory_passes_the_starvation_on() {
    let host = scenarios::starved_through_a_pinning_thread();
    let chain = host.only(Cause::DataloaderStarvation);
    assert_eq!((chain.severity, &*chain.path[0].from), (Severity::High, "computing"));
    takes(chain, u64::from(FAULT_WINDOWS) * 1_000 * MS);
}

#[test]
fn workers_that_idle_starve_nobody() {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 900 * MS, 0);
        let futex = State::Off(Reason::Futex);
        processes[1].works(&[(State::Running, 400 * MS), (futex, 1_600 * MS)]);
    });
    host.is_silent();
}

#[test]
fn a_busy_child_is_not_blamed_for_an_idle_server() {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Futex, Task("frontend", 100, Relation::Thread), 900 * MS, 0);
        processes[0].waits(Reason::Poll, KERNEL, 200 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    host.is_silent();
}

#[test]
fn busy_workers_of_a_trainer_that_waits_for_the_gpu_starve_nobody() {
    let mut host = trained();
    host.start_worker(0, 200);
    host.run_all(FAULT_WINDOWS, |processes, _| {
        steady(&mut processes[0]);
        processes[0].waits(Reason::Poll, WORKER, 10 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    host.is_silent();
}

#[test]
fn waiting_for_the_disk_is_reported() {
    let host = scenarios::on_disk();
    let chain = host.only(Cause::BlockIo);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::High));
    lost(chain, u64::from(FAULT_WINDOWS) * 600 * MS);
}

#[test]
fn a_thread_that_launches_nothing_more_because_it_reads_is_still_the_one_that_feeds() {
    let mut host = trained();
    host.run(FAULT_WINDOWS, |train| {
        train.on(100).waits(Reason::Io, KERNEL, 2_000 * MS, 0);
    });
    let chain = host.only(Cause::BlockIo);
    assert_eq!(chain.severity, Severity::Critical);
    lost(chain, u64::from(FAULT_WINDOWS) * 2_000 * MS);
}

#[test]
fn waiting_for_pages_is_reported() {
    let host = scenarios::paging();
    let chain = host.only(Cause::PageFault);
    assert_eq!((chain.effect, chain.severity), (Effect::LaunchGap, Severity::Medium));
    lost(chain, u64::from(FAULT_WINDOWS) * 300 * MS);
}

#[test]
fn the_disk_that_requests_took_longest_on_is_named() {
    let mut host = trained();
    let disk = |name: &[u8], operation, ms, requests| {
        let mut device = DeviceName([0; DEVICE_LEN]);
        device.0[..name.len()].copy_from_slice(name);
        BlockIo { device, operation, time: Nanos(ms * MS), bytes: 0, requests }
    };
    // Before the fault most requests were on another disk.
    host.run(1, |train| {
        steady(train);
        train.now.host.block_io = vec![disk(b"sdb", BlockOperation::Write, 90_000, 900)];
    });
    let mut windows = 0;
    host.run(3, |train| {
        steady(train);
        train.waits(Reason::Io, KERNEL, 600 * MS, 0);
        windows += 1;
        let reads = disk(b"nvme0n1", BlockOperation::Read, windows * 580, windows * 4);
        train.now.host.block_io.truncate(1);
        train.now.host.block_io.push(reads);
    });
    let chain = host.only(Cause::BlockIo);
    let named = "Busiest disk of the process: nvme0n1, 580 ms in 4 requests.";
    assert!(chain.sentence.contains(named), "{}", chain.sentence);
    assert_ne!(chain.path[0].from, "nvme0n1", "the disk of the thread itself is not measured");
}

#[test]
fn a_wait_for_data_that_is_not_lost_is_not_called_lost() {
    let host = scenarios::starved();
    let chain = host.only(Cause::DataloaderStarvation);
    assert_eq!(chain.lost_seconds, 0.0);
    assert!(!chain.sentence.contains("lost"), "{}", chain.sentence);
}
