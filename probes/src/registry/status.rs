//! What the registry tells of itself.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use gpucause_abi::Nanos;

use super::{FileId, LinkId};
use crate::elf::LibraryImage;

/// Bounds on what the registry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files with probes; each is an open file and a link.
    pub attached: usize,
    /// Files with probes that belong to one user, root included.
    pub of_one_owner: usize,
    /// Files remembered to have no traced functions.
    pub remembered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attached: 512, of_one_owner: 256, remembered: 4096 }
    }
}

/// Why a file has probes or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It has.
    Attached,
    /// It has no traced functions.
    NoSymbols,
    /// It cannot be read as a library.
    Broken(String),
    /// The kernel refused; tried again after each scan.
    Refused(String),
    /// Too many others have; tried again when there is room.
    OverLimit,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => f.write_str("attached"),
            Self::NoSymbols => f.write_str("no traced functions"),
            Self::Broken(reason) => write!(f, "broken: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::OverLimit => f.write_str("too many libraries have probes already"),
        }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryStatus {
    /// Path as the process saw it that was first seen to map it, within its own root directory.
    pub path: PathBuf,
    /// Which file.
    pub file: FileId,
    /// GNU build id in hex.
    pub build_id: Option<String>,
    /// The probes, when attached.
    pub link: Option<LinkId>,
    /// Functions with a probe.
    pub sites: usize,
    /// Different ops among them.
    pub ops: usize,
    /// Functions where a hit is single-stepped, about ten times the cost.
    pub slow: Vec<String>,
    /// Why it has probes or not.
    pub verdict: Verdict,
    /// From the mapping to the last attach, when that followed from an event: calls in this time were not seen.
    pub gap: Option<Nanos>,
    /// The longest such time.
    pub max_gap: Option<Nanos>,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegistryCounts {
    /// Files that got probes.
    pub attached: u64,
    /// Files that lost theirs.
    pub detached: u64,
    /// Attempts that the kernel refused.
    pub refused: u64,
    /// Attached files that were overwritten in place.
    pub overwritten: u64,
    /// Files turned away because of the limit.
    pub over_limit: u64,
    /// Mappings whose process was gone before the file could be opened.
    pub vanished: u64,
    /// Mappings whose file could not be reached for another reason.
    pub unreachable: u64,
}

pub(super) fn distinct_ops(image: &LibraryImage) -> usize {
    image.sites.iter().map(|site| site.op).collect::<HashSet<_>>().len()
}
