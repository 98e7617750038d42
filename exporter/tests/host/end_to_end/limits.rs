//! Who uses up what the limit of a cgroup leaves.

use super::cgroup::Cgroup;
use super::chains::chain_of;
use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use std::io::Write as _;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/limits.py");
/// Launches of its process before its pool starts: it is warm then.
const WARM: f64 = 5_000.0;

#[test]
fn a_pool_of_threads_that_uses_up_the_cpu_limit_of_its_program_is_named() {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    let library = libraries().join("libcudart.so.12");
    exporter.until_attached(&library);
    // Half of a CPU.
    let limit =
        Cgroup::limited("cpu", &[("cpu.cfs_quota_us", "50000")], &[("cpu.max", "50000 100000")]);
    let limit = limit.unwrap();
    let python =
        Command::new("/usr/bin/python3").arg(SCRIPT).arg(&library).stdin(Stdio::piped()).spawn();
    let mut python = Python(python.expect("python3 is installed"));
    limit.add(python.0.id()).unwrap();
    let pid = python.0.id().to_string();
    until("launches", || {
        let launches = exporter.samples().sum("gpucause_launches_total", &[("pid", &pid)]);
        (launches > WARM).then_some(())
    });
    writeln!(python.0.stdin.as_mut().unwrap()).unwrap();
    let chain = until("a chain of the limit that names the pool", || {
        chain_of(&exporter, &pid, "noisy_cgroup").filter(|own| own["culprit"]["comm"] == "pool")
    });
    let sentence = chain["sentence"].as_str().unwrap();
    assert!(sentence.contains(" 3 threads pool of python3 "), "{chain}");
    assert!(chain["fix"].as_str().unwrap().contains("use fewer threads"), "{chain}");
}
