//! The fix of each chain has a command with real values.

use std::collections::HashMap;

use gpucause_engine::chain::{Cause, Chain, Place};

use crate::host::Host;
use crate::scenarios;

fn place(unit: &str, cgroup: &str, cpus: &str) -> Place {
    let cpu_limit = "/sys/fs/cgroup/system.slice/cpu.max".into();
    let [unit, cgroup, cpus] = [unit, cgroup, cpus].map(Into::into);
    Place { unit, cgroup, cpus, cpu_limit, ..Place::default() }
}

/// The host has four CPUs; the victim runs on two of them.
fn placed(mut host: Host) -> Host {
    let places = HashMap::from([
        (100, place("train.service", "/system.slice/train.service", "2-3")),
        (900, place("hog.service", "/system.slice/hog.service", "0-3")),
    ]);
    host.engine.set_places("0-3", &places);
    host
}

/// What each cause is answered with.
fn expected(chain: &Chain) -> &'static str {
    match chain.cause {
        Cause::CpuPreemption => {
            "Run: `taskset -acp 0-1 900`, `systemctl set-property --runtime hog.service AllowedCPUs=0-1`."
        }
        Cause::RunqueueWait => "Run: `taskset -acp 0-1 900`, ",
        Cause::NoisyCgroup => {
            "Run: `systemctl set-property --runtime train.service CPUQuota=`, `cat /sys/fs/cgroup/system.slice/cpu.max`, `echo max > /sys/fs/cgroup/system.slice/cpu.max`."
        }
        Cause::LockWait => "Run: `py-spy dump --native --pid 100`, `gdb -p 100 -batch -ex ",
        Cause::BlockIo => "Run: `ls -l /proc/100/fd`, ",
        Cause::PageFault => "Run: `grep -E 'VmRSS|VmSwap' /proc/100/status`, ",
        Cause::DataloaderStarvation => "Run: `py-spy dump --pid 20",
        Cause::NcclLateRank => "Run: `gpucause explain --pid 102`, `py-spy dump --pid 102`.",
        Cause::ClockThrottling => "Run: `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE`.",
        Cause::OomKill => "Run: `journalctl -k --since @16999999",
        Cause::Unexplained if chain.effect.label() == "hang" => "Run: `py-spy dump ",
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
fn a_culprit_in_a_unit_of_hostile_name_gives_a_quoted_command_or_none() {
    let mut host = scenarios::preempted();
    let fix = |host: &mut Host, unit: &str| {
        let places = HashMap::from([(100, place("", "", "2-3")), (900, place(unit, "", "0-3"))]);
        host.engine.set_places("0-3", &places);
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
        train.calls("cudaLaunchKernel", 30, 5 * crate::process::US, &[]);
    });
    let chain = host.only(Cause::CpuPreemption);
    assert_eq!(chain.culprit.as_ref().unwrap().place.unit, "hog.service");
    assert_eq!(chain.victim.place.cpus, "2-3");
}
