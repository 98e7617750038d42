//! A replayed recording looks like the node did.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use gpucause_abi::hist::{Histogram, slot_of};
use gpucause_abi::op::op_of_symbol;
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::{CallSnapshot, Comm, ProcessSnapshot, Snapshot};
use gpucause_abi::{Nanos, ProcId, Tgid};
use gpucause_engine::EngineInput;
use gpucause_fixture::exporter::{Exporter, gpucause};
use gpucause_fixture::http_client;
use gpucause_fixture::poll::until;
use gpucause_trace::trace::{Start, Writer};
use nix::sys::signal::Signal;

const HANDLE: u64 = 0x1234;

fn comm(name: &[u8]) -> Comm {
    let mut raw = [0; COMM_LEN];
    raw[..name.len()].copy_from_slice(name);
    Comm(raw)
}

/// A process that has made so many launches of 10 us.
fn look(launches: u64, at_seconds: u64) -> EngineInput {
    let op = op_of_symbol("cudaLaunchKernel").unwrap();
    let slot = u16::try_from(slot_of(Nanos(10_000))).unwrap();
    let durations = Histogram {
        sum: Nanos(launches * 10_000),
        max: Nanos(10_000),
        slots: [(slot, launches)].into_iter().collect(),
    };
    let process = ProcessSnapshot {
        dispatches: true,
        calls: vec![CallSnapshot::unstalled(op, false, durations)],
        kernels: vec![(HANDLE, launches)],
        ..ProcessSnapshot::new(ProcId(3), Tgid(4242), comm(b"trainer"))
    };
    let taken_at = Nanos(at_seconds * 1_000_000_000);
    let snapshot = Snapshot { taken_at, processes: vec![process], ..Snapshot::default() };
    EngineInput::new(Arc::new(snapshot), 1_700_000_000.0 + at_seconds as f64)
}

fn record(path: &Path, looks: &[EngineInput]) {
    let start = Start {
        node: "gpu-1".into(),
        recorder: "a test".into(),
        started_ns: 1_700_000_000_000_000_000,
        ..Start::default()
    };
    let mut writer = Writer::create(path, &start).unwrap();
    let process = writer.process(ProcId(3), Tgid(4242), "trainer").unwrap();
    writer.describe_process(process, &[("container_id".into(), "c0ffee".into())]).unwrap();
    writer.name_kernel(process, HANDLE, "my_kernel(float*)").unwrap();
    for look in looks {
        writer.add_snapshot(look, &[]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_recording_is_served_as_the_node_served_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.db");
    record(&path, &[look(100, 50), look(250, 60), look(700, 70)]);
    let arguments = [
        "replay",
        "--web.listen-address=127.0.0.1:0",
        "--speed=20",
        "--metrics.level=full",
        "--db",
    ];
    let replay = Exporter::of(gpucause(&arguments).arg(&path));
    let launches = r#"gpucause_cuda_call_duration_seconds_count{pid="4242",comm="trainer",api="runtime",op="cudaLaunchKernel",cold="false"}"#;
    let mut seen = Vec::new();
    until("the last look", || {
        let page = http_client::get(replay.address, "/metrics");
        let line = page.text().lines().find_map(|line| line.strip_prefix(launches)).unwrap();
        let count: u64 = line.trim().parse().unwrap();
        if seen.last() != Some(&count) {
            seen.push(count);
        }
        (count == 700).then_some(())
    });
    assert!(seen.is_sorted() && seen.iter().all(|own| [100, 250, 700].contains(own)), "{seen:?}");
    let page = http_client::get(replay.address, "/metrics");
    for expected in [
        r#"container_id="c0ffee""#,
        r#"gpucause_kernel_launches_total{pid="4242",comm="trainer",kernel="my_kernel(float*)"} 700"#,
    ] {
        assert!(page.text().contains(expected), "{expected} is not in\n{}", page.text());
    }
}

#[test]
fn a_recording_of_before_a_change_of_names_is_served_with_the_new_ones() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../investigations/cases/dataloader.db");
    let arguments = [
        "replay",
        "--web.listen-address=127.0.0.1:0",
        "--speed=1000",
        "--metrics.level=full",
        "--db",
    ];
    let replay = Exporter::of(gpucause(&arguments).arg(&case));
    for (name, label) in [
        ("gpucause_launch_duration_seconds_count", ("launch_type", "kernel")),
        ("gpucause_memcpy_bytes_total", ("direction", "h2d")),
        ("gpucause_memcpy_duration_seconds_count", ("direction", "h2d")),
        ("gpucause_context_switches_total", ("switch_type", "voluntary")),
        ("gpucause_block_io_bytes_total", ("io_direction", "read")),
        ("gpucause_page_faults_total", ("fault_type", "minor")),
        ("gpucause_events_dropped_total", ("reason", "missed_switch_in")),
    ] {
        until(&format!("{name} by {label:?}"), || {
            (replay.samples().sum(name, &[label]) > 0.0).then_some(())
        });
    }
}

#[test]
fn a_restarted_server_has_another_token_that_local_tools_find() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.db");
    record(&path, &[look(1, 1), look(2, 2)]);
    let start = |address: SocketAddr| {
        let listen = format!("--web.listen-address={address}");
        Exporter::of(gpucause(&["replay", &listen, "--db"]).arg(&path))
    };
    let token_of = |server: &Exporter| std::fs::read_to_string(server.token_file()).unwrap();
    let explain = |server: &Exporter| {
        let url = format!("http://{}", server.address);
        let status = gpucause(&["explain", "--url", &url]).output().unwrap().status;
        assert!(matches!(status.code(), Some(0 | 2 | 3)), "{status}");
    };
    let first = start(([127, 0, 0, 1], 0).into());
    let (address, file, old) = (first.address, first.token_file(), token_of(&first));
    explain(&first);
    first.signal(Signal::SIGTERM);
    assert!(first.ended().success());
    assert!(!file.exists(), "the file goes with the server");
    for _ in 0..2 {
        // The first of both is killed, and leaves its file.
        let next = start(address);
        assert_ne!(token_of(&next), old);
        let header = format!("Authorization: Bearer {}\r\n", old.trim());
        let refused = http_client::request(address, "GET", "/api/v1/chains", &header);
        assert_eq!(refused.status, 401);
        explain(&next);
        next.chains();
    }
}

#[test]
fn without_a_token_file_a_password_is_printed_and_nobody_else_is_shown_chains() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.db");
    record(&path, &[look(1, 1), look(2, 2)]);
    let mut command = gpucause(&["replay", "--web.listen-address=127.0.0.1:0", "--db"]);
    let printed = tempfile::NamedTempFile::new().unwrap();
    command.arg(&path).env("RUNTIME_DIRECTORY", "/dev/null").stdout(printed.reopen().unwrap());
    let server = Exporter::of(&mut command);
    let log = server.log();
    assert!(log.contains("level=warn") && log.contains("make /dev/null writable"), "{log}");
    assert!(log.contains("--web.config.file") && log.contains("RuntimeDirectory="), "{log}");
    let refused = http_client::get(server.address, "/api/v1/chains");
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("password that this command printed"), "{}", refused.text());
    let printed = std::fs::read_to_string(printed.path()).unwrap();
    let password = printed.trim().rsplit(' ').next().unwrap();
    let header = format!("Authorization: Bearer {password}\r\n");
    let admitted = http_client::request(server.address, "GET", "/api/v1/chains", &header);
    assert_eq!(admitted.status, 200, "{printed}");
    assert_eq!(http_client::get(server.address, "/metrics").status, 200);
}

#[test]
fn a_replay_with_exit_ends_with_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.db");
    record(&path, &[look(1, 1), look(2, 2)]);
    let arguments =
        ["replay", "--web.listen-address=127.0.0.1:0", "--speed=1000", "--exit", "--db"];
    let status = gpucause(&arguments).arg(&path).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.db");
    record(&path, &[look(1, 1)]);
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database").unwrap();
    let file = path.to_str().unwrap();
    for (arguments, code, reason) in [
        (&["--db", "/nonexistent.db"][..], 1, "/nonexistent.db"),
        (&["--db", text.to_str().unwrap()], 1, "is not a trace"),
        (&["--db", file, "--node", "gpu-2"], 1, "gpu-1"),
        (&["--db", file, "--speed", "0"], 64, "expected a number from 0.01 to 1000"),
    ] {
        let output = gpucause(&["replay", "--web.listen-address=127.0.0.1:0"])
            .args(arguments)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}
