//! Hosts that the exporter cannot run on: it says what is missing, and loads nothing.

use gpucause_fixture::exporter::{Exporter, gpucause};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use gpucause_fixture::poll::until;

const NOBODY: u32 = 65534;

/// Runs a command that should end by itself, and returns its exit code and what it said.
pub(crate) fn outcome(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// Runs the program as a user without any capability, and returns its exit code and what it said.
pub(crate) fn outcome_as_nobody(arguments: &[&str]) -> (Option<i32>, String) {
    // The build folder may be where nobody has access.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("gpucause");
    std::fs::copy(env!("CARGO_BIN_EXE_gpucause"), &program).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/");
    // A process that another test has just forked may still have the copy open for writing.
    let output = until("the copy is only read", || match command.output() {
        Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
        output => Some(output.unwrap()),
    });
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_port_in_use_is_reported_with_the_flag_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["exporter", "--web.listen-address", &address];
    let as_root = outcome(&mut gpucause(&arguments));
    // That nobody gets the same answer shows that the port comes before anything that is loaded.
    for (code, output) in [as_root, outcome_as_nobody(&arguments)] {
        assert_eq!(code, Some(1), "{output}");
        for part in [&*address, "in use", "dcgm-exporter", "--web.listen-address"] {
            assert!(output.contains(part), "{part} is missing in {output}");
        }
        assert!(!output.contains("CAP_BPF"), "{output}");
    }
}

#[test]
fn without_capabilities_it_says_which_to_grant() {
    let (code, output) = outcome_as_nobody(&["exporter", "--web.listen-address=127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{output}");
    for part in ["not permitted", "CAP_BPF", "CAP_PERFMON", "root"] {
        assert!(output.contains(part), "{part} is missing in {output}");
    }
    assert!(!output.contains("panicked"), "{output}");
}

/// The exporter behind this limit of open files, in the words of the shell.
fn limited(limit: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{limit}; exec \"$0\" exporter --web.listen-address=127.0.0.1:0");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_gpucause")]);
    command.envs(gpucause(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

#[test]
fn too_few_open_files_are_an_error_that_says_how_many_it_needs() {
    let (code, output) = outcome(&mut limited("ulimit -n 64"));
    assert_eq!(code, Some(1), "{output}");
    for part in ["Too many open files", "at most 64", "needs some ", "LimitNOFILE", "ulimit -n"] {
        assert!(output.contains(part), "{part} is missing in {output}");
    }
}

#[test]
fn the_soft_limit_of_open_files_is_raised_before_maps_are_opened() {
    Exporter::of(&mut limited("ulimit -Sn 64"));
}
