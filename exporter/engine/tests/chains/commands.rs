//! The fix of each chain has a command with real values.

use std::collections::HashSet;

use gpucause_abi::state::{Reason, Relation};
use gpucause_engine::chain::{Cause, Chain, Place, Thread};

use crate::host::Host;
use crate::process::{MS, Process, Task, US};
use crate::scenarios;

fn place(unit: &str, cgroup: &str, cpus: &str) -> Place {
    let cpu_limit = "/sys/fs/cgroup/system.slice/cpu.max".into();
    let [unit, cgroup, cpus] = [unit, cgroup, cpus].map(Into::into);
    Place { unit, cgroup, cpus, cpu_limit, ..Place::default() }
}

/// The host has four CPUs; the victim runs on two of them.
fn placed(mut host: Host) -> Host {
    host.engine.set_url("http://localhost:19400");
    host.set_places([
        (100, place("train.service", "/system.slice/train.service", "2-3")),
        (900, place("hog.service", "/system.slice/hog.service", "0-3")),
    ]);
    host
}

fn in_python(mut host: Host) -> Host {
    let python = || Place { python: true, ..Place::default() };
    host.set_places([100, 102, 200, 201].map(|pid| (pid, python())));
    host
}

/// Returns a text that the chain's fix must contain.
fn expected(chain: &Chain) -> &'static str {
    match chain.cause {
        Cause::CpuPreemption => {
            "Run: `taskset -acp 0-1 900`, `systemctl set-property --runtime hog.service AllowedCPUs=0-1`."
        }
        Cause::RunqueueWait => "Run: `taskset -acp 0-1 900`, ",
        Cause::NoisyCgroup => {
            "Run: `systemctl set-property --runtime train.service CPUQuota=`, `cat /sys/fs/cgroup/system.slice/cpu.max`, `echo max > /sys/fs/cgroup/system.slice/cpu.max`."
        }
        _ if chain.effect.label() == "hang" => {
            "Run: `cat /proc/100/task/100/stack`, `gdb -p 100 -batch -ex "
        }
        Cause::LockWait => "Run: `gdb -p 100 -batch -ex ",
        Cause::KernelLock => "Run: `cat /proc/100/task/117/stack`, `gdb -p 100 -batch -ex ",
        Cause::BlockIo => {
            "Run: `cut -sd' ' -f2 /proc/100/task/100/syscall | while read fd; do ls -l /proc/100/fd/$((fd)); done`, "
        }
        Cause::PageFault => "Run: `grep -E 'VmRSS|VmSwap' /proc/100/status`, ",
        Cause::DataloaderStarvation => "Run: `top -b -n 1 -H -p 20",
        Cause::ProcessWait => "Run: `top -b -n 1 -H -p 300`.",
        Cause::NcclLateRank => {
            "Run: `gpucause explain --url http://localhost:19400 --pid 102`, `gdb -p 102 -batch -ex "
        }
        Cause::ClockThrottling => "Run: `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE`.",
        Cause::HostCode => "Run: `perf top -t 100`.",
        Cause::OomKill => "Run: `journalctl -k --since @16999999",
        _ => "Run: `gpucause record --db trace-100.db --duration 30s --pid 100`.",
    }
}

#[test]
fn each_cause_has_a_command_that_can_be_copied() {
    for scenario in scenarios::ALL {
        let host = placed(scenario());
        for chain in host.chains() {
            let expected = expected(chain);
            assert!(chain.fix.contains(expected), "{}: {expected} in {}", chain.cause, chain.fix);
        }
    }
}

#[test]
fn only_processes_that_run_python_are_asked_with_py_spy() {
    let mut asked = HashSet::new();
    for scenario in scenarios::ALL {
        let placed = placed(scenario());
        assert!(placed.chains().iter().all(|chain| !chain.fix.contains("`py-spy")));
        for chain in in_python(scenario()).chains().iter().filter(|c| c.fix.contains("`py-spy")) {
            asked.insert(chain.cause);
        }
    }
    for cause in [Cause::LockWait, Cause::DataloaderStarvation, Cause::NcclLateRank] {
        assert!(asked.contains(&cause), "{cause}");
    }
}

#[test]
fn the_holder_of_a_lock_is_named_with_its_thread_and_shown_by_the_command() {
    let mut host = scenarios::locked();
    let place = Place { cpus: "1".into(), ..Place::default() };
    let thread = Thread { tid: 107, comm: "lock-holder".into() };
    host.locate([(100, place)], |_| Some(thread.clone()));
    let holder = |host: &Host| host.only(Cause::LockWait).culprit.as_ref().unwrap().tid;
    assert_eq!(holder(&host), Some(107));
    let fix = &host.only(Cause::LockWait).fix;
    assert!(fix.contains("bt' | grep -EA 20 '^Thread .*LWP 107\\b'`."), "{fix}");
    assert!(fix.contains("gdb stops the process") && !fix.contains("gpucause record"), "{fix}");
    let chain = host.only(Cause::LockWait);
    assert_eq!(
        chain.culprit.as_ref().unwrap().describe(&chain.victim),
        "thread 107 of the victim's process, allowed on CPU 1"
    );
    host.run(1, |train| {
        scenarios::steady(train);
        train.waits(Reason::Lock, scenarios::HOLDER, 700 * MS, 680 * MS);
    });
    assert_eq!(holder(&host), Some(107), "the same thread");
    host.run(20, |train| {
        scenarios::steady(train);
        let other = Task("other", 100, Relation::Thread);
        train.waits(Reason::Lock, other, 900 * MS, 900 * MS);
    });
    assert_eq!(holder(&host), None, "another thread");
}

#[test]
fn a_cgroup_whose_limit_throttles_is_named_in_the_sentence() {
    let mut host = scenarios::throttled();
    let sentence = |host: &Host| host.only(Cause::NoisyCgroup).sentence.clone();
    assert!(!sentence(&host).contains("The limit is that of"));
    let file = "/sys/fs/cgroup/kubepods/pod1/cpu.max".into();
    let place = Place { cpu_limit: file, ..Place::default() };
    host.set_places([(100, place)]);
    let named = sentence(&host);
    assert!(named.contains(" The limit is that of /sys/fs/cgroup/kubepods/pod1. "), "{named}");
}

#[test]
fn a_culprit_in_a_unit_of_hostile_name_gives_a_quoted_command_or_none() {
    let mut host = scenarios::preempted();
    let fix = |host: &mut Host, unit: &str| {
        host.set_places([(100, place("", "", "2-3")), (900, place(unit, "", "0-3"))]);
        host.only(Cause::CpuPreemption).fix.clone()
    };
    let quoted = fix(&mut host, "a;reboot;$(id).service");
    assert!(quoted.contains("--runtime 'a;reboot;$(id).service' AllowedCPUs=0-1"), "{quoted}");
    let refused = fix(&mut host, "`id`\n.service");
    assert!(!refused.contains("systemctl") && refused.contains("taskset"), "{refused}");
}

#[test]
fn where_a_culprit_runs_stays_when_the_chain_is_seen_again() {
    let mut host = placed(scenarios::preempted());
    host.run(1, |train| {
        scenarios::steady(train);
        train.calls("cudaLaunchKernel", 30, 5 * US, &[]);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.culprit.as_ref().unwrap().place.unit, "hog.service");
    assert_eq!(chain.victim.place.cpus, "2-3");
}

#[test]
fn the_thread_of_another_process_that_had_the_cpu_is_named_and_acted_on() {
    let mut host = scenarios::preempted();
    let thread = Thread { tid: 907, comm: "stats-flusher".into() };
    host.locate([(100, place("", "", "1")), (900, place("", "", "1"))], |_| Some(thread.clone()));
    let chain = host.only(Cause::CpuPreemption);
    assert!(chain.fix.contains(
        "The competing thread is stats-flusher (thread 907 of hog). Run: `taskset -cp 0,2-3 907`"
    ));
    assert_eq!(
        chain.culprit.as_ref().unwrap().describe(&chain.victim),
        "thread stats-flusher (907) of PID 900, allowed on CPU 1"
    );
}

/// Two processes that feed a GPU preempt each other; the second has a worker.
fn competing() -> Host {
    let mut host = scenarios::trained();
    host.start("serve", 900);
    host.start_worker(1, 910);
    let serve = |process: &mut Process| {
        process.on(900).launches(2_000, 5 * US);
        process.calls("cudaStreamSynchronize", 20, 100 * US, &[(Reason::GpuDriver, 40 * MS)]);
    };
    host.run_all(8, |processes, _| {
        scenarios::steady(&mut processes[0]);
        serve(&mut processes[1]);
    });
    host.run_all(3, |processes, _| {
        scenarios::steady(&mut processes[0]);
        processes[0].waits(Reason::Preempted, Task("serve", 900, Relation::Other), 600 * MS, 0);
        serve(&mut processes[1]);
        processes[1].waits(Reason::Preempted, Task("train", 100, Relation::Other), 600 * MS, 0);
    });
    host
}

#[test]
fn processes_that_feed_gpus_and_compete_are_separated_and_never_slowed() {
    let mut host = competing();
    let place = || Place { cpus: "0".into(), ..Place::default() };
    host.set_places([(100, place()), (900, place())]);
    assert_eq!(host.chains().len(), 2);
    for chain in host.chains() {
        let fix = &chain.fix;
        assert!(fix.contains("feeds a GPU itself") && !fix.contains("renice"), "{fix}");
        let moved = "Run: `for p in 900 $(for c in $(pgrep -P 900); do echo $c; pgrep -P $c; done); \
                     do taskset -acp 1 $p; done`.";
        assert!(fix.ends_with(moved), "{fix}");
    }
}

#[test]
fn where_no_cpu_is_free_for_a_job_a_list_is_no_fix() {
    let mut host = competing();
    let place = || Place { cpus: "0-3".into(), ..Place::default() };
    host.unused_cpus = "";
    host.set_places([(100, place()), (900, place())]);
    for chain in host.chains() {
        let fix = &chain.fix;
        assert!(fix.contains("or move one to another host") && !fix.contains("Run:"), "{fix}");
        assert!(fix.contains(" To see what uses the CPUs: `ps "), "{fix}");
    }
}

#[test]
fn a_thread_that_may_run_on_one_cpu_only_is_said_to_share_it_whoever_competes() {
    let pinned = || Place { cpus: "0".into(), ..Place::default() };
    for mut host in [competing(), scenarios::preempted(), among_many(false)] {
        host.set_places([(100, pinned()), (900, pinned())]);
        for chain in host.chains() {
            let shared = "The dispatcher thread may run on CPU 0 only, and shares it.";
            assert!(chain.fix.contains(shared), "{}", chain.fix);
        }
    }
}

#[test]
fn the_fix_for_a_thread_with_one_cpu_among_many_tasks_is_more_cpus_as_in_its_command() {
    let mut host = among_many(false);
    for (cpus, advice, command) in [
        ("0", ", or let the dispatcher thread run on more CPUs.", true),
        ("0-3", ", or pin the dispatcher thread to dedicated CPUs.", false),
    ] {
        host.set_places([(100, Place { cpus: cpus.into(), ..Place::default() })]);
        let fix = &host.only(Cause::CpuPreemption).fix;
        assert!(fix.contains(advice), "{fix}");
        assert_eq!(fix.contains("taskset -cp"), command, "{fix}");
    }
}

#[test]
fn the_top_competitor_among_many_tasks_may_work_for_the_victim() {
    let mut host = scenarios::trained();
    host.start_worker(0, 200);
    host.run_all(3, |processes, _| {
        scenarios::steady(&mut processes[0]);
        let tasks = [("pt_data_worker", 200, 280), ("backup", 901, 220), ("cron", 902, 200)];
        for (name, pid, ms) in tasks {
            let task = Task(name, pid, Relation::Other);
            processes[0].waits(Reason::Preempted, task, ms * MS, 0);
        }
    });
    let fix = &host.only(Cause::CpuPreemption).fix;
    assert!(fix.contains(" pt_data_worker works for train itself."), "{fix}");
}

#[test]
fn a_thread_of_the_victim_among_many_tasks_does_not_work_for_it() {
    let mut host = scenarios::trained();
    host.run(3, |train| {
        scenarios::steady(train);
        let tasks = [("pt_autograd_0", 100, 280), ("backup", 901, 220), ("cron", 902, 200)];
        for (name, pid, ms) in tasks {
            let relation = if pid == 100 { Relation::Thread } else { Relation::Other };
            train.waits(Reason::Preempted, Task(name, pid, relation), ms * MS, 0);
        }
    });
    let fix = &host.only(Cause::CpuPreemption).fix;
    assert!(fix.contains("oversubscribed") && !fix.contains("works for"), "{fix}");
}

/// Three tasks preempt a trainer; the first may feed a GPU.
fn among_many(job: bool) -> Host {
    let mut host = scenarios::trained();
    if job {
        host.start("serve", 900).on(900);
    }
    host.run(3, |train| {
        scenarios::steady(train);
        let tasks = [("serve", 900, 280), ("backup", 901, 220), ("cron", 902, 200)];
        for (name, pid, ms) in tasks {
            train.waits(Reason::Preempted, Task(name, pid, Relation::Other), ms * MS, 0);
        }
    });
    host
}

#[test]
fn a_job_is_never_raised_above_another_that_feeds_a_gpu() {
    let unpinned = || Place { cpus: "0-3".into(), ..Place::default() };
    let mut alone = among_many(false);
    alone.set_places([(100, unpinned())]);
    let fix = &alone.only(Cause::CpuPreemption).fix;
    assert!(fix.contains(" Run: `renice -n -10 -p 100`. To see "), "{fix}");
    let mut beside = among_many(true);
    beside.set_places([(100, unpinned())]);
    let fix = &beside.only(Cause::CpuPreemption).fix;
    assert!(
        fix.contains("serve feeds a GPU, or works for what does: another priority only moves"),
        "{fix}"
    );
    assert!(!fix.contains("-10"), "{fix}");
    beside.set_places([(100, place("", "", "1"))]);
    let fix = &beside.only(Cause::CpuPreemption).fix;
    assert!(fix.contains(" Run: `taskset -cp 0-3 100`. To see "), "{fix}");
}

#[test]
fn workers_of_a_process_that_feeds_a_gpu_count_as_its_own() {
    let mut host = scenarios::trained();
    host.start("serve", 900).on(900);
    host.start_worker(1, 910);
    host.start_worker(0, 200).now.measures.ended_waits.0 = 1;
    let fix = |host: &mut Host, task: Task| {
        host.run(20, |train| {
            scenarios::steady(train);
            train.waits(Reason::Preempted, task, 600 * MS, 0);
        });
        host.only(Cause::CpuPreemption).fix.clone()
    };
    let theirs = fix(&mut host, Task("pt_data_worker", 910, Relation::Other));
    assert!(
        theirs.contains("pt_data_worker works for serve, which feeds a GPU itself"),
        "{theirs}"
    );
    let own = fix(&mut host, Task("own_worker", 200, Relation::Worker));
    assert!(own.starts_with("More threads of train and its workers want a CPU"), "{own}");
    assert!(!theirs.contains("renice") && !own.contains("renice"));
}
