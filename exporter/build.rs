//! Gives the crate its revision, its compiler, and the names of the rules for Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
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

/// Folders with rules, beside this one.
const RULES: [&str; 2] = ["rules", "alerts"];

/// The names of recording rules and alerts in a file, without those of its other settings.
fn rule_names(text: &str) -> BTreeSet<&str> {
    let rules = text.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    let name = |rule| {
        let name = str::strip_prefix(rule, "record: ").or_else(|| rule.strip_prefix("alert: "));
        name.map(str::trim)
    };
    rules.filter_map(name).collect()
}

/// Writes a table of each file of rules and its names, which `gpucause check` expects in Prometheus.
fn write_rule_names() -> std::io::Result<()> {
    let mut table = String::from("&[\n");
    for folder in RULES {
        let path = Path::new("..").join(folder);
        println!("cargo::rerun-if-changed={}", path.display());
        let entries = fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>()?;
        let files: BTreeSet<_> = entries.iter().map(fs::DirEntry::path).collect();
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
            let text = fs::read_to_string(file)?;
            let name = file.file_name().unwrap_or_default();
            // Where native histograms are stored, another file is loaded in place of this one.
            let native = fs::read_to_string(path.join("native").join(name)).ok();
            let native = native.as_deref().map(rule_names);
            let is_in_both = |name: &&str| native.as_ref().is_none_or(|names| names.contains(name));
            let names: Vec<_> = rule_names(&text).into_iter().filter(is_in_both).collect();
            if !names.is_empty() {
                let file = format!("{folder}/{}", name.display());
                table.push_str(&format!("    ({file:?}, &{names:?}),\n"));
            }
        }
    }
    table.push_str("]\n");
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("rule_names.rs"), table)
}

fn main() -> std::io::Result<()> {
    write_rule_names()?;
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
    Ok(())
}
