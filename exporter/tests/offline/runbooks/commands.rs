//! Command lines of the documents: each is run here, run by something that is named, or listed with the reason why no test runs it.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use clap::error::ErrorKind;
use gpucause::cli::Cli;
use gpucause_fixture::exporter::{Exporter, gpucause};
use regex::Regex;

use super::{documents, folder};
use table::{COMMANDS, How};

/// Placeholders that a reader replaces, and their values here.
const PLACEHOLDERS: [(&str, &str); 5] = [
    ("USER@HOST:PORT", "me@gpu-1:9400"),
    ("completions SHELL", "completions bash"),
    ("--dir DIR", "--dir pages"),
    ("--config.file PATH", "--config.file /etc/gpucause/config.yaml"),
    ("--db FILE", "--db trace.db"),
];

/// A command line of a document.
#[derive(Debug)]
struct CommandLine {
    page: String,
    /// Without `sudo`.
    text: String,
}

/// Returns the commands of all documents except the worked cases, which have tests of their own, and the changelog, which names old ones too.
fn command_lines() -> Vec<CommandLine> {
    let mut found = Vec::new();
    for (page, text) in documents() {
        if page.ends_with("/CHANGELOG.md") || page.starts_with("investigations/cases/") {
            continue;
        }
        for text in typed(&text) {
            let mut text = text.trim_start_matches("sudo ").replace("\\|", "|");
            for (placeholder, value) in PLACEHOLDERS {
                text = text.replace(placeholder, value);
            }
            found.push(CommandLine { page: page.clone(), text });
        }
    }
    assert!(found.len() > 200, "only {} command lines were found", found.len());
    found
}

/// Lines of shell blocks, what follows a prompt in other blocks, and spans of code that begin like a command.
fn typed(text: &str) -> Vec<String> {
    let programs: BTreeSet<_> = COMMANDS
        .iter()
        .flat_map(|(_, beginnings)| *beginnings)
        .filter_map(|beginning| beginning.split(' ').next())
        .chain(["sudo"])
        .collect();
    let is_command =
        |own: &str| own.split_once(' ').is_some_and(|(program, _)| programs.contains(program));
    let span = Regex::new("`([^`]+)`").unwrap();
    let (mut typed, mut block) = (Vec::new(), None::<String>);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then(|| language.to_owned());
            continue;
        }
        let Some(language) = block.as_deref() else {
            let spans = span.captures_iter(line).map(|found| found[1].to_owned());
            typed.extend(spans.filter(|own| is_command(own)));
            continue;
        };
        let is_shell = matches!(language, "sh" | "bash");
        let first = match language {
            "sh" | "bash" => line.trim(),
            "console" | "" => line.strip_prefix("$ ").unwrap_or_default(),
            _ => continue,
        };
        if first.is_empty() || first.starts_with('#') {
            continue;
        }
        let goes_on = |own: &str| match is_shell {
            true => own.ends_with('\\'),
            false => !own.matches('"').count().is_multiple_of(2),
        };
        let mut own = first.to_owned();
        while goes_on(&own) {
            own = format!("{own}\n{}", lines.next().unwrap());
        }
        typed.push(own);
    }
    typed
}

/// How a command line is tested: the longest beginning that fits says so.
fn how(line: &str) -> Option<(&'static How, &'static str)> {
    let all = COMMANDS.iter().flat_map(|(how, own)| own.iter().map(move |own| (how, *own)));
    let fits = |beginning: &str| {
        let rest = line.strip_prefix(beginning);
        rest.is_some_and(|rest| {
            !rest.starts_with(char::is_alphanumeric) || beginning.ends_with('_')
        })
    };
    all.filter(|(_, own)| fits(own)).max_by_key(|(_, own)| own.len())
}

/// The words of a command line up to a comment, a pipe, a redirection or the next command.
fn words(command: &str) -> Vec<String> {
    let word = Regex::new(r#"(?:'[^']*'|"[^"]*"|[^\s'"])+"#).unwrap();
    let found = word.find_iter(command).map(|found| found.as_str());
    let is_end = |word: &str| word.starts_with('#') || matches!(word, "|" | ">" | "&&");
    found.take_while(|word| !is_end(word)).map(|word| word.replace(['\'', '"'], "")).collect()
}

#[test]
fn every_command_line_is_run_by_a_test_or_listed_with_the_reason_why_not() {
    let mut used = BTreeSet::new();
    for CommandLine { page, text } in command_lines() {
        let Some((_, beginning)) = how(&text) else {
            panic!("{page}: nothing says how this command line is tested: {text}")
        };
        used.insert(beginning);
    }
    for (how, beginnings) in COMMANDS {
        for beginning in *beginnings {
            assert!(used.contains(beginning), "no document has a command line {beginning}");
        }
        match how {
            How::Run => {}
            How::By(file, what) => {
                let text = fs::read_to_string(folder(file)).unwrap();
                assert!(text.contains(what), "{file} has no {what}");
            }
            How::Not(reason) => assert!(reason.len() > 10, "{reason}"),
        }
    }
}

#[test]
fn gpucause_takes_every_command_line() {
    let refused = |line: &CommandLine| {
        let words = words(&line.text);
        let error = Cli::try_parse_from(&words).err()?;
        let kind = error.kind();
        let only_asks = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        // A sentence may name a command, or a flag without its value.
        let names_a_command = kind == ErrorKind::MissingRequiredArgument && words.len() == 2;
        let names_a_flag = kind == ErrorKind::InvalidValue && words.last()?.starts_with("--");
        (!only_asks && !names_a_command && !names_a_flag)
            .then(|| format!("{}: {}\n{error}", line.page, line.text))
    };
    let lines = command_lines();
    let lines = lines.iter().filter(|line| line.text.starts_with("gpucause "));
    let refused: Vec<_> = lines.filter_map(refused).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn a_shell_and_make_take_every_command_line() {
    for CommandLine { page, text } in command_lines() {
        let output = Command::new("bash").args(["-n", "-c", &text]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{page}: {text}: {output:?}");
        if text.starts_with("make ") {
            let words = words(&text);
            let mut make = Command::new("make");
            let output =
                make.arg("-n").args(&words[1..]).current_dir(folder(".")).output().unwrap();
            assert!(output.status.success(), "{page}: {text}: {output:?}");
        }
    }
}

/// A folder that has what the documents speak of.
fn workplace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let case = |name: &str| folder("investigations/cases").join(name).canonicalize().unwrap();
    for name in ["trace.db", "slow.db", "before.db", "after.db", "incident.db", "gpu-1.db"] {
        symlink(case("lock.db"), dir.path().join(name)).unwrap();
    }
    symlink(case("dataloader.db"), dir.path().join("gpu-2.db")).unwrap();
    fs::create_dir(dir.path().join("etc")).unwrap();
    for (from, to) in [
        ("systemd/config.yaml", "etc/config.yaml"),
        ("systemd/config.yaml", "new.yaml"),
        ("alerts/alertmanager.yml", "alertmanager.yml"),
        ("alerts/receivers.yml", "receivers.yml"),
        ("alerts/notifications.tmpl", "notifications.tmpl"),
    ] {
        fs::copy(folder(from), dir.path().join(to)).unwrap();
    }
    dir
}

/// The command line as it is run here: it asks the server in place of a node, and acts on the server's process.
fn here(line: &str, server: &Exporter) -> String {
    let node = format!("http://{}", server.address);
    let mut line = line.to_owned();
    for address in ["http://localhost:9400", "http://gpu-1:9400", "http://localhost:9401"] {
        line = line.replace(address, &node);
    }
    let names_source = words(&line).iter().any(|word| matches!(&**word, "--url" | "--db"));
    if line.starts_with("gpucause explain") && !names_source {
        line = line.replacen("explain", &format!("explain --url {node}"), 1);
    }
    let (pid, token) = (server.pid().to_string(), server.token_file());
    let recorded =
        "gpucause query --db trace.db --format tsv 'SELECT pid FROM processes' | tail -n 1";
    if line.contains("--db ") {
        line = line.replace("--pid 1234", "--pid 4242");
    }
    line.replace("--db merged.db", "--db trace.db")
        .replace("--db job.db", "--db trace.db")
        .replace("--pid 4242", &format!("--pid $({recorded})"))
        .replace("/run/gpucause/9400.token", token.to_str().unwrap())
        .replace("/etc/gpucause", "etc")
        .replace("/etc/prometheus", ".")
        .replace("PID", &pid)
        .replace("-p 1234", &format!("-p {pid}"))
}

/// Runs it, and returns why it failed.
fn failure(line: &str, server: &Exporter) -> Option<String> {
    let dir = workplace();
    let programs = Path::new(env!("CARGO_BIN_EXE_gpucause")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let runtime = server.token_file();
    let output = Command::new("bash")
        .args(["-c", &here(line, server)])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("RUNTIME_DIRECTORY", runtime.parent().unwrap())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let says_what_it_found = line.starts_with("gpucause explain");
    let is_expected = match output.status.code() {
        Some(0) => true,
        Some(2..=4) => says_what_it_found,
        _ => false,
    };
    let is_answered = !line.starts_with("curl") || !output.stdout.is_empty();
    (!is_expected || !is_answered).then(|| format!("{line}: {output:?}"))
}

#[test]
fn every_command_line_that_needs_neither_root_nor_another_host_runs() {
    let case = folder("investigations/cases/lock.db");
    let arguments = ["replay", "--web.listen-address=127.0.0.1:0", "--speed=1000", "--db"];
    let server = Exporter::of(gpucause(&arguments).arg(case));
    let lines: BTreeSet<_> = command_lines().into_iter().map(|line| line.text).collect();
    let lines = lines.iter().filter(|line| matches!(how(line), Some((How::Run, _))));
    let failures: Vec<_> = lines.clone().filter_map(|line| failure(line, &server)).collect();
    assert!(lines.count() > 30 && failures.is_empty(), "{}", failures.join("\n"));
}
