//! An `ioctl` that blocks, as the GPU driver's do: it receives a seccomp notification, which a helper thread raises by a
//! system call that its own filter singles out.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::futex;
use crate::waker::Waker;

/// The system call that the filter singles out; nothing else on the helper thread makes it.
const SIGNAL_CALL: libc::c_long = libc::SYS_getpriority;

/// Not a descriptor and not an error number.
const PENDING: i32 = i32::MIN;

pub(super) struct Ping {
    listener: OwnedFd,
    caller: Waker,
}

impl Ping {
    pub(super) fn new() -> io::Result<Self> {
        let descriptor = Arc::new((AtomicU32::new(0), AtomicI32::new(PENDING)));
        let shared = Arc::clone(&descriptor);
        let mut filtered = false;
        let caller = Waker::start("ioctl-waker", move || {
            if filtered {
                // SAFETY: the call takes two integers.
                unsafe { libc::syscall(SIGNAL_CALL, 0, 0) };
                return;
            }
            filtered = true;
            shared.1.store(listen(), Ordering::Relaxed);
            shared.0.store(1, Ordering::Release);
            futex::wake(&shared.0);
        })?;
        caller.wake_after(0);
        while descriptor.0.load(Ordering::Acquire) == 0 {
            futex::wait(&descriptor.0, 0, None);
        }
        let listener = super::owned(descriptor.1.load(Ordering::Relaxed)).map_err(|error| {
            io::Error::new(error.kind(), format!("seccomp notifications are refused: {error}"))
        })?;
        Ok(Self { listener, caller })
    }

    pub(super) fn wait(&self, ns: u64) -> io::Result<()> {
        // SAFETY: the structure is plain integers.
        let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        self.caller.wake_after(ns);
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, (&raw mut request).cast())?;
        let mut response = libc::seccomp_notif_resp {
            id: request.id,
            val: 0,
            error: 0,
            flags: u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1),
        };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, (&raw mut response).cast())
    }

    fn ioctl(&self, request: libc::Ioctl, argument: *mut libc::c_void) -> io::Result<()> {
        loop {
            // SAFETY: the argument is the structure that the request is defined for.
            if unsafe { libc::ioctl(self.listener.as_raw_fd(), request, argument) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Filters this thread; returns the descriptor of its notifications or a negative error number.
fn listen() -> i32 {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let code = |parts: u32| u16::try_from(parts).unwrap_or(0);
    let mut filter = [
        // The system call number is the first field of what the filter sees.
        statement(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0),
        libc::sock_filter {
            code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
            jt: 0,
            jf: 1,
            k: u32::try_from(SIGNAL_CALL).unwrap_or(u32::MAX),
        },
        statement(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_USER_NOTIF),
        statement(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the option takes integers; it concerns this thread only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program points to four instructions that live through the call.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if descriptor < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    }
    i32::try_from(descriptor).unwrap_or(-libc::EMFILE)
}
