//! Causal chains as they leave the host: by the API, the metrics page, and `gpucause explain`.

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries, program};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// From the first launch to the chain: three evaluations until the process is warm, the one that detects it, and their run time.
const DETECTED_WITHIN: Duration = Duration::from_secs(10);
const CULPRIT: &str = "cpu-hog";

/// The chain of this process at the API, of this cause.
pub(crate) fn chain_of(exporter: &Exporter, pid: &str, cause: &str) -> Option<Value> {
    let response = exporter.chains();
    let answer: Value = serde_json::from_slice(&response.body).unwrap();
    let chains = answer["data"]["chains"].as_array().unwrap().clone();
    let is_it = |chain: &Value| {
        chain["victim"]["pid"].as_u64() == pid.parse().ok() && chain["cause"] == cause
    };
    chains.into_iter().find(is_it)
}

#[test]
fn a_process_that_takes_the_cpu_from_launches_is_named_everywhere_under_one_id() {
    let exporter = Exporter::start(&[]);
    let mut keeper = Workload::start(&["calls", "--calls=1"]);
    keeper.work();
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let mut workload = Workload::start(&[
        "contend",
        "--seconds=20",
        "--spin=100us",
        "--burners=3",
        "--burner-name",
        CULPRIT,
    ]);
    let pid = workload.pid();
    workload.go();
    let begin = Instant::now();
    let chain = until("a chain that names the culprit", || {
        let chain = chain_of(&exporter, &pid, "cpu_preemption")?;
        (chain["culprit"]["comm"] == CULPRIT).then_some(chain)
    });
    assert!(begin.elapsed() <= DETECTED_WITHIN, "{:?}: {chain}", begin.elapsed());
    let id = chain["id"].as_str().unwrap();
    assert!(chain["explained"].as_f64().unwrap() >= 0.5, "{chain}");
    assert!(chain["sentence"].as_str().unwrap().contains(CULPRIT), "{chain}");

    let labels = [("pid", &*pid), ("cause", "cpu_preemption")];
    let samples = exporter.samples();
    assert!(samples.count("gpucause_causal_chains_total", &labels) >= 1);
    let lost = samples.sum("gpucause_stall_seconds_total", &labels);
    assert!(lost >= chain["lost_seconds"].as_f64().unwrap() - 1e-6, "{lost} {chain}");

    let page = exporter.scrape("Accept: application/openmetrics-text;version=1.0.0\r\n");
    let exemplar = format!("# {{chain_id=\"{id}\"}}");
    for name in ["gpucause_causal_chains_total", "gpucause_stall_seconds_total"] {
        let has_exemplar = |line: &str| line.starts_with(name) && line.contains(&exemplar);
        assert!(page.text().lines().any(has_exemplar), "{name} has no exemplar {exemplar}");
    }

    let url = exporter.address.to_string();
    let explain =
        |more: &str| gpucause(&["explain", "--since=5m", more, "--url", &url]).output().unwrap();
    let report = explain("--json");
    assert!(report.status.success(), "{report:?}");
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let incident = &report["nodes"][0];
    let others = incident["others"].as_array().unwrap().iter();
    let reported = others.chain([&incident["root_cause"]]).find(|chain| chain["id"] == id);
    assert_eq!(reported.expect("the chain is in the report")["culprit"]["comm"], CULPRIT);
    let text = String::from_utf8(explain("--per-process").stdout).unwrap();
    assert!(text.contains(id) && text.contains(CULPRIT) && text.contains(&pid), "{text}");
    workload.kill();
}

/// A rank of two that never joins a communicator while it is observed.
fn rank(number: &str, collective: &str) -> Workload {
    let program = program();
    let script = format!("ncclAllReduce:{collective}");
    Workload::of(
        Path::new("env"),
        &[
            &format!("RANK={number}"),
            "WORLD_SIZE=2",
            program.to_str().unwrap(),
            "--libs",
            libraries().to_str().unwrap(),
            "--script",
            &script,
            "rate",
            "--seconds=30",
            "--per-second=100",
            "--mix=cudaLaunchKernel=1,ncclAllReduce=1",
        ],
    )
}

#[test]
fn a_late_rank_is_named_though_its_communicator_was_made_before_the_exporter_started() {
    let (mut in_time, mut late) = (rank("0", "poll=15ms"), rank("1", "spin=50us"));
    in_time.go();
    late.go();
    let exporter = Exporter::start(&[]);
    let chain = until("a chain that names the late rank", || {
        chain_of(&exporter, &in_time.pid(), "nccl_late_rank")
    });
    assert_eq!(chain["culprit"]["pid"].as_u64(), late.pid().parse().ok(), "{chain}");
    assert!(chain["sentence"].as_str().unwrap().starts_with("Rank 1, "), "{chain}");
    assert_eq!(chain_of(&exporter, &late.pid(), "nccl_late_rank"), None);
}
