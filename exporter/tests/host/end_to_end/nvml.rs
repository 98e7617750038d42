//! The NVIDIA driver beside the daemon, played by the stand-in library: well, in parts, silent, and absent.

use super::upstream::{Answer, Upstream};
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::samples::Samples;
use gpucause_fixture::workload::{Workload, libraries};
use serde_json::Value;
use std::time::{Duration, Instant};

const VARIABLE: &str = "GPUCAUSE_FAKE_NVML";
const UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
/// Longer than a scrape takes, and far shorter than a driver may.
const PROMPT: Duration = Duration::from_secs(2);

fn exporter(arguments: &[&str], script: &str) -> Exporter {
    let library = libraries().join("libnvidia-ml.so.1");
    let library = format!("--nvml.library={}", library.display());
    Exporter::start_with(&[arguments, &[&library]].concat(), &[(VARIABLE, script)])
}

fn uuid(kind: &str, gpu: u32, part: u32) -> String {
    match kind {
        "GPU" => format!("GPU-00000000-0000-4000-8000-{gpu:012}"),
        _ => format!("MIG-00000000-0000-4000-8000-{gpu:06}{part:06}"),
    }
}

fn verdict(page: &Samples) -> String {
    let probes = page.of("gpucause_probe_status", &[("probe", "nvml")]);
    probes.first().map_or("", |probe| probe.label("verdict")).to_owned()
}

#[test]
fn each_gpu_tells_what_it_can_and_processes_have_the_uuids_of_theirs() {
    let mut workload = Workload::start(&["calls", "--calls=10"]);
    let pid = workload.pid();
    let script = format!(
        "gpus=4;util=97,40,0;unsupported=,power_mw+util;lost=0,0,1,0;mig=0,0,0,1;xid=0,79,0;throttle=4;\
         processes={pid}:1,,,1:1+{pid}:1"
    );
    let exporter = exporter(&[], &script);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    workload.work();
    let gpus_of_process = |page: &Samples| -> Vec<String> {
        let series = page.of("gpucause_process_gpu_info", &[("pid", &pid)]);
        series.iter().map(|gpu| gpu.label("UUID").to_owned()).collect()
    };
    let gpus = [uuid("GPU", 0, 0), uuid("MIG", 3, 1)];
    let page = until("the GPUs of the process", || {
        let page = exporter.samples();
        (gpus_of_process(&page) == gpus).then_some(page)
    });
    assert_eq!(verdict(&page), "ok");
    let of = |name: &str, gpu: u32| -> Vec<f64> {
        let found = page.of(&format!("DCGM_FI_DEV_{name}"), &[("UUID", &uuid("GPU", gpu, 0))]);
        found.iter().map(|sample| sample.value).collect()
    };
    for (name, value) in [
        ("GPU_UTIL", 97.0),
        ("MEM_COPY_UTIL", 40.0),
        ("SM_CLOCK", 1_755.0),
        ("MEM_CLOCK", 2_619.0),
        ("GPU_TEMP", 54.0),
        ("MEMORY_TEMP", 61.0),
        ("POWER_USAGE", 412.0),
        ("TOTAL_ENERGY_CONSUMPTION", 1e6),
        ("FB_FREE", 65_024.0),
        ("FB_USED", 16_384.0),
        ("FB_RESERVED", 512.0),
        ("XID_ERRORS", 0.0),
        ("PCIE_REPLAY_COUNTER", 3.0),
        ("CLOCK_THROTTLE_REASONS", 4.0),
        ("ECC_SBE_VOL_TOTAL", 5.0),
        ("ECC_DBE_VOL_TOTAL", 0.0),
    ] {
        assert_eq!(of(name, 0), [value], "{name}");
    }
    // A reading that fails on one GPU is missing for that GPU, and no other reading is.
    assert_eq!((of("POWER_USAGE", 1), of("GPU_UTIL", 1)), (vec![], vec![]));
    assert_eq!((of("GPU_TEMP", 1), of("XID_ERRORS", 1)), (vec![54.0], vec![79.0]));
    assert_eq!((of("GPU_TEMP", 2), of("GPU_TEMP", 3)), (vec![], vec![54.0]));
    assert_eq!(of("FB_USED", 3).len(), 2);
    let part = [("GPU_I_ID", "8"), ("GPU_I_PROFILE", "1g.10gb"), ("gpu", "3")];
    assert!(page.has("DCGM_FI_DEV_FB_USED", &part));
    let whole = [
        ("gpu", "0"),
        ("pci_bus_id", "00000000:01:00.0"),
        ("device", "nvidia0"),
        ("modelName", "NVIDIA Stand-in 80GB"),
        ("DCGM_FI_DRIVER_VERSION", "575.57.08"),
    ];
    assert!(!page.of(UTIL, &whole)[0].label("Hostname").is_empty());

    workload.end();
    let ended = until("the end of the process", || {
        let page = exporter.samples();
        (page.sum("gpucause_processes_observed", &[]) == 0.0).then_some(page)
    });
    assert!(ended.has("gpucause_process_info", &[("pid", &pid)]));
    assert_eq!(gpus_of_process(&ended), gpus);
}

#[test]
fn a_driver_that_hangs_delays_no_scrape_and_is_reported() {
    let sign = tempfile::tempdir().unwrap();
    let sign = sign.path().join("hang");
    let exporter = exporter(&[], &format!("hang={}", sign.display()));
    until("the driver's metrics", || exporter.samples().has(UTIL, &[]).then_some(()));
    std::fs::write(&sign, "").unwrap();
    let silent = until("the end of what is too old", || {
        let begin = Instant::now();
        let page = exporter.samples();
        assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
        (!page.has(UTIL, &[])).then_some(page)
    });
    assert_eq!(verdict(&silent), "silent");
    assert!(!silent.has("gpucause_nvml_sample_age_seconds", &[]));
    assert_eq!(exporter.log().matches("the NVIDIA driver does not answer").count(), 1);
    std::fs::remove_file(&sign).unwrap();
    let again = until("the driver's metrics again", || {
        let page = exporter.samples();
        page.has(UTIL, &[]).then_some(page)
    });
    assert_eq!(verdict(&again), "ok");
}

#[test]
fn without_a_driver_its_metrics_are_absent_and_nothing_else_is() {
    let exporter = Exporter::start(&["--nvml.library=/no/such/libnvidia-ml.so.1"]);
    let page = until("a verdict", || {
        let page = exporter.samples();
        (verdict(&page) != "untried").then_some(page)
    });
    assert_eq!(verdict(&page), "unsupported");
    assert!(!page.has(UTIL, &[]) && page.has("gpucause_build_info", &[]));
    let off = Exporter::start(&["--nvml.off"]).samples();
    assert_eq!(verdict(&off), "");
}

#[test]
fn beside_an_upstream_the_driver_tells_of_processes_only() {
    let page = b"DCGM_FI_DEV_GPU_TEMP{UUID=\"GPU-upstream\"} 50\n";
    let upstream = Upstream::start(Answer::Page(page.into()));
    let exporter = exporter(&["--dcgm.url", &upstream.url()], "gpus=2");
    let page = until("both", || {
        let page = exporter.samples();
        (verdict(&page) == "ok" && page.has("DCGM_FI_DEV_GPU_TEMP", &[])).then_some(page)
    });
    let uuids: Vec<_> =
        page.of("DCGM_FI_DEV_GPU_TEMP", &[]).iter().map(|s| s.label("UUID")).collect();
    assert_eq!(uuids, ["GPU-upstream"]);
    assert!(!page.has(UTIL, &[]));
}

/// Two daemons observe one program whose GPU becomes slow. One daemon's driver reports that both GPUs are throttled, the other's
/// that only one is.
#[test]
fn a_chain_names_clock_throttling_only_if_every_gpu_is_throttled() {
    let chains = |exporter: &Exporter| {
        let response = exporter.chains();
        serde_json::from_slice::<Value>(&response.body).unwrap()["data"]["chains"].clone()
    };
    let throttling = |exporter: &Exporter| {
        let found = chains(exporter);
        let mut found = found.as_array().unwrap().iter();
        found.find(|chain| chain["cause"] == "clock_throttling").cloned()
    };
    // Each makes the program's calls slower for the other one: on a slow CPU it would be observed in part.
    let limit = "--probe.counting-limit=50%";
    let all = exporter(&[limit], "gpus=2;throttle=68");
    let some = exporter(&[limit], "gpus=2;throttle=68,1");
    let mut workload = Workload::start(&[
        "scenario",
        "throttled-gpu",
        "--strength=0.7",
        "--undisturbed",
        "--baseline=11",
        "--seconds=9",
    ]);
    for exporter in [&all, &some] {
        exporter.until_attached(&libraries().join("libcudart.so.12"));
    }
    workload.go();
    let chain = until("the chain", || throttling(&all));
    assert_eq!(chain["victim"]["pid"].to_string(), workload.pid());
    assert_eq!((&chain["effect"], &chain["culprit"]), (&"launch_rate_drop".into(), &Value::Null));
    assert!(chain["explained"].as_f64().unwrap() > 0.9, "{chain}");
    assert!(chain["path"][0]["from"].as_str().unwrap().starts_with("GPU-"), "{chain}");
    // Both evaluate every 1.5 seconds: by then the other one has evaluated as well.
    let seen = Instant::now();
    until("evaluations of the other daemon", || {
        (seen.elapsed() > Duration::from_secs(4)).then_some(())
    });
    assert_eq!(throttling(&some), None, "{}", chains(&some));
}
