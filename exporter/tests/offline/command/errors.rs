//! Errors of commands: `error: what - what to do` on standard error, once, and log lines from daemons only.

use std::net::TcpListener;
use std::process::{Command, Output};

use super::outcome;

/// Exit code, standard output and standard error.
pub(crate) fn streams(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn the_error_of_a_command_is_one_line_with_what_to_do_and_no_line_of_a_log() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/../investigations/cases/lock.db");
    let (gone, out) = ("/nonexistent/trace.db", "/nonexistent/folder/out");
    for (arguments, code) in [
        (&["explain", "--url", &closed][..], 1),
        (&["explain", "--db", gone], 1),
        (&["explain", "--db", case, "--html", out], 1),
        (&["query", "--db", gone, "SELECT 1"], 1),
        (&["query", "--db", case, "DELETE FROM events"], 1),
        (&["merge", "-o", out, gone], 1),
        (&["export", "--db", gone, "--format=perfetto", "-o", out], 1),
        (&["replay", "--db", gone, "--web.listen-address=127.0.0.1:0"], 1),
        (&["view", gone], 1),
        (&["mcp", "--db", gone], 1),
        (&["man", "--dir", "/proc/nonexistent"], 1),
        (&["explain", "--nodes-file", "/nonexistent/nodes.yaml"], 78),
    ] {
        let (ended, stdout, stderr) = streams(arguments);
        assert_eq!((ended, &*stdout), (Some(code), ""), "{arguments:?}: {stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{arguments:?}: {stderr}");
        assert!(stderr.contains(" - "), "{arguments:?} does not say what to do: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(!stderr.contains("level=") && !stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn a_file_that_would_be_too_large_is_an_error_and_not_the_end_by_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1; exec \"$0\" man --dir \"$1\""]);
    command.args([env!("CARGO_BIN_EXE_gpucause"), folder.path().to_str().unwrap()]);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("File too large") && said.contains("ulimit -f"), "{said}");
}

#[test]
fn a_pipe_is_no_list_of_nodes_and_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("nodes.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for list in [["--nodes-from", &format!("file_sd:{pipe}")], ["--nodes-file", pipe]] {
        let (code, _, stderr) = streams(&["explain", list[0], list[1]]);
        assert_eq!(code, Some(78), "{stderr}");
        assert!(stderr.contains("not a file"), "{stderr}");
    }
}

#[test]
fn an_error_has_colour_where_it_is_asked_for_and_none_with_no_color() {
    let stderr = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(["view", "/nonexistent.db"]).env_remove("NO_COLOR").env_remove("TERM");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(stderr(&[("CLICOLOR_FORCE", "1")]).starts_with("\u{1b}[1;31merror:\u{1b}[0m "));
    assert!(stderr(&[]).starts_with("error: "));
    assert!(stderr(&[("NO_COLOR", "1")]).starts_with("error: "));
}

#[test]
fn a_mistyped_command_or_flag_is_answered_with_the_nearest() {
    for (arguments, nearest) in [
        (&["exprter"][..], "'exporter'"),
        (&["chek"], "'check'"),
        (&["explain", "--sevrity=high"], "'--severity'"),
        (&["query", "--db", "a.db", "--formt=csv", "SELECT 1"], "'--format'"),
    ] {
        let (code, output) = outcome(arguments);
        assert_eq!(code, Some(64), "{output}");
        assert!(output.starts_with("error: ") && output.contains("tip: "), "{output}");
        assert!(output.contains(nearest), "{output}");
    }
}

#[test]
fn the_help_lists_completions_and_manual_pages() {
    let (code, output) = outcome(&["--help"]);
    assert_eq!(code, Some(0));
    for command in ["completions", "man", "check", "doctor]"] {
        assert!(output.contains(command), "{command} is missing in {output}");
    }
}

#[test]
fn a_daemon_logs_its_error() {
    for arguments in [
        &["exporter", "--config.file=/nonexistent"][..],
        &["mcp", "--http=192.0.2.1:0", "--token-file=/nonexistent"],
    ] {
        let (code, _, stderr) = streams(arguments);
        assert_eq!(code, Some(78), "{stderr}");
        assert!(stderr.contains("level=error") && !stderr.contains("error: "), "{stderr}");
    }
}
