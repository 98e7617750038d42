//! Capabilities of the process, and their purpose.

use super::{Point, State};
use crate::privileges::{how_to_get, is_root};

/// Number, name, purpose, and whether it is mandatory.
const NEEDED: [(u32, &str, &str, bool); 5] = [
    (39, "CAP_BPF", "loads the programs", true),
    (38, "CAP_PERFMON", "attaches them and reports new mappings", true),
    (19, "CAP_SYS_PTRACE", "opens libraries of other users' processes", false),
    (2, "CAP_DAC_READ_SEARCH", "reads files of other users", false),
    (40, "CAP_CHECKPOINT_RESTORE", "opens libraries that were deleted or replaced", false),
];
/// Includes every other.
const CAP_SYS_ADMIN: u32 = 21;

/// A point for each capability.
pub(super) fn report() -> Vec<Point> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    points(effective(&status).unwrap_or(0))
}

fn effective(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn points(effective: u64) -> Vec<Point> {
    let has = |capability: u32| effective & 1 << capability != 0;
    // CAP_SYS_ADMIN implies those that were split from it.
    let split = [38, 39, 40];
    let advice = || how_to_get(is_root());
    NEEDED
        .iter()
        .map(|&(number, name, purpose, required)| {
            let granted = has(number) || (split.contains(&number) && has(CAP_SYS_ADMIN));
            let point = match (granted, required) {
                (true, _) => Point::ok(name, purpose),
                (false, true) => Point::new(State::Failed, name, purpose).advise(advice()),
                (false, false) => Point::new(State::Disabled, name, purpose).advise(advice()),
            };
            Point { required, ..point }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_capabilities_lacks_them_all() {
        let points = points(effective("Name:\tx\nCapEff:\t0000000000000000\n").unwrap());
        assert!(points.iter().all(|point| point.state != State::Ok && point.advice.is_some()));
        let failed = points.iter().filter(|point| point.state == State::Failed);
        assert!(failed.clone().all(|point| point.required));
        assert_eq!(failed.count(), 2);
    }

    #[test]
    fn sys_admin_stands_in_for_what_was_split_from_it() {
        let points = points(1 << CAP_SYS_ADMIN);
        let missing: Vec<_> = points
            .iter()
            .filter(|point| point.state != State::Ok)
            .map(|point| &point.subject[..])
            .collect();
        assert_eq!(missing, ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]);
    }
}
