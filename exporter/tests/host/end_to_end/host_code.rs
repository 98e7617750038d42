//! The function of a program's own code between launches is named, and nothing samples the code before and after.

use super::chains::chain_of;
use super::python::Python;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::{until, within};
use gpucause_fixture::workload::{Workload, libraries};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/end_to_end/host_code.py");
/// From the end of the work to the end of its chain.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Runs of the program that samples.
fn samples(exporter: &Exporter) -> u64 {
    exporter.samples().count("gpucause_probe_hits_total", &[("probe", "sample")])
}

#[test]
fn the_function_that_computes_between_launches_is_named_and_sampled_only_meanwhile() {
    let exporter = Exporter::start(&["--metrics.level=full"]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    let library = libraries().join("libcudart.so.12");
    exporter.until_attached(&library);
    assert_eq!(samples(&exporter), 0, "nothing is sampled without a chain");
    let python =
        Command::new("/usr/bin/python3").arg(SCRIPT).arg(&library).stdin(Stdio::piped()).spawn();
    let mut python = Python(python.expect("python3 is installed"));
    let pid = python.0.id().to_string();
    let chain = until("a chain with functions", || {
        chain_of(&exporter, &pid, "host_code").filter(|own| own["code"].is_array())
    });
    let most = &chain["code"][0];
    assert_eq!((&most["function"], &most["file"]), (&"load".into(), &SCRIPT.into()), "{chain}");
    assert!(most["share"].as_f64().unwrap() >= 0.8, "{chain}");
    let script = std::fs::read_to_string(SCRIPT).unwrap();
    let line = script.lines().nth(most["line"].as_u64().unwrap() as usize - 1).unwrap();
    assert!(line.contains("while time.perf_counter()") || line.contains("% 1_000_003"), "{line}");
    let sentence = chain["sentence"].as_str().unwrap();
    assert!(sentence.contains(" % in host_code.py:"), "{sentence}");
    assert!(sentence.contains(" (load)"), "{sentence}");
    // It goes on for as long as it is of use.
    writeln!(python.0.stdin.as_mut().unwrap()).unwrap();
    within(ENDS_WITHIN, "the end of sampling", || {
        let before = samples(&exporter);
        std::thread::sleep(Duration::from_secs(1));
        (samples(&exporter) == before && before > 0).then_some(())
    });
    let page = exporter.samples();
    let labels = [("probe", "sample")];
    let cost = page.sum("gpucause_probe_cost_seconds_total", &labels);
    let runs = page.sum("gpucause_probe_hits_total", &labels);
    assert!(cost < runs * 40e-6, "{cost} s for {runs} runs");
}
