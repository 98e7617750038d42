//! Outputs and exit codes of `explain`, `query` and `top`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::check::server;
use super::errors::streams;

const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../investigations/cases/lock.db");

fn explain(arguments: &[&str]) -> (Option<i32>, String) {
    let (code, stdout, stderr) = streams(&[&["explain", "--db", CASE], arguments].concat());
    (code, stdout + &stderr)
}

#[test]
fn a_report_is_printed_in_each_format() {
    let (text, md) = (explain(&[]).1, explain(&["--format=md"]).1);
    assert_eq!(explain(&["--format=text"]).1, text);
    assert!(text.contains("ROOT CAUSE") && md.contains("\n### Root cause\n"), "{md}");
    assert!(md.contains("lock\\_wait") && md.contains("| Fix | "), "{md}");
    assert_eq!(explain(&["--format=html"]), explain(&["--html=-"]));
    let json = explain(&["--format=json"]);
    assert_eq!(json, explain(&["--json"]));
    let report: Value = serde_json::from_str(&json.1).unwrap();
    assert_eq!(report["version"], 2);
    assert!(json.1.starts_with("{\n  \"version\": 2,\n  \"outcome\""), "{}", json.1);
    assert_eq!(report["nodes"][0]["outcome"], "found");
}

#[test]
fn only_text_has_colours_and_only_where_they_are_wanted() {
    let report = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(["explain", "--db", CASE]).args(arguments).env_remove("NO_COLOR");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let forced = [("CLICOLOR_FORCE", "1")];
    let coloured = report(&[], &forced);
    assert!(coloured.contains("\n\u{1b}[1mROOT CAUSE\u{1b}[0m\n"), "{coloured:?}");
    let plain = report(&[], &[]);
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
    assert_eq!(report(&[], &[forced[0], ("NO_COLOR", "1")]), plain);
    for format in ["md", "html", "json"] {
        let format = &format!("--format={format}");
        assert_eq!(report(&[format], &forced), report(&[format], &[]));
        assert!(!report(&[format], &forced).contains('\u{1b}'));
    }
}

#[test]
fn a_severe_chain_sets_the_exit_code_that_is_asked_for() {
    let report: Value = serde_json::from_str(&explain(&["--json"]).1).unwrap();
    let severity = report["nodes"][0]["root_cause"]["severity"].as_str().unwrap().to_owned();
    assert!(["medium", "high"].contains(&&*severity), "{severity}");
    assert_eq!(explain(&["--fail-on", &severity]).0, Some(4));
    assert_eq!(explain(&["--fail-on", "low", "--json"]).0, Some(4));
    assert_eq!(explain(&["--fail-on", "critical"]).0, Some(0));
}

#[test]
fn unknown_values_are_answered_with_the_accepted_ones() {
    for (arguments, accepted) in [
        (&["explain", "--db", CASE, "--format=pdf"][..], "possible values: text, md, json, html"),
        (&["explain", "--db", CASE, "--fail-on=bad"], "expected low, medium, high or critical"),
        (&["explain", "--db", CASE, "--json", "--format=md"], "cannot be used with"),
        (&["explain", "--db", CASE, "--follow"], "cannot be used with"),
        (&["explain", "--follow", "--format=html"], "text, md or json"),
        (
            &["query", "--db", CASE, "--format=xml", "SELECT 1"],
            "possible values: table, csv, tsv, json, jsonl",
        ),
    ] {
        let (code, stdout, stderr) = streams(arguments);
        assert_eq!((code, &*stdout), (Some(64), ""), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(accepted), "{stderr}");
    }
}

#[test]
fn rows_are_printed_as_lines_and_an_unknown_name_is_answered_with_the_known_ones() {
    let query = |format: &str, sql: &str| streams(&["query", "--db", CASE, format, sql]);
    let sql = "SELECT 1 AS a, 'x' || char(9) AS b, NULL AS c";
    assert_eq!(query("--format=tsv", sql).1, "a\tb\tc\n1\tx\\t\t\\N\n");
    assert_eq!(query("--format=jsonl", sql).1, "{\"a\":1,\"b\":\"x\\t\",\"c\":null}\n");
    assert!(query("--format=json", sql).1.starts_with("{\"version\":1,\"columns\":[\"a\","));
    let (code, _, stderr) = query("--format=csv", "SELECT culprt FROM chains");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(" - columns of chains are "), "{stderr}");
    let (_, _, stderr) = query("--format=csv", "SELECT * FROM chain");
    assert!(stderr.contains(" - tables are ") && stderr.contains(", events, "), "{stderr}");
}

#[test]
fn a_process_that_is_not_in_the_file_is_an_error_that_lists_those_that_are() {
    let (code, stdout, stderr) = streams(&["explain", "--db", CASE, "--pid", "4194304"]);
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(
        stderr.contains("has no process with PID 4194304 - name one that it has: "),
        "{stderr}"
    );
    let (code, report, _) = streams(&[
        "explain",
        "--db",
        CASE,
        "--from",
        "2000-01-01T00:00:00Z",
        "--until",
        "2000-01-01T01:00:00Z",
    ]);
    assert_eq!(code, Some(3), "{report}");
    assert!(
        report.contains("NOT OBSERVED  2000-01-01 00:00:00 - 2000-01-01 01:00:00 UTC"),
        "{report}"
    );
}

#[test]
fn the_last_seconds_of_a_file_are_those_before_its_end() {
    let window = |arguments: &[&str]| {
        let report: Value = serde_json::from_str(&explain(arguments).1).unwrap();
        let window = &report["nodes"][0]["observation"]["window"];
        [window[0].as_f64().unwrap(), window[1].as_f64().unwrap()]
    };
    let [_, end] = window(&["--json"]);
    let [from, until] = window(&["--json", "--since", "2s"]);
    assert_eq!((end - from, until), (2.0, end));
}

#[test]
fn recording_refuses_a_process_that_does_not_exist_before_it_writes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.db");
    let (code, stdout, stderr) =
        streams(&["record", "--db", path.to_str().unwrap(), "--pid", "4194304"]);
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no process has PID 4194304"), "{stderr}");
    assert!(!path.exists());
}

#[test]
fn a_trace_file_without_its_flag_and_a_name_for_a_pid_are_answered_with_what_to_write() {
    let (code, _, stderr) = streams(&["explain", CASE]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains(&format!("a trace file is given with --db {CASE}")), "{stderr}");
    let (code, _, stderr) = streams(&["view", "--db", CASE]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("gpucause view FILE"), "{stderr}");
    let (code, _, stderr) = streams(&["query", CASE, "SELECT 1"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains(&format!("a trace file is given with --db {CASE}")), "{stderr}");
    let (code, _, stderr) = streams(&["query", "SELECT 1"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("use --db FILE, or --nodes"), "{stderr}");
    let (code, _, stderr) = streams(&["explain", "--pid", "train.py"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("expected a number, the PID of a process"), "{stderr}");
}

#[test]
fn top_refuses_a_process_that_does_not_exist() {
    let (code, stdout, stderr) = streams(&["top", "--once", "--pid", "4194304"]);
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(stderr.starts_with("error: no process has PID 4194304 - see ps -e"), "{stderr}");
    let thread = std::thread::spawn(|| {
        let tid = nix::unistd::gettid().to_string();
        streams(&["top", "--once", "--pid", &tid])
    });
    let (code, _, stderr) = thread.join().unwrap();
    assert_eq!(code, Some(1), "{stderr}");
    let hint = format!("is a thread of process {0} - use --pid {0}", std::process::id());
    assert!(stderr.contains(&hint), "{stderr}");
}

/// A node with one chain; its address.
fn node() -> String {
    let report: Value = serde_json::from_str(&explain(&["--json"]).1).unwrap();
    let chain = &report["nodes"][0]["root_cause"];
    let data = json!({"node": "gpu-1", "now": chain["last_seen"], "chains": [chain]});
    let body = json!({"status": "success", "data": data}).to_string();
    server(vec![("/api/v1/chains", body)].leak()).to_string()
}

/// The names in an object, with those of the objects in it; what is in a list goes by its first element.
fn keys(prefix: &str, value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(own) => own.iter().for_each(|(name, value)| {
            let name = format!("{prefix}.{name}");
            keys(&name, value, all);
            all.insert(name);
        }),
        Value::Array(own) => own.iter().take(1).for_each(|value| keys(prefix, value, all)),
        _ => {}
    }
}

#[test]
fn the_json_of_a_node_of_several_and_of_a_file_has_the_same_names_and_they_are_documented() {
    let url = node();
    let keys_of = |arguments: &[&str]| {
        let common = ["explain", "--json", "--from=2000-01-01T00:00:00Z"];
        let (_, stdout, stderr) = streams(&[&common, arguments].concat());
        let report: Value = serde_json::from_str(&stdout).expect(&stderr);
        let mut all = BTreeSet::new();
        keys("", &report, &mut all);
        // Only a file or a measured clock has some of these parts, and a node of an older version does not report the others.
        let parts = [
            ".file.",
            ".nodes.recorded.",
            ".nodes.clock.",
            ".nodes.observation.",
            ".nodes.others.",
        ];
        all.retain(|name| !parts.iter().any(|part| name.starts_with(part)));
        all
    };
    let file = keys_of(&["--db", CASE]);
    for name in ["outcome", "file", "nodes.url", "nodes.root_cause.evidence", "nodes.recorded"] {
        assert!(file.contains(&format!(".{name}")), "{name} is missing in {file:?}");
    }
    assert_eq!(keys_of(&["--url", &url]), file);
    assert_eq!(keys_of(&["--nodes", &url]), file);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../investigations/causes.md");
    let page = std::fs::read_to_string(page).unwrap();
    for name in file.iter().filter(|name| name.matches('.').count() <= 2) {
        let name = name.rsplit('.').next().unwrap();
        assert!(page.contains(&format!("`{name}`")), "{name} is not in causes.md");
    }
}

fn follow(url: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.args(["explain", "--follow", "--since=1000000h", "--url", url]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_followed_chain_is_printed_once_until_ctrl_c() {
    let url = node();
    let mut following = follow(&url, &["--format=json"]);
    let (sender, lines) = channel();
    let stdout = following.stdout.take().unwrap();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| {
            let _ = sender.send(line);
        });
    });
    let first = lines.recv_timeout(Duration::from_secs(60)).unwrap();
    let line: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&line["version"], &line["node"]), (&1.into(), &"gpu-1".into()), "{first}");
    assert_eq!(line["chain"]["cause"], "lock_wait");
    // Longer than the interval of requests.
    assert!(lines.recv_timeout(Duration::from_secs(3)).is_err());
    kill(Pid::from_raw(following.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

#[test]
fn following_ends_with_the_exit_code_of_a_severe_chain() {
    let output = follow(&node(), &["--fail-on=low"]).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains(" UTC  gpu-1\n  lock_wait -> "), "{text}");
    let gone = follow("127.0.0.1:1", &[]).wait_with_output().unwrap();
    let stderr = String::from_utf8(gone.stderr).unwrap();
    assert_eq!(gone.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("cannot be reached"), "{stderr}");
}
