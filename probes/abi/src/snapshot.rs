//! What user space makes of one copy of the kernel maps.

use crate::hist::Histogram;
use crate::op::OpId;
use crate::record::{REASONS, ROLES, SWITCHES, SelfCounter};
use crate::state::{Reason, Role, Switch};
use crate::{Nanos, ProcId, Tgid};

/// All accounts at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// When the copy was made, on the monotonic clock.
    pub taken_at: Nanos,
    /// Every process that is or was observed, by [`ProcId`].
    pub processes: Vec<ProcessSnapshot>,
    /// The programs' counters about themselves, by [`SelfCounter`].
    pub counters: Vec<(SelfCounter, u64)>,
    /// Fill of every bounded map.
    pub maps: Vec<MapUsage>,
}

/// How full a kernel map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapUsage {
    /// Name of the map.
    pub map: &'static str,
    /// Entries in it.
    pub entries: u64,
    /// Entries it can hold.
    pub capacity: u64,
    /// Updates it refused.
    pub refused: u64,
}

/// One process image's accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessSnapshot {
    /// Identity over PID reuse and exec.
    pub id: ProcId,
    /// The process.
    pub tgid: Tgid,
    /// Name of the thread-group leader.
    pub comm: Comm,
    /// The process that forked this one, when it is a worker.
    pub parent: Option<ProcId>,
    /// When the process started, on the boot-time clock.
    pub started_boottime: Nanos,
    /// When observation began, on the monotonic clock.
    pub first_seen: Nanos,
    /// Whether a thread of it has made a traced call.
    pub dispatches: bool,
    /// When it exited or exec'ed, on the monotonic clock; `None` while it lives.
    pub ended: Option<Nanos>,
    /// Whether it ended by exec: the process lives on under another image.
    pub execed: bool,
    /// Calls that never returned.
    pub abandoned_calls: u64,
    /// Call durations by op and coldness.
    pub calls: Vec<CallSnapshot>,
    /// Off-CPU time inside calls, by op.
    pub stalls: Vec<StallSnapshot>,
    /// Error results: op, code, count.
    pub errors: Vec<(OpId, u32, u64)>,
    /// Launches by kernel function handle.
    pub kernels: Vec<(u64, u64)>,
    /// Off-CPU intervals by role and reason.
    pub offcpu: Vec<(Role, Reason, Histogram)>,
    /// Time from runnable to running, by role.
    pub runqueue: Vec<(Role, Histogram)>,
    /// Context switches, `[role][kind]`.
    pub switches: [[u64; SWITCHES]; ROLES],
}

impl ProcessSnapshot {
    /// Context switches of one role and kind.
    #[must_use]
    pub fn switches(&self, role: Role, kind: Switch) -> u64 {
        self.switches[role as usize][kind as usize]
    }

    /// Durations of an op's calls, cold and warm together.
    #[must_use]
    pub fn call_durations(&self, op: OpId) -> Histogram {
        let mut all = Histogram::default();
        for call in self.calls.iter().filter(|call| call.op == op) {
            all.merge(&call.durations);
        }
        all
    }
}

/// Durations of one op's calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSnapshot {
    /// The op.
    pub op: OpId,
    /// Whether these are first launches of a kernel function.
    pub cold: bool,
    /// From entry to return.
    pub durations: Histogram,
}

/// Off-CPU time that overlapped one op's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StallSnapshot {
    /// The op.
    pub op: OpId,
    /// Calls with any off-CPU time between entry and return.
    pub calls: u64,
    /// Overlapping off-CPU time by [`Reason`].
    pub offcpu: [Nanos; REASONS],
}

/// A task name: at most 15 bytes that the task chose itself, in no particular encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Comm(pub [u8; crate::record::COMM_LEN]);

impl Comm {
    /// As text; bytes that are not UTF-8 become U+FFFD and control characters `?`, so that it fits on one line.
    #[must_use]
    pub fn to_text(self) -> String {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end])
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_one_line_of_text() {
        let mut raw = [0; crate::record::COMM_LEN];
        raw[..6].copy_from_slice(b"a\n\xff\"\\b");
        assert_eq!(Comm(raw).to_text(), "a?\u{fffd}\"\\b");
    }

    #[test]
    fn a_name_without_terminator_is_whole() {
        assert_eq!(Comm([b'x'; crate::record::COMM_LEN]).to_text(), "x".repeat(16));
    }
}
