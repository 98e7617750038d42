//! The state that the registry reports.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use gpucause_abi::Nanos;

use super::{Attach, AttachedFile, FileId, LinkId, Registry};
use crate::elf::ProbeSite;

/// Most reported files without probes.
const MAX_REPORTS: usize = 64;

/// Limits of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files with probes; each is an open file and a link.
    pub attached: usize,
    /// Files with probes that belong to one user, root included.
    pub of_one_owner: usize,
    /// Files remembered to have no traced functions.
    pub remembered: usize,
    /// True if functions get probes where a hit is single-stepped.
    pub single_steps: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attached: 512, of_one_owner: 256, remembered: 4096, single_steps: true }
    }
}

/// Why a file has probes or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LibraryVerdict {
    /// Probes are attached.
    Attached,
    /// No traced functions.
    NoSymbols,
    /// A hit of any of its functions would be single-stepped, and those get no probes.
    SingleStepped,
    /// Not readable as a library.
    Broken(String),
    /// Rejected by the kernel; retried after each scan.
    Refused(String),
    /// The limit of probed files is reached; retried when it is not.
    OverLimit,
}

impl fmt::Display for LibraryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => f.write_str("attached"),
            Self::NoSymbols => f.write_str("no traced functions"),
            Self::SingleStepped => f.write_str("no probes, as each hit would be single-stepped"),
            Self::Broken(reason) => write!(f, "broken: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::OverLimit => f.write_str("too many libraries have probes already"),
        }
    }
}

/// One library file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryStatus {
    /// Path in the root directory of the first process seen to map it.
    pub path: PathBuf,
    /// The file.
    pub file: FileId,
    /// GNU build id in hex.
    pub build_id: Option<String>,
    /// The link, when attached.
    pub link: Option<LinkId>,
    /// Functions with a probe.
    pub sites: usize,
    /// Different ops among them.
    pub ops: usize,
    /// Functions where a hit is single-stepped, which costs about ten times as much.
    pub slow: Vec<String>,
    /// Functions that get no probe, as a hit would be single-stepped.
    pub left_out: Vec<String>,
    /// Functions that get no probe, as a process has replaced their code in its memory, or replaces it where there is no probe.
    pub replaced: Vec<String>,
    /// Why it has probes or not.
    pub verdict: LibraryVerdict,
    /// Time from the mapping to the last attach, if the mapping was seen as an event: calls in it were missed.
    pub gap: Option<Nanos>,
    /// The longest gap.
    pub max_gap: Option<Nanos>,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegistryCounts {
    /// Files attached to.
    pub attached: u64,
    /// Files detached from.
    pub detached: u64,
    /// Attempts that the kernel rejected.
    pub refused: u64,
    /// Attached files that were overwritten in place.
    pub overwritten: u64,
    /// Files ignored because of the limit.
    pub over_limit: u64,
    /// Mappings whose process ended before the file could be opened.
    pub vanished: u64,
    /// Mappings whose file could not be reached for another reason.
    pub unreachable: u64,
}

impl<A: Attach> Registry<A> {
    /// Reported files: those with probes, rejected ones, and libraries with CUDA names but without traced functions.
    pub fn libraries(&self) -> impl Iterator<Item = LibraryStatus> + '_ {
        let attached = self.files.iter().map(|(id, attached)| self.status_of(*id, attached));
        let reports = self.ignored.reports().take(MAX_REPORTS);
        attached.chain(reports.map(|(id, report)| report.status(id)))
    }

    fn status_of(&self, id: FileId, attached: &AttachedFile<A::Links>) -> LibraryStatus {
        let replaced = attached.replaced_functions(!self.replacers.is_empty());
        let probed = || attached.image.sites.iter().filter(|site| !replaced.contains(&site.symbol));
        LibraryStatus {
            path: attached.path.clone(),
            file: id,
            build_id: attached.image.build_id.clone(),
            link: attached.state.as_ref().ok().map(|(link, _)| *link),
            sites: probed().count(),
            ops: distinct_ops(probed()),
            slow: attached.image.slow_sites().map(|site| site.symbol.clone()).collect(),
            left_out: attached.image.left_out.clone(),
            verdict: match &attached.state {
                Ok(_) => LibraryVerdict::Attached,
                Err(reason) => LibraryVerdict::Refused(reason.clone()),
            },
            gap: attached.gap,
            max_gap: attached.max_gap,
            replaced,
        }
    }
}

fn distinct_ops<'a>(sites: impl Iterator<Item = &'a ProbeSite>) -> usize {
    sites.map(|site| site.op).collect::<HashSet<_>>().len()
}
