//! `gpucause explain` over TLS, with a password.

use std::process::{Command, Output};

use gpucause_fixture::server::{Running, serve};

use super::pairs::Folder;
use super::passwords::users;

const PASSWORD: &str = "p:w %41";

fn outcome(arguments: &[&str], password: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
    command.arg("explain").args(arguments).env_remove("GPUCAUSE_PASSWORD").env("NO_COLOR", "1");
    if let Some(password) = password {
        command.env("GPUCAUSE_PASSWORD", password);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!said.contains(PASSWORD), "{said}");
    (status.code(), said)
}

/// Wants TLS and a password.
fn node(folder: &Folder) -> (Running, String, String) {
    let server = serve(&folder.configure(&[], &users(4, &[("alice", PASSWORD)])));
    let url = format!("https://alice@localhost:{}", server.address.port());
    (server, url, folder.path("ca.crt").to_str().unwrap().to_owned())
}

#[test]
fn a_node_is_asked_over_tls_with_a_password_of_a_file_or_the_environment() {
    let folder = Folder::new();
    let (_server, url, ca) = node(&folder);
    folder.write("password", &format!("{PASSWORD}\n"));
    let file = folder.path("password");
    let with_file = ["--url", &url, "--ca-file", &ca, "--password-file", file.to_str().unwrap()];
    for (arguments, password) in [(&with_file[..], None), (&with_file[..4], Some(PASSWORD))] {
        let (code, output) = outcome(&[arguments, &["--since=1000000h"]].concat(), password);
        assert_eq!(code, Some(0), "{arguments:?}: {output}");
        assert!(output.contains("ROOT CAUSE"), "{output}");
    }
}

#[test]
fn the_reason_why_a_node_does_not_answer_is_reported() {
    let folder = Folder::new();
    let (server, url, ca) = node(&folder);
    let nobody = format!("https://localhost:{}", server.address.port());
    let plain = format!("http://alice@localhost:{}", server.address.port());
    let key = folder.path("server.key").to_str().unwrap().to_owned();
    let without_tls = serve(&Folder::new().plain(""));
    let without_tls = format!("https://localhost:{}", without_tls.address.port());
    let by_address = format!("https://127.0.0.1:{}", server.address.port());
    let stranger = Folder::new();
    let other = stranger.path("ca.crt").to_str().unwrap().to_owned();
    for (arguments, password, code, reason) in [
        (["--url", &*url, "--ca-file", &*ca], Some("wrong"), 1, "wrong user or password"),
        (["--url", &nobody, "--ca-file", &ca], Some(PASSWORD), 1, "requires a login"),
        (["--url", &url, "--ca-file", &other], Some(PASSWORD), 1, "--ca-file"),
        (["--url", &plain, "--ca-file", &ca], Some(PASSWORD), 1, "use https://"),
        (["--url", &without_tls, "--ca-file", &ca], Some(PASSWORD), 1, "use http://"),
        (["--url", &by_address, "--ca-file", &ca], Some(PASSWORD), 1, "a name of the certificate"),
        (["--url", &url, "--ca-file", &ca], None, 78, "--password-file"),
        (["--url", &url, "--ca-file", "/nonexistent.crt"], Some(PASSWORD), 78, "/nonexistent.crt"),
        (["--url", &url, "--ca-file", &key], Some(PASSWORD), 78, "no certificate"),
    ] {
        let (ended, output) = outcome(&arguments, password);
        assert_eq!(ended, Some(code), "{arguments:?}: {output}");
        assert!(output.contains(reason), "{arguments:?}: {output}");
    }
}

#[test]
fn commands_find_the_token_of_a_local_server_or_print_how_to_use_it() {
    let folder = Folder::new();
    let server = serve(&folder.plain(""));
    let url = format!("http://localhost:{}", server.address.port());
    let runtime = server.runtime.path().to_str().unwrap();
    let ask = |arguments: &[&str], directory: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucause"));
        command.args(arguments).env("NO_COLOR", "1").env("RUNTIME_DIRECTORY", directory);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
    };
    let explain = ["explain", "--since=1000000h", "--url", &url];
    let listen = format!("--web.listen-address=127.0.0.1:{}", server.address.port());
    let check = ["check", &listen];
    let query = ["query", "--nodes", &url, "SELECT cause FROM chains"];
    for (arguments, found) in
        [(&explain[..], "ROOT CAUSE"), (&query, "cpu_preemption"), (&check, "attached since")]
    {
        let (_, output) = ask(arguments, runtime);
        assert!(output.contains(found), "{arguments:?}: {output}");
        let (_, output) = ask(arguments, "/nonexistent");
        assert!(!output.contains(found), "{arguments:?}: {output}");
    }
    assert_eq!(ask(&explain, runtime).0, Some(0));
    let (code, output) = ask(&explain, "/nonexistent");
    assert_eq!(code, Some(1), "{output}");
    let hint = "require credentials - gpucause sends the token of this host";
    assert!(output.contains(hint) && !output.contains("curl"), "{output}");
    let (_, output) = ask(&check, "/nonexistent");
    assert!(output.contains("whether it observes is unknown without its token"), "{output}");
}
