//! Compiles libraries and programs of tests.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Compiles a source in C by the compiler that is installed.
pub(crate) fn compile(source: &str, output: &Path, options: &[&str]) -> Result<()> {
    let file = output.with_extension("c");
    fs::write(&file, source)?;
    let plain = ["-O1", "-w", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    // Functions begin as NVIDIA's do: without a landing pad, and leaves too with a frame.
    let begin: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &["-fcf-protection=none", "-mno-omit-leaf-frame-pointer"],
        false => &[],
    };
    let status = Command::new("cc")
        .args(plain)
        .args(begin)
        .args(options)
        .arg("-o")
        .args([output, &file])
        .arg("-ldl")
        .status()
        .context("cc must be installed")?;
    ensure!(status.success(), "{} cannot be compiled", file.display());
    Ok(())
}
