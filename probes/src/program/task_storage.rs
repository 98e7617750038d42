//! Some kernels do not give tasks storage whenever a program asks.
//!
//! Where a kernel does not always give it, but finds the storage that a task has, programs use a map for the threads that were
//! refused. Where it does not find it either, or never gives any, all threads are in that map.

use std::fs;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

/// The release in which lookups stopped to be refused while another task was preempted in one on the same CPU: commit
/// e8b02296a6b8 ("bpf: Avoid taking spinlock in bpf_task_storage_get if potential deadlock is detected").
const LOOKUPS_SUCCEED: (u32, u32) = (6, 2);

/// Returns true if all threads must be in a map of their own.
pub(super) fn is_unusable(btf: &Btf<'_>) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let refuses_lookups = release(&read("/proc/sys/kernel/osrelease")) < LOOKUPS_SUCCEED
        && is_fully_preemptible(
            &read("/proc/sys/kernel/version"),
            &read("/sys/kernel/debug/sched/preempt"),
            &read("/proc/cmdline"),
        );
    refuses_lookups || (lacks_cmpxchg16b(&read("/proc/cpuinfo")) && allocates_without_waiting(btf))
}

/// Major and minor number.
fn release(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns true if a task can be preempted inside a program, according to the kernel's version text, the scheduler's own file where
/// it can be read, or its command line. True when unknown.
fn is_fully_preemptible(version: &str, chosen: &str, command_line: &str) -> bool {
    let mut words = version.split_ascii_whitespace();
    if !words.any(|word| word.starts_with("PREEMPT")) {
        return false;
    }
    if let Some((_, rest)) = chosen.split_once('(') {
        return !(rest.starts_with("none") || rest.starts_with("voluntary"));
    }
    let mut options = command_line.split_ascii_whitespace();
    !options.any(|option| matches!(option, "preempt=none" | "preempt=voluntary"))
}

/// Returns true if storage comes from an allocator that never waits (Linux 6.18 has it, 7.0 uses it here). It takes cmpxchg16b.
fn allocates_without_waiting(btf: &Btf<'_>) -> bool {
    ["kmalloc_nolock_noprof", "_kmalloc_nolock_noprof"]
        .iter()
        .any(|name| btf.type_by_name::<Func<'_>>(name).is_some())
}

fn lacks_cmpxchg16b(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| !flags.split_ascii_whitespace().any(|flag| flag == "cx16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(release("6.1.0-50-cloud-amd64\n"), (6, 1));
        assert!(release("6.12.117+deb13") > LOOKUPS_SUCCEED && release("6.1.0") < LOOKUPS_SUCCEED);
    }

    #[test]
    fn a_kernel_is_fully_preemptible_unless_it_says_otherwise() {
        let dynamic = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2";
        assert!(!is_fully_preemptible("#1 SMP Debian", "", ""));
        assert!(is_fully_preemptible("#1 SMP PREEMPT Debian", "", ""));
        assert!(is_fully_preemptible(dynamic, "none voluntary (full) lazy\n", "preempt=none"));
        assert!(!is_fully_preemptible(dynamic, "none (voluntary) full\n", ""));
        assert!(is_fully_preemptible(dynamic, "", "quiet"));
        assert!(!is_fully_preemptible(dynamic, "", "quiet preempt=none"));
    }

    #[test]
    fn a_processor_without_cmpxchg16b_is_found() {
        assert!(lacks_cmpxchg16b("processor : 0\nflags\t\t: fpu cx8 sse2\n"));
        assert!(!lacks_cmpxchg16b("processor : 0\nflags\t\t: fpu cx8 cx16 sse2\n"));
        assert!(!lacks_cmpxchg16b("processor : 0\nFeatures : fp asimd\n"));
    }
}
