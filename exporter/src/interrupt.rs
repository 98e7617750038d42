//! Signals that end a command while it writes a file.

use std::fs;
use std::thread;

use anyhow::Context as _;
use gpucause_trace::unfinished_file;
use nix::sys::signal::{SigSet, Signal, raise};

/// From a terminal, from a service manager or a timeout, and when the terminal is closed.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Has these signals remove unfinished files before they end this process. To be called before there is another thread: all
/// threads leave the signals to one.
///
/// # Errors
/// When no thread can be started.
pub(super) fn remove_unfinished_files() -> anyhow::Result<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    let signals: SigSet = ENDING.into_iter().filter(|own| !has(ignored, *own)).collect();
    signals.thread_block().context("cannot block signals")?;
    let waiting = thread::Builder::new().name("signals".into()).spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        unfinished_file::remove_all();
        // Not caught any more, it ends the process as the shell expects it. Neither fails for signals that exist.
        let _ = signals.thread_unblock();
        let _ = raise(signal);
    });
    waiting.map(drop).context("cannot start a thread")
}

/// The signals that whoever started this process has it ignore, such as nohup: a thread that waits would receive them.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn has(mask: u64, signal: Signal) -> bool {
    mask >> (signal as u32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status_of_a_process() {
        let status =
            "Name:\tsh\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000001\nSigCgt:\t0\n";
        assert!(has(ignored(status), Signal::SIGHUP) && !has(ignored(status), Signal::SIGINT));
        assert!(has(ignored("SigIgn:\t0000000000004002"), Signal::SIGTERM));
        assert_eq!((ignored(""), ignored("SigIgn:\tx")), (0, 0));
    }
}
