//! The page's disks, memory and CPU quota agree with the workload's own truth and the control group's.

use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};

use super::cgroup::Cgroup;

/// A tenth of a CPU for all processes in it.
fn with_a_tenth_of_a_cpu() -> Cgroup {
    let own = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "10000")];
    Cgroup::limited("cpu", &own, &[("cpu.max", "10000 100000")]).unwrap()
}

/// For how long the processes in it were held back, as the kernel says.
fn throttled_seconds(cgroup: &Cgroup) -> f64 {
    let stat = std::fs::read_to_string(cgroup.path().join("cpu.stat")).unwrap();
    let number = |name: &str, per_second: f64| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().parse::<f64>().unwrap() / per_second)
    };
    number("throttled_time ", 1e9).or_else(|| number("throttled_usec ", 1e6)).unwrap()
}

#[test]
fn the_page_tells_what_a_process_asked_of_the_host_and_for_how_long_it_was_held_back() {
    let exporter = Exporter::start(&[]);
    let cgroup = with_a_tenth_of_a_cpu();
    let mut workload = Workload::start(&["host", "--read=1048576", "--touch=4194304", "--spin=3s"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    let pid = workload.pid();
    cgroup.add(pid.parse().unwrap()).unwrap();
    workload.go();
    let labels = [("pid", pid.as_str())];
    let throttled = "gpucause_cgroup_throttled_seconds_total";
    // The first scrape that knows the process tells zero.
    until("the first scrape of the process", || {
        exporter.samples().has(throttled, &labels).then_some(())
    });
    let before = throttled_seconds(&cgroup);
    let fetched = workload.truth()["fetched_bytes"].as_u64().unwrap();
    let page = exporter.samples();
    let (exported, truth) = (page.sum(throttled, &labels), throttled_seconds(&cgroup) - before);
    assert!(truth > 0.5 && exported <= throttled_seconds(&cgroup), "{exported} s of {truth} s");
    assert!((exported - truth).abs() < 0.3, "{exported} s exported, {truth} s throttled");
    assert!(page.sum("gpucause_cgroup_throttled_periods_total", &labels) >= 5.0);
    let read = [("pid", pid.as_str()), ("io_direction", "read")];
    assert!(fetched >= 1_048_576);
    assert_eq!(page.count("gpucause_block_io_bytes_total", &read), fetched);
    assert!(page.sum("gpucause_block_io_seconds_total", &read) > 0.0);
    assert!(page.count("gpucause_page_alloc_bytes_total", &labels) >= 4_194_304);
    let minor = [("pid", pid.as_str()), ("fault_type", "minor")];
    assert!(page.count("gpucause_page_faults_total", &minor) >= 1_024);
    for zero in ["oom_kills", "tcp_retransmits", "direct_reclaim_seconds"] {
        let name = format!("gpucause_{zero}_total");
        assert!(page.has(&name, &labels) && page.sum(&name, &labels) == 0.0, "{name}");
    }
}
