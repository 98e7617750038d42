//! The desired state of the probes, handed to the thread that applies it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

/// The desired state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DesiredState {
    /// True while probes are attached.
    pub(crate) enabled: bool,
    /// Share of a thread's time that call probes may take.
    pub(crate) budget: Option<f64>,
    /// Share of a thread's time that call probes may take while calls are only counted as far as they can be.
    pub(crate) counting_limit: f64,
}

/// The latest desired state, and an event that wakes its reader.
#[derive(Debug)]
pub(crate) struct DesiredStateCell {
    state: Mutex<DesiredState>,
    event: EventFd,
}

impl DesiredStateCell {
    pub(crate) fn new(state: DesiredState) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { state: Mutex::new(state), event: EventFd::from_value_and_flags(0, flags)? })
    }

    /// Changes the desired state and wakes the reader.
    pub(crate) fn update(&self, update: impl FnOnce(&mut DesiredState)) {
        update(&mut self.state.lock());
        // Fails only when the counter is full, and then the reader wakes anyway.
        let _ = self.event.write(1);
    }

    /// Returns the desired state and clears the event.
    pub(crate) fn latest(&self) -> DesiredState {
        match self.event.read() {
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => tracing::debug!(%error, "cannot clear the event"),
        }
        *self.state.lock()
    }
}

impl AsFd for DesiredStateCell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
