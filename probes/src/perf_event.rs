//! Software events of the kernel's perf subsystem, one on each CPU.

use std::io;
use std::mem::offset_of;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use nix::libc;

/// The Linux 5.0 part of `struct perf_event_attr`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct EventAttr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    /// Or the frequency.
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup_watermark: u32,
    pub(crate) bp_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) sample_regs_user: u64,
    pub(crate) sample_stack_user: u32,
    pub(crate) clockid: i32,
    pub(crate) sample_regs_intr: u64,
    pub(crate) aux_watermark: u32,
    pub(crate) sample_max_stack: u16,
    pub(crate) reserved: u16,
}

const _: () = assert!(size_of::<EventAttr>() == 112 && offset_of!(EventAttr, clockid) == 92);

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

impl EventAttr {
    /// Returns the attributes of a software event, with nothing set.
    pub(crate) fn software() -> Self {
        Self { kind: PERF_TYPE_SOFTWARE, size: size_of::<Self>() as u32, ..Self::default() }
    }
}

/// Opens an event of all tasks on a CPU.
pub(crate) fn open_on_cpu(attr: &EventAttr, cpu: u32) -> io::Result<OwnedFd> {
    let cpu = libc::c_int::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (all_processes, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
    // SAFETY: the kernel reads `attr.size` bytes of a valid structure and keeps no reference to it.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            all_processes,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let event = RawFd::try_from(event).unwrap_or(-1);
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}
