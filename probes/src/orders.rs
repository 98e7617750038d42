//! What is wanted of the probes while they run, told to the thread that attaches them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// How the probes are to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wanted {
    /// Whether there are to be any.
    pub(crate) enabled: bool,
    /// Share of a thread's time that they may take.
    pub(crate) budget: Option<f64>,
}

/// The last order, and a bell.
#[derive(Debug)]
pub(crate) struct Orders {
    wanted: Mutex<Wanted>,
    bell: EventFd,
}

impl Orders {
    pub(crate) fn new(wanted: Wanted) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { wanted: Mutex::new(wanted), bell: EventFd::from_value_and_flags(0, flags)? })
    }

    /// Changes what is wanted, and rings.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted());
        // Fails only when the counter is full, and then it rings anyway.
        let _ = self.bell.write(1);
    }

    /// What is wanted now; the bell stops.
    pub(crate) fn heed(&self) -> Wanted {
        match self.bell.read() {
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => tracing::debug!(%error, "the bell does not stop"),
        }
        *self.wanted()
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
