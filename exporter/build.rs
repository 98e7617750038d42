//! Tells the crate which revision and compiler it is built from.

use std::process::Command;

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The file that changes with every commit, and the one that tells which branch is checked out.
fn head_files() -> Vec<String> {
    let branch = output("git", &["symbolic-ref", "-q", "HEAD"]);
    [Some("HEAD".to_owned()), branch]
        .into_iter()
        .flatten()
        .filter_map(|name| output("git", &["rev-parse", "--git-path", &name]))
        .filter(|path| std::path::Path::new(path).exists())
        .collect()
}

fn main() {
    println!("cargo::rerun-if-env-changed=GPUCAUSE_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    for path in head_files() {
        println!("cargo::rerun-if-changed={path}");
    }
    let revision = std::env::var("GPUCAUSE_REVISION")
        .ok()
        .or_else(|| output("git", &["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=GPUCAUSE_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = output(&rustc, &["--version"])
        .and_then(|text| text.split_whitespace().nth(1).map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=GPUCAUSE_RUST_VERSION={version}");
}
