//! Processes with mounts of their own, as in containers.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::caller::Caller;

impl Caller {
    /// Runs a shell script with arguments from `$0` on, in a mount namespace of its own; it ends in `exec` of the program.
    pub(crate) fn in_mount_namespace(script: &str, arguments: &[&PathBuf]) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
        Self::started_by(command.args(arguments))
    }

    /// The path by which others reach what the process has at a path.
    pub(crate) fn sees(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }
}
