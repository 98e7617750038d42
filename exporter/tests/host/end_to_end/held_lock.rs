//! A lock whose holder does not work meanwhile, but waits itself, is named first, with the thread that has it.

use super::waiter::{check_seconds, observed, started};
use gpucause_fixture::exporter::gpucause;
use serde_json::Value;
use std::fs;

const HOLDER: &str = "kv-transfer";
/// Least part of the waits that are the holder's.
const HOLDERS: f64 = 0.9;

/// Programs that wait for such locks have their holders.
fn are_named(kinds: &[&str]) {
    let (exporter, _keeper) = observed();
    let mut waiters = started(&exporter, "held_lock.py", kinds);
    for waiter in &waiters {
        let (kind, pid) = (&waiter.kind, &waiter.pid);
        let chain = waiter.expect(&exporter, "lock_wait", HOLDER);
        let tid = chain["culprit"]["tid"].as_u64().unwrap();
        let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap();
        assert_eq!(name.trim(), HOLDER, "{kind}: {chain}");
        let share = chain["evidence"]["holder_share"].as_f64().unwrap();
        assert!(share >= HOLDERS, "{kind}: {chain}");
        let url = exporter.address.to_string();
        let explain = gpucause(&["explain", "--json", "--pid", pid, "--url", &url]).output();
        let report: Value = serde_json::from_slice(&explain.unwrap().stdout).unwrap();
        let first = &report["nodes"][0]["root_cause"];
        assert_eq!(first["id"], chain["id"], "{kind}: {first}");
    }
    check_seconds(&exporter, &mut waiters, &vec!["lock_wait"; kinds.len()]);
}

#[test]
fn a_thread_that_waits_while_it_has_a_lock_is_named_whatever_the_lock() {
    are_named(&["interpreter sleeps", "mutex polls", "written sleeps", "read reads"]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_thread_that_waits_while_it_has_a_lock_is_named_whatever_it_waits_for() {
    are_named(&["interpreter polls", "interpreter reads"]);
    are_named(&["mutex sleeps", "mutex reads", "rewritten polls"]);
}
