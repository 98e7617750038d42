//! Known hazards: kernels on which uprobes can harm observed programs, by release string, with remedies.
//!
//! Distributions backport fixes without changing the version. A kernel has a hazard when its version is in the affected
//! upstream range and its distribution has no known fix; false warnings are preferred, since the observed program is at
//! risk.

use std::fmt;

/// Severity of a hazard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HazardSeverity {
    /// Informational.
    Note,
    /// Observed programs can be harmed in some situations.
    Warning,
}

/// A kernel version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Parses a release such as `5.15.0-1065-aws`, `6.6.30`, `6.12-rc3` or `5.14.0-427.13.1.el9_4.x86_64`.
    pub fn parse(release: &str) -> Option<Self> {
        let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
        let mut numbers = release[..end].split('.').map(|number| number.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A hazard and the upstream releases that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hazard {
    /// Name in reports.
    pub name: &'static str,
    /// Severity.
    pub severity: HazardSeverity,
    /// Possible harm.
    pub harm: &'static str,
    /// Action to take.
    pub remedy: &'static str,
    /// First affected version and the version with the fix, if any.
    ranges: &'static [(Version, Option<Version>)],
    /// The only processor that has it.
    only_on: Option<&'static str>,
    /// Commits of Linux that brought and mended it, or the code that has it.
    pub source: &'static str,
}

const X86_64: &str = "x86_64";
const ARM64: &str = "aarch64";
const SECCOMP: &str = "uretprobe_seccomp";

/// All known hazards.
pub const HAZARDS: &[Hazard] = &[
    Hazard {
        name: SECCOMP,
        severity: HazardSeverity::Warning,
        harm: "a program under a seccomp filter, as in most containers, can be killed when a probed call returns, since \
               return probes use a system call that filters do not know",
        remedy: "use 6.12.14, 6.13.3 or newer, or a distribution's kernel that has the fix; until then set probe.enabled: \
                 false in the configuration where such programs run",
        ranges: &[
            (Version(6, 11, 0), Some(Version(6, 12, 14))),
            (Version(6, 13, 0), Some(Version(6, 13, 3))),
        ],
        only_on: Some(X86_64),
        source: "since ff474a78cef5 in 6.11, until cf6cb56ef244 in 6.14, 6.13.3 and 6.12.14",
    },
    Hazard {
        name: "uretprobe_shadow_stack",
        severity: HazardSeverity::Note,
        harm: "a program that runs with a user shadow stack, which is off unless asked for, is killed when a probed call \
               returns",
        remedy: "use 6.11 or newer if programs run with one",
        ranges: &[(Version(6, 6, 0), Some(Version(6, 11, 0)))],
        only_on: Some(X86_64),
        source: "until 1713b63a07a2 in 6.11, which some 6.6 and 6.10 have too; on arm64 a kernel before cc66c711e58f in 6.18 has \
                 uprobes or such stacks, never both",
    },
    Hazard {
        name: "uretprobe_other_stack",
        severity: HazardSeverity::Note,
        harm: "a program that changes its stack inside a probed call and makes another there, as coroutines and signal handlers \
               with a stack of their own can, is killed when a call returns",
        remedy: "use 6.13 or newer, where such calls get no return probe; until then set probe.enabled: false in the \
                 configuration where such programs run",
        ranges: &[(Version(0, 0, 0), Some(Version(6, 13, 0)))],
        only_on: None,
        source: "cleanup_return_instances in kernel/events/uprobes.c forgets calls above the stack pointer",
    },
    Hazard {
        name: "uprobe_nop5_red_zone",
        severity: HazardSeverity::Note,
        harm: "a probe on a 5-byte no-op in the middle of a function overwrites what the function keeps below its stack \
               pointer",
        remedy: "nothing is to be done: gpucause probes the entries of functions only, where nothing lies there",
        ranges: &[(Version(6, 18, 0), Some(Version(7, 3, 0)))],
        only_on: Some(X86_64),
        source: "since ba2bfc97b462 in 6.18, until 7.3, which takes a no-op of 10 bytes",
    },
    Hazard {
        name: "uretprobe_unwind",
        severity: HazardSeverity::Note,
        harm: "on a processor with FEAT_PAN3, as of Armv8.7, a program is killed when a thread ends inside a probed call, by \
               pthread_exit or when it is cancelled",
        remedy: "set probe.enabled: false in the configuration where threads end in host callbacks of CUDA",
        ranges: &[(Version(5, 13, 0), None)],
        only_on: Some(ARM64),
        source: "since 18107f8a2df6 in 5.13 code that is only executable cannot be read there; the kernel maps the return \
                 address of a probed call so, and unwinders read the code at return addresses",
    },
    Hazard {
        name: "uprobe_single_step",
        severity: HazardSeverity::Note,
        harm: "on real processors, NVIDIA's Grace among them, a program can crash at a probed call: the kernel single-steps the \
               first instruction of most functions of CUDA, and goes on at a wrong address at times",
        remedy: "nothing is to be done: such functions get no probe unless probe.risky_single_steps is true, and their calls are then not counted",
        ranges: &[(Version(0, 0, 0), None)],
        only_on: Some(ARM64),
        source: "DataDog/datadog-agent#54053 and #54291; the cause is not known",
    },
    Hazard {
        name: "bpf_private_stack",
        severity: HazardSeverity::Note,
        harm: "BPF programs with a frame of 64 bytes and more, of whatever agent, have a stack on each CPU that preemption can \
               corrupt: the kernel panics",
        remedy: "nothing is to be done for gpucause, whose programs have smaller frames; update other agents",
        ranges: &[(Version(6, 13, 0), None)],
        only_on: None,
        source: "open-telemetry/opentelemetry-ebpf-instrumentation#3056",
    },
];

impl Hazard {
    fn has(&self, version: Version) -> bool {
        let inside = |&(first, fixed): &(Version, Option<Version>)| {
            version >= first && fixed.is_none_or(|fixed| version < fixed)
        };
        self.ranges.iter().any(inside)
    }
}

fn hazards_on(processor: &str, version: Version) -> Vec<&'static Hazard> {
    let is_here = |hazard: &&Hazard| hazard.only_on.is_none_or(|only| only == processor);
    HAZARDS.iter().filter(is_here).filter(|hazard| hazard.has(version)).collect()
}

/// Hazards of a kernel release; empty when it has no version.
pub fn hazards(release: &str) -> Vec<&'static Hazard> {
    let Some(version) = Version::parse(release) else { return Vec::new() };
    hazards_on(std::env::consts::ARCH, version)
}

/// Returns true if a probed call of this process could kill it: its seccomp filter may not allow the system call of return probes.
pub(crate) fn filtered_returns_kill() -> bool {
    let is_filtered = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        has_filter(&status)
    };
    hazards_of_this_kernel().iter().any(|hazard| hazard.name == SECCOMP) && is_filtered()
}

/// By what `/proc/PID/status` says: 2 is `SECCOMP_MODE_FILTER`.
fn has_filter(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Hazards of the running kernel.
pub fn hazards_of_this_kernel() -> Vec<&'static Hazard> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    hazards(release.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_distributions_make_of_them() {
        for (release, version) in [
            ("6.18.44", Version(6, 18, 44)),
            ("6.12-rc3", Version(6, 12, 0)),
            ("6.8.0-1021-aws", Version(6, 8, 0)),
            ("5.14.0-427.13.1.el9_4.x86_64", Version(5, 14, 0)),
            ("6.1.0-18-amd64", Version(6, 1, 0)),
            ("6.12.27+deb13-amd64", Version(6, 12, 27)),
            ("5.15.153.1-microsoft-standard-WSL2", Version(5, 15, 153)),
            ("6.13.1-arch1-1", Version(6, 13, 1)),
            ("6.12.9-200.fc41.x86_64", Version(6, 12, 9)),
        ] {
            assert_eq!(Version::parse(release), Some(version), "{release}");
        }
        for release in ["", "rolling", "6", "v6.1", "6.x.1"] {
            assert_eq!(Version::parse(release), None, "{release}");
        }
    }

    #[test]
    fn a_program_is_filtered_in_the_mode_of_filters_alone() {
        for (mode, filtered) in [("0", false), ("1", false), ("2", true)] {
            let status = format!("Name:\tgpucause\nSeccomp:\t{mode}\nSeccomp_filters:\t2\n");
            assert_eq!(has_filter(&status), filtered, "{mode}");
        }
        assert!(!has_filter(""));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_release_has_the_hazards_of_its_version() {
        const SHADOW_STACK: &str = "uretprobe_shadow_stack";
        const STACK: &str = "uretprobe_other_stack";
        const NOP5: &str = "uprobe_nop5_red_zone";
        const PRIVATE: &str = "bpf_private_stack";
        for (release, known) in [
            ("5.15.0-105-generic", &[STACK][..]),
            ("5.14.0-427.13.1.el9_4.x86_64", &[STACK]),
            ("6.1.0-18-amd64", &[STACK]),
            ("6.8.0-1021-aws", &[SHADOW_STACK, STACK]),
            ("6.10.14", &[SHADOW_STACK, STACK]),
            ("6.11.0-19-generic", &[SECCOMP, STACK]),
            ("6.12.0-55.el10.x86_64", &[SECCOMP, STACK]),
            ("6.12.9-200.fc41.x86_64", &[SECCOMP, STACK]),
            ("6.12.13", &[SECCOMP, STACK]),
            ("6.12.14", &[STACK]),
            ("6.12.27+deb13-amd64", &[STACK]),
            ("6.13-rc3", &[SECCOMP, PRIVATE]),
            ("6.13.1-arch1-1", &[SECCOMP, PRIVATE]),
            ("6.13.2", &[SECCOMP, PRIVATE]),
            ("6.13.3", &[PRIVATE]),
            ("6.14.0-1006-aws", &[PRIVATE]),
            ("6.18.44", &[NOP5, PRIVATE]),
            ("7.0.0-rc1", &[NOP5, PRIVATE]),
            ("7.3.4+deb13-cloud-amd64", &[PRIVATE]),
            ("rolling", &[]),
        ] {
            let names: Vec<_> = hazards(release).iter().map(|hazard| hazard.name).collect();
            assert_eq!(names, known, "{release}");
        }
    }

    #[test]
    fn a_processor_has_its_own_hazards_and_those_of_all() {
        const STACK: &str = "uretprobe_other_stack";
        const STEP: &str = "uprobe_single_step";
        for (processor, version, known) in [
            (ARM64, Version(6, 12, 0), &[STACK, "uretprobe_unwind", STEP][..]),
            (ARM64, Version(6, 18, 0), &["uretprobe_unwind", STEP, "bpf_private_stack"]),
            (X86_64, Version(6, 12, 0), &[SECCOMP, STACK]),
        ] {
            let names: Vec<_> = hazards_on(processor, version).iter().map(|h| h.name).collect();
            assert_eq!(names, known, "{processor} {version}");
        }
    }

    #[test]
    fn every_hazard_says_what_to_do_and_ranges_are_in_order() {
        for hazard in HAZARDS {
            assert!(
                [hazard.harm, hazard.remedy, hazard.source].iter().all(|text| !text.is_empty())
            );
            assert!(hazard.ranges.iter().all(|&(first, fixed)| fixed.is_none_or(|f| first < f)));
        }
    }
}
