//! The field's own packages decode exports here.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Returns the output of `decode.py` for a file.
pub(in crate::export) fn decoded(file: &[u8]) -> Value {
    let mut on_disk = tempfile::NamedTempFile::new().unwrap();
    on_disk.write_all(file).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/export/tests/decode.py");
    // The folder where `.ci/test` puts what Python needs; this is in `debug/deps` beside it.
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let mut python = Command::new("python3");
    python.arg(script).arg(on_disk.path());
    let output = python.env("PYTHONPATH", target.join("python")).output();
    let output = output.expect("python3 runs; `make test-tools` installs it");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "(`.ci/test` installs the packages) {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}
