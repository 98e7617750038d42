//! Numbers of the system calls that the programs classify, for this architecture.

/// The number of a system call; `None` if the architecture lacks it.
pub(crate) fn syscall_number(name: &str) -> Option<usize> {
    let number = match name {
        "read" => libc::SYS_read,
        "pread64" => libc::SYS_pread64,
        "readv" => libc::SYS_readv,
        "preadv" => libc::SYS_preadv,
        "preadv2" => libc::SYS_preadv2,
        "write" => libc::SYS_write,
        "pwrite64" => libc::SYS_pwrite64,
        "writev" => libc::SYS_writev,
        "pwritev" => libc::SYS_pwritev,
        "pwritev2" => libc::SYS_pwritev2,
        "fsync" => libc::SYS_fsync,
        "fdatasync" => libc::SYS_fdatasync,
        "sync" => libc::SYS_sync,
        "syncfs" => libc::SYS_syncfs,
        "sync_file_range" => libc::SYS_sync_file_range,
        "msync" => libc::SYS_msync,
        "sendfile" => libc::SYS_sendfile,
        "splice" => libc::SYS_splice,
        "copy_file_range" => libc::SYS_copy_file_range,
        "fallocate" => libc::SYS_fallocate,
        "readahead" => libc::SYS_readahead,
        "io_getevents" => libc::SYS_io_getevents,
        "io_uring_enter" => libc::SYS_io_uring_enter,
        "io_submit" => libc::SYS_io_submit,
        "io_destroy" => libc::SYS_io_destroy,
        "exit" => libc::SYS_exit,
        "exit_group" => libc::SYS_exit_group,
        "close" => libc::SYS_close,
        "shutdown" => libc::SYS_shutdown,
        "futex" => libc::SYS_futex,
        "futex_waitv" => libc::SYS_futex_waitv,
        "ioctl" => libc::SYS_ioctl,
        "ppoll" => libc::SYS_ppoll,
        "pselect6" => libc::SYS_pselect6,
        "epoll_pwait" => libc::SYS_epoll_pwait,
        "epoll_pwait2" => libc::SYS_epoll_pwait2,
        "recvfrom" => libc::SYS_recvfrom,
        "recvmsg" => libc::SYS_recvmsg,
        "recvmmsg" => libc::SYS_recvmmsg,
        "sendto" => libc::SYS_sendto,
        "sendmsg" => libc::SYS_sendmsg,
        "sendmmsg" => libc::SYS_sendmmsg,
        "accept" => libc::SYS_accept,
        "accept4" => libc::SYS_accept4,
        "connect" => libc::SYS_connect,
        "nanosleep" => libc::SYS_nanosleep,
        "clock_nanosleep" => libc::SYS_clock_nanosleep,
        // Not in the libc crate for every architecture; numbers from 424 up are the same on all.
        #[cfg(target_arch = "x86_64")]
        "io_pgetevents" => 333,
        #[cfg(target_arch = "aarch64")]
        "io_pgetevents" => 292,
        "futex_wake" => 454,
        "futex_wait" => 455,
        "futex_requeue" => 456,
        #[cfg(target_arch = "x86_64")]
        "poll" => libc::SYS_poll,
        #[cfg(target_arch = "x86_64")]
        "select" => libc::SYS_select,
        #[cfg(target_arch = "x86_64")]
        "epoll_wait" => libc::SYS_epoll_wait,
        _ => return None,
    };
    usize::try_from(number).ok()
}
