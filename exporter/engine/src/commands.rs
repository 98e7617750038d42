//! Commands for the fix of a chain, with its PIDs, units and CPUs.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::num::NonZeroU16;

use crate::chain::{Cause, Chain, Culprit, Effect, Evidence, HostCpus, Loss, Place, Victim};
use crate::cpu_list::{cpus, list};
use crate::rules::cpu_preemption::on_one_cpu;
use crate::rules::own_threads::{idle_elsewhere, widened};
use crate::shell::quoted;
use crate::worker_time::on_all_cpus;

/// Properties of the host that commands name.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) cpus: HostCpus,
    /// The address of its exporter; empty for the default one.
    pub(crate) url: String,
    /// Processes that feed GPUs.
    pub(crate) jobs: usize,
}

/// The advice followed by the commands.
pub(crate) fn with(advice: &str, chain: &Chain, host: &Host) -> String {
    let clauses = [
        shares_its_cpu(chain, host),
        idle_cpus(chain, host),
        thread_that_competes(chain),
        second_competitor(chain),
        mounted(chain),
    ];
    let has_one_cpu = || only_cpu(&chain.victim.place, host).is_some();
    let advice = match &chain.culprit {
        _ if has_all_cpus(chain, host) => on_all_cpus(advice),
        None if has_one_cpu() => on_one_cpu(advice),
        _ => advice.to_owned(),
    };
    let mut fix = format!("{advice}{}", clauses.concat());
    let (lists, commands): (Vec<_>, Vec<_>) =
        of(chain, host).into_iter().partition(|command| command.starts_with("ps "));
    if !commands.is_empty() {
        let commands: Vec<_> = commands.iter().map(|command| format!("`{command}`")).collect();
        fix += &format!(" Run: {}.", commands.join(", "));
    }
    // It changes nothing.
    for list in lists {
        fix += &format!(" To see what uses the CPUs: `{list}`.");
    }
    fix
}

/// Returns true if the workers that do not keep up may run on every CPU of the host.
fn has_all_cpus(chain: &Chain, host: &Host) -> bool {
    let online = cpus(&host.cpus.online);
    let own = chain.culprit.as_ref().map(|own| cpus(&own.place.cpus)).unwrap_or_default();
    chain.cause == Cause::DataloaderStarvation
        && !online.is_empty()
        && online.iter().all(|cpu| own.contains(cpu))
}

/// The clause about a thread that waits for the only CPU that it may run on, while another task has it.
fn shares_its_cpu(chain: &Chain, host: &Host) -> String {
    let waits = matches!(chain.cause, Cause::CpuPreemption | Cause::RunqueueWait);
    let Victim { comm, place, .. } = &chain.victim;
    match only_cpu(place, host) {
        Some(cpu) if waits && place.on_one_cpu => {
            let allowed = list(&allowed(place, host));
            format!(
                " All threads of {comm} and of its workers may run on CPU {cpu} only, by their own CPU mask; they may use CPUs {allowed}."
            )
        }
        Some(cpu) if waits && !waited_for_idle_cpu(&chain.evidence) => {
            format!(" The dispatcher thread may run on CPU {cpu} only, and shares it.")
        }
        _ => String::new(),
    }
}

/// The clause about idle CPUs that threads which compete with each other may not run on.
fn idle_cpus(chain: &Chain, host: &Host) -> String {
    match idle_elsewhere(&chain.victim.place, &host.cpus) {
        idle if chain.is_of_own_threads() && !idle.is_empty() => {
            let cpus = if idle.parse::<u32>().is_ok() { "CPU" } else { "CPUs" };
            format!(" It may not run on {cpus} {idle}, which had nothing to do.")
        }
        _ => String::new(),
    }
}

/// The only CPU that a thread may run on, where its cgroup allows more.
fn only_cpu(place: &Place, host: &Host) -> Option<u32> {
    place.cpus.parse().ok().filter(|_| allowed(place, host).len() > 1)
}

/// The CPUs that a thread could be allowed to run on.
fn allowed(place: &Place, host: &Host) -> BTreeSet<u32> {
    let (online, cpuset) = (cpus(&host.cpus.online), cpus(&place.cpuset));
    if cpuset.is_empty() { online } else { online.intersection(&cpuset).copied().collect() }
}

/// The clause about a process besides that of the culprit and the victim's own that took much of the CPU time as well. What is no
/// process, such as an idle CPU that woke up late, cannot be moved.
fn second_competitor(chain: &Chain) -> String {
    let Some(culprit) = &chain.culprit else { return String::new() };
    if !matches!(chain.cause, Cause::CpuPreemption | Cause::RunqueueWait) {
        return String::new();
    }
    let all: f64 = chain.losses.iter().map(|loss| loss.seconds).sum();
    let (own, much) = ([culprit.pid, chain.victim.pid], MUCH * all);
    let second = chain.losses.iter().find_map(|Loss { pid, comm, seconds }| {
        let pid = pid.filter(|pid| !own.contains(pid) && *comm != culprit.comm)?;
        (*seconds >= much).then(|| {
            format!(" {comm} (PID {pid}) takes much of it, too: keep it off these CPUs as well.")
        })
    });
    second.unwrap_or_default()
}

/// The clause about where the file systems are that the culprit serves; empty where that is unknown.
fn mounted(chain: &Chain) -> String {
    match &chain.culprit {
        Some(Culprit { comm, place, .. }) if !place.serves.is_empty() => {
            format!(" {comm} serves {}.", place.serves.join(", "))
        }
        _ => String::new(),
    }
}

/// Share of a chain's loss that a second task is named for.
const MUCH: f64 = 0.25;

/// The clause about the thread of another process that had the CPU; empty where that was not measured.
fn thread_that_competes(chain: &Chain) -> String {
    match &chain.culprit {
        Some(Culprit { tid: Some(tid), thread, comm, .. }) if !thread.is_empty() => {
            format!(" The competing thread is {thread} (thread {tid} of {comm}).")
        }
        _ => String::new(),
    }
}

/// Returns true if most of a wait for a CPU was for an idle one: no task is the culprit.
pub(crate) fn waited_for_idle_cpu(evidence: &Evidence) -> bool {
    evidence.get("idle_share").is_some_and(|share| share >= 0.5)
}

/// Commands for the cause, the least invasive first.
fn of(chain: &Chain, host: &Host) -> Vec<String> {
    let (pid, tid, place) = (chain.victim.pid, chain.victim.tid, &chain.victim.place);
    let culprit = chain.culprit.as_ref();
    if chain.effect == Effect::Hang {
        let kernel = format!("cat /proc/{pid}/task/{tid}/stack");
        let first = if place.python { python_stacks(pid) } else { kernel };
        return vec![first, stacks(pid)];
    }
    match chain.cause {
        Cause::CpuPreemption if chain.is_of_own_threads() => {
            vec![match idle_elsewhere(place, &host.cpus) {
                _ if place.on_one_cpu && only_cpu(place, host).is_some() => {
                    move_job(pid, &list(&allowed(place, host)))
                }
                idle if idle.is_empty() => busiest_of(pid),
                idle => move_job(pid, &widened(place, &idle)),
            }]
        }
        Cause::CpuPreemption | Cause::RunqueueWait => match culprit {
            _ if waited_for_idle_cpu(&chain.evidence) => {
                vec!["grep -E '^cpu' /proc/stat".into(), "cpupower idle-info".into()]
            }
            Some(culprit) => match &culprit.feeds {
                Some(feeder) => vec![separate(feeder.pid, &chain.victim, &host.cpus.unused)],
                None => apart(culprit, place, &host.cpus.online),
            },
            None => against_many(&chain.victim, host),
        },
        Cause::NoisyCgroup => limit(place, pid),
        Cause::LockWait => {
            let holder = culprit.and_then(|holder| holder.tid);
            let python = place.python.then(|| python_stacks(pid));
            let holder =
                holder.map(|tid| format!("{} | grep -EA 20 '^Thread .*LWP {tid}\\b'", stacks(pid)));
            python.into_iter().chain([holder.unwrap_or_else(|| stacks(pid))]).collect()
        }
        Cause::KernelLock => {
            let (pid, tid) =
                culprit.map_or((pid, tid), |own| (own.pid, own.tid.unwrap_or(own.pid)));
            vec![format!("cat /proc/{pid}/task/{tid}/stack"), stacks(pid)]
        }
        Cause::BlockIo => vec![file_of_call(pid, tid), record(pid)],
        Cause::PageFault if culprit.is_some() => vec![record(pid)],
        Cause::PageFault => vec![format!("grep -E 'VmRSS|VmSwap' /proc/{pid}/status"), record(pid)],
        Cause::DataloaderStarvation | Cause::ProcessWait => {
            let worker = culprit.map_or(pid, |worker| worker.pid);
            let is_python = culprit.map_or(place, |worker| &worker.place).python;
            match chain.evidence.get(Chain::FILE_LOCK_SECONDS) {
                Some(_) => vec![format!("lslocks -u -p {worker}"), file_of_call(pid, tid)],
                None if is_python => vec![stack(worker)],
                None => vec![format!("top -b -n 1 -H -p {worker}")],
            }
        }
        Cause::NcclLateRank if culprit.is_some_and(|late| !late.host.is_empty()) => {
            culprit.and_then(|late| of_other_host(&late.host, &host.url)).into_iter().collect()
        }
        Cause::NcclLateRank => {
            let late = culprit.map_or(pid, |late| late.pid);
            let is_python = culprit.map_or(place, |late| &late.place).python;
            let url = quoted(&host.url).map(|url| format!(" --url {url}")).unwrap_or_default();
            let explain = format!("gpucause explain{url} --pid {late}");
            vec![explain, if is_python { stack(late) } else { stacks(late) }]
        }
        Cause::ClockThrottling => {
            vec!["nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE".into()]
        }
        Cause::OomKill => {
            let since = (chain.first_seen - 60.0).max(0.0);
            vec![format!("journalctl -k --since @{since:.0} --grep 'oom-kill|Killed process'")]
        }
        Cause::HostCode if place.python => vec![stack(pid)],
        Cause::HostCode => vec![format!("perf top -t {tid}")],
        Cause::ImplicitSync
        | Cause::AllocatorChurn
        | Cause::MemoryLeak
        | Cause::GraphRecapture
        | Cause::ColdStart
        | Cause::LargeCopy
        | Cause::Unexplained => vec![record(pid)],
    }
}

/// Asks the exporter of another host, where its name is an address.
fn of_other_host(name: &str, own_url: &str) -> Option<String> {
    let (host, port) = name.rsplit_once(':')?;
    port.parse::<NonZeroU16>().ok()?;
    let is_name =
        |text: &str| text.bytes().all(|c| c.is_ascii_alphanumeric() || b".-".contains(&c));
    let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match six {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => host.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_name(host),
    };
    let scheme = if own_url.starts_with("https:") { "https" } else { "http" };
    let url = quoted(&format!("{scheme}://{name}")).filter(|_| is_host)?;
    Some(format!("gpucause explain --url {url}"))
}

/// The processes that use most CPU, and the CPU that each had last.
const BUSIEST: &str = "ps -eo pid,psr,pcpu,comm --sort=-pcpu | head -n 20";

/// Command that lists the threads of a program and of its workers by CPU time.
fn busiest_of(pid: u32) -> String {
    format!("ps -Lo pid,tid,psr,pcpu,comm --sort=-pcpu {pid} {}", children(pid))
}

fn record(pid: u32) -> String {
    format!("gpucause record --db trace-{pid}.db --duration 30s --pid {pid}")
}

/// Returns the command that shows stacks of Python code alone, which needs no symbols.
fn stack(pid: u32) -> String {
    format!("py-spy dump --pid {pid}")
}

fn python_stacks(pid: u32) -> String {
    format!("py-spy dump --native --pid {pid}")
}

/// The file that a thread reads or writes while it is in the system call: the first argument is the descriptor.
fn file_of_call(pid: u32, tid: u32) -> String {
    // For a running thread the file holds one word, and no line is printed.
    format!(
        "cut -sd' ' -f2 /proc/{pid}/task/{tid}/syscall | while read fd; do ls -l /proc/{pid}/fd/$((fd)); done"
    )
}

fn stacks(pid: u32) -> String {
    format!("gdb -p {pid} -batch -ex 'thread apply all bt'")
}

/// Gives one of two jobs the CPUs that neither may use, if these are half as many as they share now or more. It moves the same one,
/// whichever the victim is: two chains that blame each other must not undo what the other says.
fn separate(feeder: u32, victim: &Victim, unused: &str) -> String {
    let (unused, shared) = (cpus(unused), cpus(&victim.place.cpus).len());
    match feeder.max(victim.pid) {
        _ if unused.is_empty() => BUSIEST.into(),
        _ if 2 * unused.len() < shared => BUSIEST.into(),
        job => move_job(job, &list(&unused)),
    }
}

/// Command that lets a program and its workers run on these CPUs.
fn move_job(pid: u32, cpus: &str) -> String {
    format!("for p in {pid} {}; do taskset -acp {cpus} $p; done", children(pid))
}

/// In a command, the PIDs of the children of a process and of their children, such as the workers of a fork server.
fn children(pid: u32) -> String {
    format!("$(for c in $(pgrep -P {pid}); do echo $c; pgrep -P $c; done)")
}

/// Against many tasks: all CPUs for a thread that has one, and a higher priority, except above that of another job that feeds a GPU.
fn against_many(victim: &Victim, host: &Host) -> Vec<String> {
    let Victim { pid, tid, place, .. } = victim;
    let more = list(&allowed(place, host));
    let more = only_cpu(place, host).map(|_| match place.on_one_cpu {
        true => move_job(*pid, &more),
        false => format!("taskset -cp {more} {tid}"),
    });
    let raise = match place.autogroup.is_empty() {
        true => format!("renice -n -10 -p {tid}"),
        false => format!("echo -10 > /proc/{pid}/autogroup"),
    };
    let raise = (host.jobs <= 1).then_some(raise);
    more.into_iter().chain(raise).chain([BUSIEST.into()]).collect()
}

/// Moves the culprit off the victim's CPUs; to the last CPU if the victim may use all.
fn apart(culprit: &Culprit, victim: &Place, online: &str) -> Vec<String> {
    let (all, theirs) = (cpus(online), cpus(&victim.cpus));
    let allowed = cpus(&culprit.place.cpus);
    let others: BTreeSet<u32> = all.difference(&theirs).copied().collect();
    let target = if all.len() < 2 || theirs.is_empty() {
        BTreeSet::new()
    } else if others.is_empty() {
        all.iter().next_back().copied().into_iter().collect()
    } else {
        others
    };
    let mut commands = Vec::new();
    // The culprit may be there already.
    if !target.is_empty() && allowed != target {
        let target = list(&target);
        commands.push(match culprit.tid {
            Some(tid) => format!("taskset -cp {target} {tid}"),
            None => format!("taskset -acp {target} {}", culprit.pid),
        });
        // Moving the culprit's unit must not move the victim.
        if let Some(unit) = service(&culprit.place).filter(|_| culprit.place.unit != victim.unit) {
            commands.push(format!("systemctl set-property --runtime {unit} AllowedCPUs={target}"));
        }
    }
    let shares_group = culprit.place.cgroup == victim.cgroup || !culprit.place.autogroup.is_empty();
    if shares_group || commands.is_empty() {
        commands.push(lower(culprit, victim));
    }
    commands
}

/// Lets the victim run before the culprit where both want the same CPU. Priorities only count within an autogroup, or where there is
/// none within a cgroup; cgroups have weights.
fn lower(culprit: &Culprit, victim: &Place) -> String {
    let (place, pid) = (&culprit.place, culprit.pid);
    let other =
        service(place).filter(|_| place.cgroup != victim.cgroup && place.unit != victim.unit);
    match other {
        _ if !place.autogroup.is_empty() && place.autogroup != victim.autogroup => {
            format!("echo 19 > /proc/{pid}/autogroup")
        }
        Some(unit) if place.autogroup.is_empty() => {
            format!("systemctl set-property --runtime {unit} CPUWeight=1")
        }
        // On Linux it acts on single threads.
        _ => match culprit.tid {
            Some(tid) => format!("renice -n 19 -p {tid}"),
            None => format!("renice -n 19 -p $(ls /proc/{pid}/task)"),
        },
    }
}

/// Shows the CPU limit and removes it, through systemd if it set it.
fn limit(place: &Place, pid: u32) -> Vec<String> {
    let mut commands: Vec<String> = service(place)
        .map(|unit| format!("systemctl set-property --runtime {unit} CPUQuota="))
        .into_iter()
        .collect();
    let file = quoted(&place.cpu_limit);
    let none = if place.cpu_limit.ends_with("cpu.max") { "max" } else { "-1" };
    commands.extend(file.iter().map(|file| format!("cat {file}")));
    commands.extend(file.map(|file| format!("echo {none} > {file}")));
    if commands.is_empty() {
        commands.push(format!("cat /proc/{pid}/cgroup"));
    }
    commands
}

/// The unit's quoted name, if it is a service and not a user's whole session.
fn service(place: &Place) -> Option<String> {
    let is_own = place.unit.ends_with(".service") && !place.unit.starts_with("user@");
    quoted(&place.unit).filter(|_| is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_culprit_is_moved_off_the_victims_cpus_once() {
        let place = |unit: &str, cpus: &str| Place {
            unit: unit.into(),
            cpus: cpus.into(),
            ..Place::default()
        };
        let culprit =
            |place| Culprit { pid: 28576, comm: "fluent-bit".into(), place, ..Culprit::default() };
        let run = |own, victim: &str, online| apart(&culprit(own), &place("", victim), online);
        let renice = "renice -n 19 -p $(ls /proc/28576/task)";
        assert_eq!(
            run(place("fluent-bit.service", "0-3"), "1-3", "0-3"),
            [
                "taskset -acp 0 28576",
                "systemctl set-property --runtime fluent-bit.service AllowedCPUs=0",
                renice
            ]
        );
        assert_eq!(run(place("", "0-3"), "0-3", "0-3"), ["taskset -acp 3 28576", renice]);
        assert_eq!(run(place("x.service", "0"), "1-3", "0-3"), [renice]);
        assert_eq!(run(place("x.service", "0"), "0", "0"), [renice]);
        assert_eq!(run(place("", ""), "", ""), [renice]);
        let pinned = ["taskset -acp 0 28576", renice];
        assert_eq!(run(place("user@1000.service", "0-3"), "1-3", "0-3"), pinned);
        let together =
            apart(&culprit(place("slurmd.service", "0-3")), &place("slurmd.service", "1-3"), "0-3");
        assert_eq!(together, pinned, "the unit is the victim's as well");
    }

    #[test]
    fn of_a_culprit_whose_thread_is_known_only_that_is_moved_and_lowered() {
        let place = Place { cpus: "1".into(), ..Place::default() };
        let victim = place.clone();
        let culprit = Culprit { pid: 7, tid: Some(9), place, ..Culprit::default() };
        assert_eq!(apart(&culprit, &victim, "0-1"), ["taskset -cp 0 9", "renice -n 19 -p 9"]);
    }

    #[test]
    fn two_jobs_that_blame_each_other_are_separated_by_one_command_or_by_none() {
        let victim = |pid| Victim { pid, tid: pid, ..Victim::default() };
        let both = |unused| [separate(20, &victim(10), unused), separate(10, &victim(20), unused)];
        let moved = move_job(20, "2-3");
        assert_eq!(both("2-3"), [&*moved, &*moved]);
        assert_eq!(both(""), [BUSIEST, BUSIEST]);
        let on = |cpus: &str| Victim {
            place: Place { cpus: cpus.into(), ..Place::default() },
            ..victim(10)
        };
        assert_eq!(separate(20, &on("0-30"), "31"), BUSIEST, "too few for a job");
        assert_eq!(separate(20, &on("0-3"), "4-5"), move_job(20, "4-5"));
    }

    #[test]
    fn a_culprit_is_lowered_by_what_the_scheduler_weighs() {
        let place = |cgroup: &str, autogroup: &str| Place {
            unit: cgroup.trim_start_matches('/').into(),
            cgroup: cgroup.into(),
            autogroup: autogroup.into(),
            cpus: "0".into(),
            ..Place::default()
        };
        let run = |own, victim| {
            let culprit = Culprit { pid: 7, comm: "hog".into(), place: own, ..Culprit::default() };
            apart(&culprit, &victim, "0")
        };
        let renice = ["renice -n 19 -p $(ls /proc/7/task)"];
        let autogroup = ["echo 19 > /proc/7/autogroup"];
        assert_eq!(run(place("/", "/autogroup-1"), place("/", "/autogroup-1")), renice);
        assert_eq!(run(place("/", "/autogroup-1"), place("/", "/autogroup-2")), autogroup);
        assert_eq!(run(place("/a.service", "/autogroup-1"), place("/b.service", "")), autogroup);
        assert_eq!(run(place("/a.service", ""), place("/a.service", "")), renice);
        let weight = ["systemctl set-property --runtime a.service CPUWeight=1"];
        assert_eq!(run(place("/a.service", ""), place("/b.service", "")), weight);
    }
}
