//! Every executable mapping that is made on the host, as it is made: `PERF_RECORD_MMAP2` of a dummy software event on
//! each CPU. Costs the processes of the host nothing but the record.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use gpucause_abi::{Nanos, Tgid};
use thiserror::Error;

use crate::mapped::{Device, Mapping};
use crate::stop::poll_readable;

mod cpus;
mod record;
mod ring;

use record::{Record, parse};
use ring::Ring;

/// Why mappings cannot be watched.
#[derive(Debug, Error)]
pub enum MmapEventsError {
    /// The list of CPUs is missing.
    #[error("cannot read the online CPUs from {path}: {source}")]
    Cpus {
        /// Where it should be.
        path: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the event on a CPU.
    #[error(
        "cannot watch executable mappings on CPU {cpu}: {source}; needs CAP_PERFMON, and CAP_SYS_ADMIN \
         while kernel.perf_event_paranoid is above 2, as Debian and Ubuntu have it"
    )]
    Open {
        /// The CPU.
        cpu: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the buffer of a CPU's event.
    #[error(
        "cannot map {bytes} bytes for the mapping events of CPU {cpu}: {source}; \
         raise kernel.perf_event_mlock_kb or grant CAP_IPC_LOCK"
    )]
    Map {
        /// The CPU.
        cpu: u32,
        /// Size asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no CPU to watch.
    #[error("no CPU is online")]
    NoCpu,
}

/// A part of a file that a process has just mapped to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmapEvent {
    /// The process.
    pub tgid: Tgid,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Device of the file.
    pub device: Device,
    /// Inode of the file on that device.
    pub inode: u64,
    /// Path of the file, without the kernel's ` (deleted)`.
    pub path: PathBuf,
    /// Whether the path no longer leads to the file.
    pub deleted: bool,
    /// When, on the monotonic clock.
    pub at: Nanos,
}

impl From<MmapEvent> for Mapping {
    fn from(event: MmapEvent) -> Self {
        Self {
            start: event.start,
            end: event.start.saturating_add(event.len),
            offset: event.offset,
            device: event.device,
            inode: event.inode,
            path: event.path,
            deleted: event.deleted,
        }
    }
}

/// The open events of all CPUs. A CPU that comes online later is not watched.
#[derive(Debug)]
pub struct MmapEvents {
    rings: Vec<Ring>,
    lost: u64,
}

impl MmapEvents {
    /// Starts watching on every online CPU.
    ///
    /// # Errors
    /// When the kernel refuses for want of CAP_PERFMON, or of CAP_SYS_ADMIN where Debian's or Ubuntu's patch of
    /// perf_event_open asks for it, or of locked memory.
    pub fn open() -> Result<Self, MmapEventsError> {
        let mut rings = Vec::new();
        for cpu in cpus::online()? {
            rings.extend(Ring::open(cpu)?);
        }
        if rings.is_empty() {
            return Err(MmapEventsError::NoCpu);
        }
        Ok(Self { rings, lost: 0 })
    }

    /// Sleeps until there are events, one of `wakers` is readable or `timeout` is over; true unless it is over.
    ///
    /// # Errors
    /// When the process is out of memory.
    pub fn wait<'a>(
        &'a self,
        timeout: Duration,
        wakers: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<bool> {
        let fds: Vec<_> = self.rings.iter().map(AsFd::as_fd).chain(wakers).collect();
        poll_readable(&fds, timeout)
    }

    /// Hands over and removes all events that are there: in order for each CPU, in none between CPUs.
    pub fn drain(&mut self, mut each: impl FnMut(MmapEvent)) {
        for ring in &mut self.rings {
            let damaged = ring.drain(|kind, body| match parse(kind, body) {
                Some(Record::Mmap(event)) => each(event),
                Some(Record::Lost(count)) => self.lost = self.lost.saturating_add(count),
                None => {}
            });
            self.lost = self.lost.saturating_add(u64::from(damaged));
        }
    }

    /// Events that did not fit the buffers since the beginning.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
