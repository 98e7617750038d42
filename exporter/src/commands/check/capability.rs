//! Capabilities of the process, and their purpose.

use caps::{CapSet, Capability, CapsHashSet};

use super::{Point, State};
use crate::privileges::{how_to_get, is_root};

/// Capability, purpose, and true if it is mandatory.
const NEEDED: [(Capability, &str, bool); 5] = [
    (Capability::CAP_BPF, "loads the programs", true),
    (Capability::CAP_PERFMON, "attaches them and reports new mappings", true),
    (Capability::CAP_SYS_PTRACE, "opens libraries of other users' processes", false),
    (Capability::CAP_DAC_READ_SEARCH, "reads files of other users", false),
    (Capability::CAP_CHECKPOINT_RESTORE, "opens libraries that were deleted or replaced", false),
];
/// `CAP_SYS_ADMIN` implies those that were split from it.
const SPLIT: [Capability; 3] =
    [Capability::CAP_BPF, Capability::CAP_PERFMON, Capability::CAP_CHECKPOINT_RESTORE];

/// A point for each capability.
pub(super) fn report() -> Vec<Point> {
    points(&caps::read(None, CapSet::Effective).unwrap_or_default())
}

fn points(effective: &CapsHashSet) -> Vec<Point> {
    let is_admin = effective.contains(&Capability::CAP_SYS_ADMIN);
    let advice = || how_to_get(is_root());
    NEEDED
        .iter()
        .map(|&(own, purpose, required)| {
            let granted = effective.contains(&own) || (is_admin && SPLIT.contains(&own));
            let name = own.to_string();
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
        let points = points(&CapsHashSet::new());
        assert!(points.iter().all(|point| point.state != State::Ok && point.advice.is_some()));
        let failed = points.iter().filter(|point| point.state == State::Failed);
        assert!(failed.clone().all(|point| point.required));
        assert_eq!(failed.count(), 2);
    }

    #[test]
    fn sys_admin_stands_in_for_what_was_split_from_it() {
        let points = points(&[Capability::CAP_SYS_ADMIN].into());
        let missing: Vec<_> = points
            .iter()
            .filter(|point| point.state != State::Ok)
            .map(|point| &point.subject[..])
            .collect();
        assert_eq!(missing, ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]);
    }
}
