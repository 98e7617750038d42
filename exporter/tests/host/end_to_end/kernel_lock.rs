//! A lock of the kernel is no lack of memory and no disk: the thread that has it is named.

use super::chains::chain_of;
use super::waiter::{check_seconds, observed, started};
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::Workload;
use serde_json::Value;

const HOLDER: &str = "kernel-holder";

/// A chain of such a lock has this kind, and a thread of the program or, without its ID, another process.
fn is_of(exporter: &Exporter, pid: &str, chain: &Value, (kind, lock): (&str, &str)) {
    let culprit = &chain["culprit"];
    assert_eq!(culprit["comm"], HOLDER, "{kind}: {chain}");
    let is_own = culprit["pid"].as_u64() == pid.parse().ok();
    assert_eq!(culprit["tid"].is_u64(), is_own, "{kind}: {chain}");
    let sentence = chain["sentence"].as_str().unwrap();
    assert!(sentence.contains(lock), "{kind}: {sentence}");
    for other in ["page_fault", "block_io"] {
        assert!(chain_of(exporter, pid, other).is_none(), "{kind}: {other}");
    }
}

/// A program that waits for a lock of this kind.
fn waiting(kind: &str) -> Workload {
    let block = format!("--kind={kind}");
    let mut workload =
        Workload::start(&["block", &block, "--between-calls", "--each=5ms", "--count=10000"]);
    workload.go();
    workload
}

#[test]
fn a_thread_that_waits_for_a_lock_of_the_kernel_has_its_kind_and_its_holder() {
    let exporter = Exporter::start(&[]);
    let kinds = [
        ("kernel_mappings", "mmap_lock"),
        ("kernel_faults", "mmap_lock"),
        ("kernel_files", "a file or folder"),
    ];
    let programs = kinds.map(|(kind, _)| waiting(kind));
    for (program, expected) in programs.iter().zip(kinds) {
        let pid = program.pid();
        let chain = until("a chain of the lock", || chain_of(&exporter, &pid, "kernel_lock"));
        assert!(chain["culprit"]["tid"].is_u64(), "{expected:?}: {chain}");
        is_of(&exporter, &pid, &chain, expected);
    }
}

/// Programs that wait for these locks, with nearly all of what they lost.
fn are_named(together: &[(&str, &str)]) {
    let (exporter, _keeper) = observed();
    let kinds: Vec<_> = together.iter().map(|(kind, _)| *kind).collect();
    let mut waiters = started(&exporter, "kernel_lock.py", &kinds);
    for (waiter, &expected) in waiters.iter().zip(together) {
        let chain = waiter.expect(&exporter, "kernel_lock", HOLDER);
        is_of(&exporter, &waiter.pid, &chain, expected);
    }
    check_seconds(&exporter, &mut waiters, &vec!["kernel_lock"; together.len()]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn a_system_call_that_waits_for_the_address_space_names_the_thread_or_the_process_that_has_it() {
    are_named(&[("populated", "mmap_lock")]);
    are_named(&[("watched", "mmap_lock")]);
}

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn who_has_a_folder_or_renames_in_a_file_system_is_named_though_it_waits_itself() {
    are_named(&[
        ("unlink", "a file or folder"),
        ("look-up", "a file or folder"),
        ("rename", "renames"),
    ]);
}
