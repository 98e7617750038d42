//! Start and end, of the exporter and of the processes that it observes.

use super::kernel_objects::KernelObjects;
use gpucause_fixture::exporter::Exporter;
use gpucause_fixture::http_client;
use gpucause_fixture::poll::until;
use gpucause_fixture::workload::{Workload, libraries};
use nix::sys::signal::Signal;

const COUNT: &str = "gpucause_cuda_call_duration_seconds_count";

#[test]
fn a_signal_ends_the_exporter_and_leaves_no_program_map_or_link() {
    for (signal, format) in [(Signal::SIGTERM, "logfmt"), (Signal::SIGINT, "json")] {
        let exporter = Exporter::start(&["--log.format", format]);
        let mut workload = Workload::start(&["calls", "--calls=1000", "--threads=2"]);
        exporter.until_attached(&libraries().join("libcudart.so.12"));
        workload.work();
        let objects = KernelObjects::of_process(exporter.pid());
        // The host's programs and those of calls, their maps, and a link each for host programs and the library.
        assert!(objects.programs.len() >= 6 && objects.links.len() >= 6, "{objects:?}");
        assert!(objects.maps.len() >= 8, "{objects:?}");
        assert_eq!(objects.left(), objects);
        exporter.signal(signal);
        assert_eq!(exporter.ended().code(), Some(0), "{signal}");
        until("the kernel's last use of them", || {
            (objects.left() == KernelObjects::default()).then_some(())
        });
        workload.end();
    }
}

#[test]
fn a_workload_does_not_notice_that_the_exporter_comes_and_goes() {
    let mut workload = Workload::start(&[
        "rate",
        "--per-second=20000",
        "--seconds=10",
        "--threads=2",
        "--mix=cudaLaunchKernel=3,cudaStreamSynchronize=1",
        "--script=cudaStreamSynchronize:sleep=100us",
    ]);
    workload.go();
    for _ in 0..2 {
        let exporter = Exporter::start(&[]);
        let pid = workload.pid();
        until("some of its calls", || {
            (exporter.samples().count(COUNT, &[("pid", &pid)]) > 500).then_some(())
        });
        exporter.signal(Signal::SIGTERM);
        assert_eq!(exporter.ended().code(), Some(0));
    }
    let truth = workload.truth();
    assert_eq!(truth["errors"], serde_json::json!({}));
    workload.end();
}

/// Returns true if every launcher sleeps in a system call, other than one that waits for standard input or another thread.
fn all_hang(pid: &str, launchers: usize) -> bool {
    let waits = [nix::libc::SYS_futex, nix::libc::SYS_read].map(|number| number.to_string());
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map_while(Result::ok);
    let hanging = tasks.filter(|task| {
        let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        let number = call.split_whitespace().next().unwrap_or("running");
        number != "running" && !waits.contains(&number.to_owned())
    });
    hanging.count() == launchers
}

#[test]
fn a_process_killed_in_the_midst_of_calls_leaves_no_duration() {
    const THREADS: usize = 8;
    let exporter = Exporter::start(&[]);
    let mut killed = Vec::new();
    let _holder = Workload::start(&["idle"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    // Threads that exit at the same time, on all CPUs, in any order.
    for _ in 0..10 {
        let mut workload = Workload::start(&[
            "calls",
            "--calls=1",
            &format!("--threads={THREADS}"),
            "--op=cudaDeviceSynchronize",
            "--script=cudaDeviceSynchronize:hang",
        ]);
        let pid = workload.pid();
        workload.go();
        until("all threads in a call", || all_hang(&pid, THREADS).then_some(()));
        workload.kill();
        killed.push(pid);
    }
    let samples = exporter.samples();
    for pid in killed {
        let of_process = [("pid", pid.as_str())];
        let abandoned = samples.count("gpucause_calls_abandoned_total", &of_process);
        assert_eq!(abandoned, THREADS as u64, "calls that never returned");
        assert!(!samples.has(COUNT, &of_process));
        // Its accounts stay for the retention time.
        assert!(samples.has("gpucause_process_info", &of_process));
    }
    assert_eq!(http_client::get(exporter.address, "/-/healthy").status, 200);
}

#[test]
fn the_log_says_where_it_listens_and_what_it_attached_to() {
    let workload = Workload::start(&["idle"]);
    let exporter = Exporter::start(&["--log.level=debug"]);
    exporter.until_attached(&libraries().join("libcudart.so.12"));
    until("the word that it is ready", || exporter.log().contains("msg=ready").then_some(()));
    let log = exporter.log();
    assert!(log.contains("msg=listening") && log.contains("msg=attached"), "{log}");
    assert!(!log.contains("level=error") && !log.contains("panicked"), "{log}");
    drop(workload);
}
