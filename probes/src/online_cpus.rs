//! The online CPUs.

use std::fs;
use std::io;

/// The kernel's list.
pub(crate) const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Above the limit of any Linux build.
const MAX_CPU: u32 = 65_536;

/// The CPUs that are online now.
pub(crate) fn online_cpus() -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(ONLINE)?;
    parse(list.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, list))
}

/// Parses a list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_cpus_are_listed() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
    }

    #[test]
    fn anything_else_is_refused() {
        for list in ["", "a", "1-", "0-4000000000", "0,,1"] {
            assert_eq!(parse(list), None, "{list}");
        }
    }

    #[test]
    fn this_machine_has_a_cpu() {
        assert!(!online_cpus().unwrap().is_empty());
    }
}
