//! Search for another daemon that observes this host.

use libbpf_rs::query::ProgInfoIter;

/// Programs for calls by the names that the kernel keeps: each daemon loads one of them.
const CALL_PROGRAMS: [&str; 3] = ["call_session", "call_enter_mult", "call_enter_perf"];

/// Returns true if another observer has its programs on this host, as far as this process may know. Call it before the own programs are loaded.
#[must_use]
pub fn is_observed_by_another() -> bool {
    let is_call = |name: &str| CALL_PROGRAMS.contains(&name);
    ProgInfoIter::default().any(|program| program.name.to_str().is_some_and(is_call))
}
