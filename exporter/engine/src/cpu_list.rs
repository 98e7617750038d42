//! Lists of CPUs as the kernel writes them, such as `0-3,8`.

use std::collections::BTreeSet;

/// Bound on CPU numbers: more than any kernel supports.
const MAX_CPUS: u32 = 8192;

/// The CPUs of a list such as `0-3,8`; empty if invalid.
pub fn cpus(text: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        (from <= to && to < MAX_CPUS).then_some(from..=to)
    };
    let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
    ranges.into_iter().flatten().flatten().collect()
}

/// A list of CPUs such as `0-3,8`.
pub fn list(cpus: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |&(from, to): &(u32, u32)| {
        if from == to { from.to_string() } else { format!("{from}-{to}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_have_the_format_of_the_kernel() {
        for text in ["0", "0-3", "0-3,8", "1,3,5-6"] {
            assert_eq!(list(&cpus(text)), text);
        }
        for text in ["", "x", "3-1", "0-99999", "1,,2"] {
            assert!(cpus(text).is_empty(), "{text}");
        }
    }
}
