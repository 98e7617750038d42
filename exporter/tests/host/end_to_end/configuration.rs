//! The configuration file, edited while the exporter runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::http_client;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::signal::Signal;

use super::refusals::outcome;

const CALLS: &str = "gpucause_cuda_call_duration_seconds_count";
const GAPS: &str = "gpucause_launch_gap_seconds_count";
const SUCCESSFUL: &str = "gpucause_config_last_reload_successful";
const TAKEN_AT: &str = "gpucause_config_last_reload_success_timestamp_seconds";
/// Time within which an edit is in effect.
const PROMPT: Duration = Duration::from_secs(2);

const INCLUDE_ALL: &str = "processes:\n";
const EXCLUDE: &str = "processes: {exclude: [{comm: 'gpucause-workl.*'}]}\n";
/// Wrong in its second line.
const BAD: &str = "retention: 5m\nlimits: {wait_names: many, scrapes: 0}\n";

/// A file in a folder of its own, and an exporter that reads it.
struct Configured {
    dir: tempfile::TempDir,
    exporter: Exporter,
}

impl Configured {
    fn start(text: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        fs::write(&file, text).unwrap();
        let file = format!("--config.file={}", file.display());
        let exporter = Exporter::start(&[&[&*file], arguments].concat());
        Self { dir, exporter }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, text: &str) {
        fs::write(self.path("config.yaml"), text).unwrap();
    }

    fn successful(&self) -> bool {
        self.exporter.samples().count(SUCCESSFUL, &[]) == 1
    }

    /// Waits until the last edit was refused, and checks that the log says why.
    #[track_caller]
    fn until_refused(&self, reason: &str) {
        promptly("the refusal", || !self.successful());
        let log = self.exporter.log();
        assert!(log.contains("level=error") && log.contains(reason), "{reason}: {log}");
    }

    fn tells_of(&self, workload: &Workload) -> bool {
        self.exporter.samples().has(CALLS, &[("pid", &workload.pid())])
    }
}

#[track_caller]
fn promptly(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    until(what, || is_so().then_some(()));
    assert!(begin.elapsed() < PROMPT, "{what}: only after {:?}", begin.elapsed());
}

fn worked(exporter: &Exporter, arguments: &[&str]) -> Workload {
    let mut workload = Workload::start(arguments);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    workload.work();
    workload
}

#[test]
fn an_edit_takes_effect_promptly_however_the_file_is_replaced() {
    let configured = Configured::start(INCLUDE_ALL, &[]);
    let workload = worked(&configured.exporter, &["calls", "--calls=100"]);
    assert!(configured.tells_of(&workload));

    configured.write(EXCLUDE);
    promptly("the exclusion by a write", || !configured.tells_of(&workload));
    let samples = configured.exporter.samples();
    assert!(samples.count("gpucause_processes_excluded", &[]) >= 1);
    let pid = workload.pid();
    let of_it = samples.series().into_iter().filter(|(_, labels)| labels.get("pid") == Some(&pid));
    assert_eq!(of_it.count(), 0);

    fs::write(configured.path(".config.yaml.swp"), INCLUDE_ALL).unwrap();
    fs::rename(configured.path(".config.yaml.swp"), configured.path("config.yaml")).unwrap();
    promptly("the inclusion by a rename", || configured.tells_of(&workload));
    let samples = configured.exporter.samples();
    assert_eq!(samples.count(CALLS, &[("pid", &pid)]), 100, "its accounts went on");

    // The kubelet updates a ConfigMap like this: the file links to a second link, and only the second one is replaced.
    for (version, text) in [("..1", INCLUDE_ALL), ("..2", EXCLUDE)] {
        fs::create_dir(configured.path(version)).unwrap();
        fs::write(configured.path(version).join("config.yaml"), text).unwrap();
    }
    symlink("..1", configured.path("..data")).unwrap();
    symlink("..data/config.yaml", configured.path("link")).unwrap();
    fs::rename(configured.path("link"), configured.path("config.yaml")).unwrap();
    symlink("..2", configured.path("..data_tmp")).unwrap();
    fs::rename(configured.path("..data_tmp"), configured.path("..data")).unwrap();
    promptly("the exclusion by another link", || !configured.tells_of(&workload));
    assert!(configured.successful());
}

#[test]
fn kernels_of_an_excluded_process_are_timed_only_once_it_is_included() {
    let configured = Configured::start(EXCLUDE, &[]);
    let timed = || {
        let samples = configured.exporter.samples();
        samples.count("gpucause_map_entries", &[("map", "kernel_hists")])
    };
    let arguments = ["rate", "--per-second=1000", "--seconds=3", "--kernels=8"];
    let _workload = worked(&configured.exporter, &arguments);
    assert_eq!(timed(), 0);
    configured.write(INCLUDE_ALL);
    promptly("times of its kernels", || timed() == 8);
}

#[test]
fn a_bad_edit_keeps_the_running_configuration_and_is_reported() {
    let configured = Configured::start(EXCLUDE, &[]);
    let workload = worked(&configured.exporter, &["calls", "--calls=100"]);
    assert!(configured.successful() && !configured.tells_of(&workload));
    let taken_at = configured.exporter.samples().sum(TAKEN_AT, &[]);
    assert!(taken_at > 1_700_000_000.0, "{taken_at}");

    configured.write(BAD);
    configured.until_refused("config.yaml:2: limits.wait_names is \\\"many\\\", and must be");
    configured.until_refused("config.yaml:2: limits.scrapes is 0, and must be from 1 to 16");
    assert!(!configured.tells_of(&workload));
    assert_eq!(configured.exporter.samples().sum(TAKEN_AT, &[]), taken_at);
    let failures = configured.exporter.log().matches("configuration reload failed").count();
    assert_eq!(failures, 1, "once for each edit: {}", configured.exporter.log());

    configured.write(INCLUDE_ALL);
    promptly("the repair", || configured.successful());
    assert!(configured.tells_of(&workload));
    assert!(configured.exporter.samples().sum(TAKEN_AT, &[]) > taken_at);

    configured.write(EXCLUDE);
    promptly("the exclusion", || !configured.tells_of(&workload));
    fs::remove_file(configured.path("config.yaml")).unwrap();
    configured.until_refused("No such file");
    assert!(!configured.tells_of(&workload), "a file that vanishes changes nothing");
    configured.write(INCLUDE_ALL);
    promptly("its return", || configured.successful() && configured.tells_of(&workload));
}

#[test]
fn an_unknown_level_an_unknown_label_and_a_limit_of_0_keep_the_running_configuration() {
    let configured = Configured::start("metrics: {level: fleet}\n", &[]);
    let maps = || {
        let page = http_client::get(configured.exporter.address, "/metrics");
        page.text().matches("gpucause_map_entries{").count()
    };
    assert_eq!(maps(), 0, "the level fleet has no maps");
    for (text, reason) in [
        ("metrics: {level: all}", "and must be fleet, standard or full"),
        ("metrics: {level: full, group_by: [pod]}", "and must be comm, or gpu_uuid behind comm"),
        ("metrics: {level: full}\nlimits: {live_processes: 0}", "and must be from 1 to 8192"),
    ] {
        configured.write(text);
        configured.until_refused(reason);
        assert_eq!(maps(), 0, "{text}");
        configured.write("metrics: {level: fleet}\n");
        promptly("the repair", || configured.successful());
    }
    configured.write("metrics: {level: standard}\n");
    promptly("the other level", || maps() > 0);
}

#[test]
fn a_signal_reloads_and_a_request_does_where_that_is_enabled() {
    let configured = Configured::start(INCLUDE_ALL, &["--web.enable-lifecycle"]);
    let taken_at = || configured.exporter.samples().sum(TAKEN_AT, &[]);
    let before = taken_at();
    configured.exporter.signal(Signal::SIGHUP);
    promptly("the reload by SIGHUP", || taken_at() > before);

    let address = configured.exporter.address;
    let before = taken_at();
    let response = http_client::request(address, "POST", "/-/reload", "");
    assert_eq!(response.status, 200);
    assert!(taken_at() > before);
    configured.write(BAD);
    let response = http_client::request(address, "POST", "/-/reload", "");
    assert_eq!(response.status, 500);
    for key in ["limits.wait_names", "limits.scrapes"] {
        let expected = format!("config.yaml:2: {key} is ");
        assert!(response.text().contains(&expected), "{}", response.text());
    }
    assert_eq!(http_client::get(address, "/-/reload").status, 405);
}

#[test]
fn without_a_file_a_signal_is_survived_and_a_request_refused() {
    let exporter = Exporter::start(&[]);
    exporter.signal(Signal::SIGHUP);
    until("the word on it", || exporter.log().contains("--config.file").then_some(()));
    assert_eq!(exporter.samples().count(SUCCESSFUL, &[]), 1);
    let response = http_client::request(exporter.address, "POST", "/-/reload", "");
    assert_eq!(response.status, 403);
    assert!(response.text().contains("--web.enable-lifecycle"), "{}", response.text());
}

#[test]
fn the_ops_that_count_as_launches_change_while_calls_are_made() {
    let configured = Configured::start("", &[]);
    let pace = ["rate", "--per-second=2000", "--seconds=60", "--mix=cudaMemcpyAsync=1"];
    let mut workload = Workload::start(&pace);
    configured.exporter.until_attached(&libraries().join("libcudart.so.12"));
    workload.go();
    let pid = workload.pid();
    let count = |name| configured.exporter.samples().count(name, &[("pid", &pid)]);
    until("calls", || (count(CALLS) > 100).then_some(()));
    assert_eq!(count(GAPS), 0, "copies are no launches");
    configured.write("launch_ops: [cudaMemcpyAsync]\n");
    promptly("gaps between copies", || count(GAPS) > 100);
    configured.write("launch_ops: [cudaLaunchKernel]\n");
    promptly("the end of them", || {
        let before = count(GAPS);
        std::thread::sleep(Duration::from_millis(50));
        count(GAPS) == before
    });
    workload.kill();
}

#[test]
fn a_file_that_need_not_exist_is_taken_when_it_comes_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    let argument = format!("--config.file={}", file.display());
    let exporter = Exporter::start(&[&argument, "--config.optional"]);
    assert_eq!(exporter.samples().count(SUCCESSFUL, &[]), 1);
    fs::write(&file, BAD).unwrap();
    let successful = || exporter.samples().count(SUCCESSFUL, &[]) == 1;
    promptly("the new file", || !successful());
    fs::write(&file, INCLUDE_ALL).unwrap();
    promptly("its repair", successful);
}

fn check(file: &Path) -> (Option<i32>, String) {
    outcome(&mut gpucause(&[
        "check",
        "--web.listen-address=127.0.0.1:0",
        "--config",
        file.to_str().unwrap(),
    ]))
}

#[test]
fn the_check_of_the_host_tells_what_is_wrong_with_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), INCLUDE_ALL).unwrap();
    let (code, output) = check(file.path());
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("ok           configuration"), "{output}");
    fs::write(file.path(), BAD).unwrap();
    let (code, output) = check(file.path());
    assert_eq!(code, Some(78), "{output}");
    assert!(output.contains(":2: limits.wait_names"), "{output}");
}
