//! Capabilities of the process, and their purpose.

use super::{Line, State};

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

/// A line for each capability.
pub(super) fn report() -> Vec<Line> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    lines(effective(&status).unwrap_or(0))
}

fn effective(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn lines(effective: u64) -> Vec<Line> {
    let has = |capability: u32| effective & 1 << capability != 0;
    // CAP_SYS_ADMIN implies those that were split from it.
    let split = [38, 39, 40];
    NEEDED
        .iter()
        .map(|&(number, name, purpose, blocks)| {
            let granted = has(number) || (split.contains(&number) && has(CAP_SYS_ADMIN));
            let (state, detail) = if granted {
                (State::Ok, purpose.to_owned())
            } else {
                (
                    State::Missing,
                    format!("{purpose}; run as root, or grant it as the systemd unit does"),
                )
            };
            Line { state, subject: name.into(), detail, blocks }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_capabilities_lacks_them_all() {
        let lines = lines(effective("Name:\tx\nCapEff:\t0000000000000000\n").unwrap());
        assert!(lines.iter().all(|line| line.state == State::Missing));
        assert_eq!(lines.iter().filter(|line| line.blocks).count(), 2);
    }

    #[test]
    fn sys_admin_stands_in_for_what_was_split_from_it() {
        let lines = lines(1 << CAP_SYS_ADMIN);
        let missing: Vec<_> = lines
            .iter()
            .filter(|line| line.state == State::Missing)
            .map(|line| &line.subject[..])
            .collect();
        assert_eq!(missing, ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]);
    }
}
