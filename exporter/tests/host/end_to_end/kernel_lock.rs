//! A lock of the kernel is no lack of memory and no disk: the thread that has it is named.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::Workload;

use super::chains::chain_of;

fn is_named(exporter: &Exporter, kind: &str, lock: &str) {
    let block = format!("--kind={kind}");
    let mut workload =
        Workload::start(&["block", &block, "--between-calls", "--each=5ms", "--count=10000"]);
    workload.go();
    let pid = workload.pid();
    let chain = until("a chain of the lock", || chain_of(exporter, &pid, "kernel_lock"));
    assert_eq!(chain["culprit"]["comm"], "kernel-holder", "{kind}: {chain}");
    assert!(chain["culprit"]["tid"].is_u64(), "{kind}: {chain}");
    let sentence = chain["sentence"].as_str().unwrap();
    assert!(sentence.contains(lock), "{kind}: {sentence}");
    for other in ["page_fault", "block_io"] {
        assert!(chain_of(exporter, &pid, other).is_none(), "{kind}: {other}");
    }
}

#[test]
fn a_thread_that_waits_for_a_lock_of_the_kernel_has_its_kind_and_its_holder() {
    let exporter = Exporter::start(&[]);
    is_named(&exporter, "kernel_mappings", "mmap_lock");
    is_named(&exporter, "kernel_faults", "mmap_lock");
    is_named(&exporter, "kernel_files", "a file or folder");
}
