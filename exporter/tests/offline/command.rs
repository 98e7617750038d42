//! The command line as the shell and systemd see it: exit codes and messages.

mod assistant;
mod check;
mod errors;
mod many_nodes;
mod outliers;
mod reports;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn outcome(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn an_address_of_another_host_is_a_configuration_error() {
    let (code, output) = outcome(&["exporter", "--web.listen-address=192.0.2.1:0"]);
    assert_eq!(code, Some(78), "{output}");
}

#[test]
fn a_wrong_web_configuration_is_a_configuration_error_that_names_file_and_key() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "basic_auth_users:\n  alice: hunter2\n").unwrap();
    let path = file.path().to_str().unwrap();
    for command in ["exporter", "check"] {
        let arguments = [command, "--web.listen-address=127.0.0.1:0", "--web.config.file", path];
        let (code, output) = outcome(&arguments);
        assert_eq!(code, Some(78), "{output}");
        assert!(output.contains(path) && output.contains("basic_auth_users.alice"), "{output}");
        assert!(!output.contains("hunter2"), "{output}");
    }
    let (code, output) = outcome(&["exporter", "--web.config.file=/nonexistent/web.yml"]);
    assert_eq!(code, Some(78), "{output}");
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for arguments in [
        &["exporter", "--no-such-flag"][..],
        &["exporter", "--web.listen-address=9400"],
        &["exporter", "--web.telemetry-path=metrics"],
        &["exporter", "--retention=soon"],
        &["exporter", "--metrics.level"],
        &["exporter", "--metrics.levels=full"],
        &["exporter", "--log.level=loud"],
        &["exporter", "--config.check"],
        &["no-such-command"],
        &[],
    ] {
        let (code, output) = outcome(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {output}");
    }
}

#[test]
fn an_unknown_level_label_or_limit_is_a_configuration_error_that_names_the_accepted_values() {
    for (flag, accepted) in [
        ("--metrics.level=all", "known levels: fleet, standard, full"),
        ("--metrics.level=", "known levels: fleet, standard, full"),
        ("--metrics.classic-buckets=never", "known values: auto, always"),
    ] {
        let (code, output) = outcome(&["exporter", flag]);
        assert_eq!(code, Some(78), "{flag}: {output}");
        assert!(output.contains(accepted), "{flag}: {output}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (text, accepted) in [
        ("metrics: {level: all}", "metrics.level is \"all\", and must be fleet, standard or full"),
        ("metrics: {classic_buckets: 0}", "must be auto or always"),
        (
            "metrics: {group_by: [pod]}",
            "metrics.group_by[0] is \"pod\", and must be comm, or gpu_uuid behind comm",
        ),
        ("metrics: {group_by: [gpu_uuid]}", "must be [], [comm] or [comm, gpu_uuid]"),
        ("limits: {live_processes: 0}", "limits.live_processes is 0, and must be from 1 to 8192"),
        ("limits: {series_per_process: 0}", "is 0, and must be from 40 to 100000"),
        ("limits: {wait_names: 0}", "limits.wait_names is 0, and must be from 1 to 100"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let check = ["exporter", "--config.check", "--config.file", path];
        for arguments in [&check[..], &["exporter", "--config.file", path]] {
            let (code, output) = outcome(arguments);
            assert_eq!(code, Some(78), "{text}: {output}");
            assert!(output.contains(path), "{text}: {output}");
            // A line of the log escapes quotation marks.
            assert!(output.replace("\\\"", "\"").contains(accepted), "{text}: {output}");
        }
    }
}

#[test]
fn a_configuration_file_can_be_checked_without_being_used() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let check = ["exporter", "--config.check", "--config.file", path];
    let (code, output) = outcome(&check);
    assert_eq!((code, &*output), (Some(0), "ok\n"), "an empty file is the defaults");
    std::fs::write(file.path(), "limits:\n  scrapes: 0\n  wait_names: many\nlimit: 1\n").unwrap();
    let (code, output) = outcome(&check);
    assert_eq!(code, Some(78));
    let expected = [
        format!("{path}:2: limits.scrapes is 0, and must be from 1 to 16"),
        format!("{path}:3: limits.wait_names is \"many\", and must be a whole number from 0 up"),
        format!("{path}:4: the file has no key limit (did you mean limits?); it has "),
    ];
    let lines: Vec<_> = output.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[1]), (3, &*expected[0], &*expected[1]), "{output}");
    assert!(lines[2].starts_with(&expected[2]), "{output}");
    let (code, output) = outcome(&["exporter", "--config.file", path]);
    assert_eq!(code, Some(78), "{output}");
    assert_eq!(output.lines().count(), 1, "a line of the log: {output}");
    for expected in ["limits.scrapes is 0", "limits.wait_names is", "no key limit"] {
        assert!(output.contains(expected), "{output}");
    }
    let (code, stdout, _) =
        errors::streams(&["check", "--web.listen-address=127.0.0.1:0", "--config.file", path]);
    assert_eq!(code, Some(78), "{stdout}");
    let failed = stdout.lines().filter(|line| line.starts_with("failed       configuration"));
    assert_eq!(failed.count(), 3, "{stdout}");
}

#[test]
fn a_password_in_an_address_is_refused_and_not_printed() {
    let sql = "SELECT 1";
    for (arguments, advice) in [
        (&["check", "--prometheus=http://me:secret@h:9090"][..], "--prometheus-password-file"),
        (&["mcp", "--prometheus", "me:secret@h:9090"], "--prometheus-password-file"),
        (&["mcp", "--clickhouse", "me:secret@h:8123"], "--clickhouse-password-file"),
        (
            &["explain", "--nodes-from", "prometheus:http://me:secret@h"],
            "--prometheus-password-file",
        ),
        (&["explain", "--url", "https://me:secret@h"], "--password-file"),
        (&["query", "--nodes", "a:9400,https://me:secret@h", sql], "--password-file"),
        (&["exporter", "--otlp.endpoint=http://me:secret@h:4318"], "--otlp.headers-file"),
        (&["exporter", "--peers.url=http://me:secret@h:9090"], "--peers.password-file"),
        (&["exporter", "--dcgm.url=http://me:secret@h:9401/metrics"], "it must need no login"),
        (&["check", "http://me:secret@h:9090"], "unexpected argument"),
        (&["query", "--http://me:secret@h:9090"], "unexpected argument"),
        (&["http://me:secret@h:9090"], "unrecognized subcommand"),
        (&["explain", "--nodes", "a,http://me:secret,w@h", "--since=5m"], "invalid node address"),
        (&["explain", "--nodes=a,http://me:secret=,w@h"], "invalid node address"),
        (&["exporter", "--web.listen-address=me:secret@h"], "invalid listen address"),
    ] {
        let (code, output) = outcome(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {output}");
        assert!(output.contains(advice), "{arguments:?}: {output}");
        assert!(!output.contains("secret"), "{arguments:?}: {output}");
    }
}

#[test]
fn a_configuration_file_must_exist_unless_it_is_optional() {
    let check = ["exporter", "--config.check", "--config.file=/nonexistent/config.yaml"];
    let (code, output) = outcome(&check);
    assert_eq!(code, Some(78));
    assert!(output.starts_with("/nonexistent/config.yaml: No such file"), "{output}");
    let (code, output) = outcome(&[&check[..], &["--config.optional"]].concat());
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn a_report_is_one_html_file_which_overwrites_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/../investigations/cases/lock.db");
    let report = dir.path().join("report.html");
    let explain = ["explain", "--db", case, "--html", report.to_str().unwrap()];
    let (code, output) = outcome(&explain);
    assert_eq!((code, output), (Some(0), format!("wrote {}\n", report.display())));
    let html = std::fs::read_to_string(&report).unwrap();
    for expected in ["<style>", "Root cause", "lock_wait", "<caption>Calls, and"] {
        assert!(html.contains(expected), "{expected} is not in {html}");
    }
    assert!(!html.contains("<script") && !html.contains("http://"), "{html}");
    let (code, output) = outcome(&explain);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("cannot write") && output.contains("exists"), "{output}");
    assert_eq!(std::fs::read_to_string(&report).unwrap(), html);
    std::fs::write(&report, "earlier").unwrap();
    let (code, output) = outcome(&[&explain[..], &["--force"]].concat());
    assert_eq!(
        (code, std::fs::read_to_string(&report).unwrap()),
        (Some(0), html.clone()),
        "{output}"
    );
    let (code, printed) = outcome(&["explain", "--db", case, "--html", "-"]);
    assert_eq!((code, printed), (Some(0), html));
}

#[test]
fn an_unreachable_node_is_reported_with_what_to_check() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, output) = outcome(&["explain", "--url", &closed.to_string()]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("cannot be reached") && output.contains("on that port?"), "{output}");
    assert_eq!(output.matches("refused").count(), 1, "{output}");
}

#[test]
fn what_something_else_answers_does_not_steer_the_terminal() {
    for (answer, message) in [
        ("SSH-2.0-\u{1b}[2J\r\n", "did not answer correctly"),
        ("HTTP/1.1 500 x\r\nConnection: close\r\n\r\n\u{1b}[2Jbad\u{9b}2J", "answered 500"),
        (
            "HTTP/1.1 404 x\r\nConnection: close\r\n\r\n404 page not found",
            "is this a gpucause exporter?",
        ),
        ("HTTP/1.1 200 x\r\nConnection: close\r\n\r\n<html>\u{1b}", "is not gpucause"),
    ] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = other.local_addr().unwrap().to_string();
        let answering = std::thread::spawn(move || {
            let (mut client, _) = other.accept().unwrap();
            let _ = client.read(&mut [0; 1024]).unwrap();
            client.write_all(answer.as_bytes()).unwrap();
        });
        let (code, output) = outcome(&["explain", "--url", &url]);
        answering.join().unwrap();
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains(message), "{output}");
        assert!(!output.trim_end().contains(char::is_control), "{output:?}");
    }
}

#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let (device, inode) = log.as_file().metadata().map(|file| (file.dev(), file.ino())).unwrap();
    let line = |stream: String, format: &str| {
        log.as_file().set_len(0).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(["exporter", "--config.file=/nonexistent", "--log.format", format]);
        let stderr = log.reopen().unwrap();
        let status = command.env("JOURNAL_STREAM", stream).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(78));
        std::fs::read_to_string(log.path()).unwrap()
    };
    let journal = format!("{device}:{inode}");
    let text = line(journal.clone(), "logfmt");
    assert!(text.starts_with("<3>level=error "), "{text}");
    let text = line(journal, "json");
    assert!(text.starts_with("<3>{\"level\":\"ERROR\","), "{text}");
    // Standard error was redirected.
    let text = line(format!("{device}:{}", inode + 1), "logfmt");
    assert!(text.starts_with("time="), "{text}");
    let text = line(String::new(), "json");
    assert!(text.starts_with("{\"timestamp\":"), "{text}");
}

#[test]
fn help_and_version_succeed() {
    let (code, output) = outcome(&["--version"]);
    assert_eq!(code, Some(0));
    assert!(output.starts_with(concat!("gpucause ", env!("CARGO_PKG_VERSION"), " (")), "{output}");
    let (code, output) = outcome(&["exporter", "--help"]);
    assert_eq!(code, Some(0));
    assert!(output.contains("--web.listen-address") && output.contains("[default: :9400]"));
}

#[test]
fn an_export_of_what_is_no_trace_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (db, out) = (dir.path().join("notes.txt"), dir.path().join("out.pftrace"));
    std::fs::write(&db, "no trace").unwrap();
    let (db, output) = (db.to_str().unwrap(), out.to_str().unwrap());
    let arguments = ["export", "--db", db, "--format", "perfetto", "-o", output];
    let (code, said) = outcome(&arguments);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(db) && !out.exists(), "{said}");
    let (code, said) = outcome(&["export", "--db", db, "--format=svg", "-o", output]);
    assert_eq!(code, Some(64), "{said}");
}

#[test]
fn mcp_over_http_makes_a_token_and_lets_in_nobody_without_it() {
    let runtime = tempfile::tempdir().unwrap();
    let mcp = |directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(["mcp", "--http=127.0.0.1:0"]).env_remove("GPUCAUSE_MCP_TOKEN");
        command.env("RUNTIME_DIRECTORY", directory).env_remove("XDG_RUNTIME_DIR");
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = mcp(runtime.path());
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("listening"))).unwrap();
    let (_, rest) = line.split_once("127.0.0.1:").unwrap();
    let port = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let file = runtime.path().join(format!("{port}.token"));
    assert!(line.contains(file.to_str().unwrap()), "{line}");
    let token = std::fs::read_to_string(&file).unwrap();
    let ask = |headers: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let refused = ask("");
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains(".token"), "{refused}");
    let admitted = ask(&format!("Authorization: Bearer {}\r\n", token.trim()));
    assert!(admitted.starts_with("HTTP/1.1 4") && !admitted.contains(" 401 "), "{admitted}");
    kill(Pid::from_raw(server.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(!file.exists(), "the file goes with the server");
    let output = mcp(Path::new("/dev/null")).wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("/dev/null/") && stderr.contains("--token-file"), "{stderr}");
}
