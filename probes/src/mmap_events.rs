//! Watches executable mappings of all processes: `PERF_RECORD_MMAP2` of a dummy software event on each CPU. The only cost
//! to processes is writing the record.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use gpucause_abi::{Nanos, Tgid};
use thiserror::Error;

use crate::mapped::{Device, Mapping};
use crate::online_cpus::{ONLINE, online_cpus};
use crate::stop::poll_readable;

mod record;
mod ring;

use record::{Record, parse};
use ring::Ring;

/// Mappings cannot be watched.
#[derive(Debug, Error)]
pub enum MmapEventsError {
    /// The list of CPUs is missing.
    #[error("cannot read the online CPUs from {ONLINE}: {0}")]
    Cpus(#[source] io::Error),
    /// The kernel rejected the event on a CPU.
    #[error(
        "cannot watch executable mappings on CPU {0}: {1}; needs CAP_PERFMON, and CAP_SYS_ADMIN \
         while kernel.perf_event_paranoid is above 2, as Debian and Ubuntu have it"
    )]
    Open(u32, #[source] io::Error),
    /// The kernel rejected the event's buffer.
    #[error(
        "cannot map {bytes} bytes for the mapping events of CPU {cpu}: {source}; \
         raise kernel.perf_event_mlock_kb or grant CAP_IPC_LOCK"
    )]
    Map {
        /// The CPU.
        cpu: u32,
        /// Requested size.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no CPU to watch.
    #[error("no CPU is online")]
    NoCpu,
}

/// A new executable mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmapEvent {
    /// The process.
    pub tgid: Tgid,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// File offset, in bytes.
    pub offset: u64,
    /// Device of the file.
    pub device: Device,
    /// Inode of the file on that device.
    pub inode: u64,
    /// Path of the file, without the kernel's ` (deleted)`.
    pub path: PathBuf,
    /// True if the file was deleted.
    pub deleted: bool,
    /// Monotonic time.
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

/// The open events of all CPUs. CPUs that come online later are not watched.
#[derive(Debug)]
pub struct MmapEvents {
    rings: Vec<Ring>,
    lost: u64,
}

impl MmapEvents {
    /// Starts watching all online CPUs.
    ///
    /// # Errors
    /// When CAP_PERFMON (or CAP_SYS_ADMIN with Debian's or Ubuntu's patch of perf_event_open) or locked memory is missing.
    pub fn open() -> Result<Self, MmapEventsError> {
        let mut rings = Vec::new();
        for cpu in online_cpus().map_err(MmapEventsError::Cpus)? {
            rings.extend(Ring::open(cpu)?);
        }
        if rings.is_empty() {
            return Err(MmapEventsError::NoCpu);
        }
        Ok(Self { rings, lost: 0 })
    }

    /// Waits for events, a readable waker or the timeout; false on timeout.
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

    /// Takes all pending events: in order per CPU, unordered between CPUs.
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

    /// Events that did not fit the buffers.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
