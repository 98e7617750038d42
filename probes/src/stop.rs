//! A stop signal for threads that sleep in `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A sticky signal that wakes all sleepers.
#[derive(Debug)]
pub struct StopSignal {
    raised: AtomicBool,
    wake: EventFd,
}

impl StopSignal {
    /// Creates a signal that is not raised.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { raised: AtomicBool::new(false), wake: EventFd::from_value_and_flags(0, flags)? })
    }

    /// Raises the signal.
    pub fn stop(&self) {
        self.raised.store(true, Ordering::Release);
        // Fails only when the counter is full, and then every sleeper wakes anyway.
        let _ = self.wake.write(1);
    }

    /// Returns true once the signal has been raised.
    pub fn is_stopped(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Sleeps until the signal is raised or the timeout; true when raised.
    pub fn wait(&self, timeout: Duration) -> bool {
        // An interrupted sleep only ends early.
        let _ = poll_readable(&[self.wake.as_fd()], timeout);
        self.is_stopped()
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Sleeps until one of `fds` is readable or the timeout. An interrupted sleep counts as timeout.
pub(crate) fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_raised_signal_ends_every_later_sleep_at_once() {
        let signal = StopSignal::new().unwrap();
        assert!(!signal.wait(Duration::ZERO));
        signal.stop();
        signal.stop();
        let started = Instant::now();
        assert!(signal.wait(Duration::from_secs(60)));
        assert!(signal.wait(Duration::from_secs(60)));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_sleeper_wakes_when_another_thread_raises_the_signal() {
        let signal = StopSignal::new().unwrap();
        let started = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| signal.wait(Duration::from_secs(60)));
            signal.stop();
            assert!(sleeper.join().unwrap());
        });
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
