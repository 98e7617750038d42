//! Python's interpreter lock is a lock: the thread that keeps it is named.

use super::chains::chain_of;
use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use std::io::Write as _;
use std::process::{Command, Stdio};

const SCRIPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/interpreter_lock.py");
/// Launches of its process before another thread takes the interpreter: it is warm then.
const WARM: f64 = 40_000.0;

#[test]
fn a_thread_that_keeps_the_interpreter_of_python_is_named_for_the_lock() {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    let library = libraries().join("libcudart.so.12");
    exporter.until_attached(&library);
    let python = Command::new("/usr/bin/python3")
        .arg(SCRIPT)
        .arg(&library)
        .env("GPUCAUSE_FAKE", "cudaLaunchKernel:spin=200us")
        .stdin(Stdio::piped())
        .spawn();
    let mut python = Python(python.expect("python3 is installed"));
    let pid = python.0.id().to_string();
    until("launches", || {
        let launches = exporter.samples().sum("gpucause_launches_total", &[("pid", &pid)]);
        (launches > WARM).then_some(())
    });
    writeln!(python.0.stdin.as_mut().unwrap()).unwrap();
    let chain = until("a chain of the lock", || chain_of(&exporter, &pid, "lock_wait"));
    assert_eq!(chain["culprit"]["comm"], "gil-hog", "{chain}");
    assert!(chain["explained"].as_f64().unwrap() >= 0.5, "{chain}");
    let chain = until("the function of who keeps it", || {
        chain_of(&exporter, &pid, "lock_wait").filter(|own| own["code"].is_array())
    });
    let (most, share) = (&chain["code"][0], chain["code"][0]["share"].as_f64().unwrap());
    assert!(most["function"] == "hog" && most["file"] == SCRIPT && share >= 0.9, "{chain}");
}
