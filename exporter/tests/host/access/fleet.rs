//! `gpucause explain`, `query` and `export` over several nodes; one of them refuses the login.

use std::path::Path;
use std::process::{Command, Output};

use gpucause_fixture::server::{Running, serve};
use serde_json::Value;

use super::pairs::Folder;
use super::passwords::users;

pub(crate) const PASSWORD: &str = "p:w %41";

struct Fleet {
    folder: Folder,
    good: Running,
    /// Knows another password.
    strange: Running,
}

impl Fleet {
    fn new() -> Self {
        let folder = Folder::new();
        let good = serve(&folder.configure(&[], &users(4, &[("alice", PASSWORD)])));
        let tls = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
        folder.write("strange.yml", &format!("{tls}{}", users(4, &[("alice", "another")])));
        let strange = serve(&folder.path("strange.yml"));
        Self { folder, good, strange }
    }

    fn url(server: &Running) -> String {
        format!("https://alice@localhost:{}", server.address.port())
    }

    fn both(&self) -> String {
        format!("{},{}", Self::url(&self.good), Self::url(&self.strange))
    }

    /// Exit code, standard output, standard error.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, Vec<u8>, String) {
        let ca = self.folder.path("ca.crt");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(arguments).arg("--ca-file").arg(ca);
        command.env("GPUCAUSE_PASSWORD", PASSWORD).env("NO_COLOR", "1");
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert!(!said.contains(PASSWORD), "{said}");
        (status.code(), stdout, said)
    }
}

#[test]
fn a_node_that_is_named_twice_is_asked_once() {
    let fleet = Fleet::new();
    let good = Fleet::url(&fleet.good);
    let twice = format!("{good},{good}");
    let sql = "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM chains)";
    let (code, rows, said) = fleet.run(&["query", "--nodes", &twice, "--format=csv", sql]);
    assert_eq!(code, Some(0), "{said}");
    let rows = String::from_utf8(rows).unwrap();
    assert_eq!(rows.lines().nth(1), Some("1,1"), "{rows}");
}

#[test]
fn nodes_are_asked_in_sql_and_one_that_fails_is_in_the_answer_and_the_exit_code() {
    let fleet = Fleet::new();
    let (good, both) = (Fleet::url(&fleet.good), fleet.both());
    let sql = "SELECT name, cause, victim_pid, taken_seconds >= lost_seconds FROM chains JOIN nodes ON nodes.id = node";
    let (code, rows, said) = fleet.run(&["query", "--nodes", &good, "--format=csv", sql]);
    assert_eq!((code, &*said), (Some(0), ""), "{said}");
    let rows = String::from_utf8(rows).unwrap();
    let lines: Vec<_> = rows.lines().collect();
    assert!(lines[0].starts_with("name,cause,victim_pid,") && lines.len() == 2, "{rows}");
    assert!(lines[1].ends_with(",1"), "a cause takes at least what is lost to it: {rows}");

    let sql = "SELECT (SELECT count(*) FROM chains), (SELECT count(*) FROM nodes), \
               (SELECT count(*) > 0 FROM process_details WHERE name = 'rank' AND value = '3'), \
               (SELECT sum(count) > 5 FROM call_totals), \
               (SELECT value = 'GPU-a,MIG-b' FROM process_details JOIN processes ON processes.id = process \
                WHERE name = 'gpu_uuids' AND comm = 'train'), \
               (SELECT reason FROM failures)";
    let (code, answer, said) = fleet.run(&["query", "--nodes", &both, "--format=json", sql]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 of 2 nodes did not answer"), "{said}");
    let strange = fleet.strange.address.port().to_string();
    assert!(said.contains(&strange) && said.contains("login refused"), "{said}");
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let row = answer["rows"][0].as_array().unwrap();
    assert_eq!(row[..5], [1, 1, 1, 1, 1].map(Value::from), "{answer}");
    assert!(row[5].as_str().unwrap().contains("login refused"), "{answer}");
    let failure = &answer["failures"][0];
    assert!(failure["url"].as_str().unwrap().ends_with(&strange), "{answer}");

    let writes = ["query", "--nodes", &good, "DELETE FROM chains"];
    let (code, _, said) = fleet.run(&writes);
    assert_eq!(code, Some(1));
    assert!(said.contains("refused"), "{said}");
    let lost = format!("https://localhost:{strange}");
    let (code, rows, said) = fleet.run(&["query", "--nodes", &lost, "SELECT 1"]);
    assert_eq!((code, rows.len()), (Some(1), 0), "{said}");
    assert!(said.contains("none of 1 nodes answered"), "{said}");
}

#[test]
fn nodes_of_a_list_and_of_a_file_are_explained_with_those_that_fail() {
    let fleet = Fleet::new();
    let both = fleet.both();
    fleet.folder.write("nodes.yaml", &format!("nodes: [{}]\n", both.replace(',', ", ")));
    let file = fleet.folder.path("nodes.yaml");
    let strange = fleet.strange.address.port().to_string();
    for source in [["--nodes", &both], ["--nodes-file", file.to_str().unwrap()]] {
        let explain = [&["explain", "--since=1000000h"], &source[..]].concat();
        let (code, report, said) = fleet.run(&explain);
        assert_eq!(code, Some(0), "a chain was found: {said}");
        let report = String::from_utf8(report).unwrap();
        assert!(report.starts_with("1 of 2 nodes answered\nNO ANSWER  "), "{report}");
        assert!(report.contains(&strange) && report.contains("\nROOT CAUSE\n"), "{report}");
    }
}

/// Bytes of the Parquet files below a folder.
fn parquet_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let bytes = entries.map(|path| match path.extension() {
        _ if path.is_dir() => parquet_bytes(&path),
        Some(kind) if kind == "parquet" => path.metadata().unwrap().len(),
        _ => 0,
    });
    bytes.sum()
}

#[test]
fn chains_of_nodes_are_exported_and_a_failed_node_sets_the_exit_code() {
    let fleet = Fleet::new();
    let both = fleet.both();
    let output = fleet.folder.path("lake");
    let into = output.to_str().unwrap();
    let (code, _, said) = fleet.run(&["export", "--nodes", &both, "--format=parquet", "-o", into]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 of 2 nodes did not answer"), "{said}");
    assert!(said.contains("0 events and 1 causal chain"), "{said}");
    assert!(parquet_bytes(&output.join("chains")) > 100);

    let output = fleet.folder.path("fleet.pftrace");
    let good = Fleet::url(&fleet.good);
    let into = output.to_str().unwrap();
    let (code, _, said) = fleet.run(&["export", "--nodes", &good, "--format=perfetto", "-o", into]);
    assert_eq!(code, Some(0), "{said}");
    assert!(std::fs::metadata(&output).unwrap().len() > 100);
}
