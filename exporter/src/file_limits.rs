//! Limits of the shell or the unit on files: how many may be open, and how large one may become.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};

/// Open files of the exporter without clients and libraries: maps, programs and what they are attached to.
const OF_PROGRAMS: u64 = 192;
/// Open files for each CPU: events of mappings and of clocks.
const OF_CPU: u64 = 2;

/// Raises the limit of open files as far as this process may, and lets a write that would exceed the limit of a file's size fail. To be
/// called while there is one thread.
pub fn lift() {
    // The usual soft limit of 1024 protects programs that use `select`, which this one does not.
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
    // It would end the process.
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    if let Err(error) = too_large.thread_block() {
        tracing::debug!(%error, "cannot block SIGXFSZ");
    }
}

/// Fewer files may be open than the probes need.
#[derive(Debug, thiserror::Error)]
#[error("{} - {}", Errno::EMFILE.desc(), how_to_open_more())]
pub struct TooFewFiles;

/// Reports too low a limit before programs are loaded one by one, and some are missing.
///
/// # Errors
/// When the limit is too low.
pub(crate) fn require() -> Result<(), TooFewFiles> {
    if limit() < needed() { Err(TooFewFiles) } else { Ok(()) }
}

fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

fn needed() -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    OF_PROGRAMS + OF_CPU * cpus
}

fn how_to_open_more() -> String {
    format!(
        "at most {} may be open, and an exporter needs some {}, and more for clients and libraries: raise LimitNOFILE of the unit, or ulimit -n",
        limit(),
        needed()
    )
}

/// Returns advice for an error with this text, if it is one of these limits.
pub(crate) fn advice(text: &str) -> Option<String> {
    if text.contains("LimitNOFILE") {
        return None;
    }
    if text.contains(Errno::EMFILE.desc()) {
        return Some(how_to_open_more());
    }
    let is_size = text.contains(Errno::EFBIG.desc());
    is_size.then(|| "raise LimitFSIZE of the unit, or ulimit -f".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn an_error_of_these_limits_says_which_to_raise() {
        let text = |error: &str| crate::failure::text(&anyhow!("{error}").context("cannot start"));
        let files = text("map procs: Too many open files");
        for part in ["Too many open files - ", "LimitNOFILE", "ulimit -n", "needs some "] {
            assert!(files.contains(part), "{files}");
        }
        assert!(text("File too large").ends_with("ulimit -f"));
        assert_eq!(advice("No such file or directory"), None);
    }
}
