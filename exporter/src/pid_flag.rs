//! Values of `--pid`. Whether a PID is still that of the same process is asked in `process_identity.rs` of `gpucause-observe`.

use std::fs;

use anyhow::{anyhow, bail};
use nix::errno::Errno;
use procfs::process::Stat;
use procfs::{FromRead as _, ProcError};

/// Parses a PID.
pub(crate) fn parse(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(
        |_| "expected a number, the PID of a process; `gpucause top` and `ps -e` list them",
    )
}

/// Refuses a PID that no process of this host has; threads have numbers too.
pub(crate) fn require_process(pid: u32) -> anyhow::Result<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status =
        status.map_err(|_| anyhow!("no process has PID {pid} - see ps -e, or leave --pid out"))?;
    let process: Option<u32> =
        status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    match process {
        Some(process) if process != pid => {
            bail!("{pid} is a thread of process {process} - use --pid {process}")
        }
        _ => Ok(()),
    }
}

/// Returns true if a process has this PID and has not ended. A zombie has ended, unless only its main thread has ended.
pub(crate) fn has_not_ended(pid: u32) -> bool {
    match Stat::from_file(format!("/proc/{pid}/stat")) {
        Ok(stat) => !matches!(stat.state, 'Z' | 'X') || stat.num_threads > 1,
        Err(ProcError::NotFound(_)) => false,
        // It ended while the file was read.
        Err(ProcError::Io(error, _)) => error.raw_os_error() != Some(Errno::ESRCH as i32),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_pid() {
        assert_eq!(parse("4242"), Ok(4242));
        assert!(parse("train.py").unwrap_err().contains("gpucause top"));
    }

    #[test]
    fn a_pid_without_a_process_is_refused_and_that_of_a_process_is_not() {
        let missing = require_process(u32::MAX).unwrap_err().to_string();
        assert!(missing.contains("no process has PID"), "{missing}");
        require_process(std::process::id()).unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_not_running_even_before_it_is_reaped() {
        assert!(has_not_ended(std::process::id()) && !has_not_ended(u32::MAX));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let begin = std::time::Instant::now();
        while has_not_ended(child.id()) {
            assert!(begin.elapsed().as_secs() < 10);
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
