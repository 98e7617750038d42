//! Numbers of the system calls that the programs classify, for this architecture.

use std::ffi::c_long;

/// Those that all architectures have.
const NUMBERS: &[(&str, c_long)] = &[
    ("read", libc::SYS_read),
    ("pread64", libc::SYS_pread64),
    ("readv", libc::SYS_readv),
    ("preadv", libc::SYS_preadv),
    ("preadv2", libc::SYS_preadv2),
    ("write", libc::SYS_write),
    ("pwrite64", libc::SYS_pwrite64),
    ("writev", libc::SYS_writev),
    ("pwritev", libc::SYS_pwritev),
    ("pwritev2", libc::SYS_pwritev2),
    ("fsync", libc::SYS_fsync),
    ("fdatasync", libc::SYS_fdatasync),
    ("sync", libc::SYS_sync),
    ("syncfs", libc::SYS_syncfs),
    ("sync_file_range", libc::SYS_sync_file_range),
    ("msync", libc::SYS_msync),
    ("sendfile", libc::SYS_sendfile),
    ("splice", libc::SYS_splice),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("fallocate", libc::SYS_fallocate),
    ("readahead", libc::SYS_readahead),
    ("io_getevents", libc::SYS_io_getevents),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_submit", libc::SYS_io_submit),
    ("io_destroy", libc::SYS_io_destroy),
    ("exit", libc::SYS_exit),
    ("exit_group", libc::SYS_exit_group),
    ("close", libc::SYS_close),
    ("shutdown", libc::SYS_shutdown),
    ("futex", libc::SYS_futex),
    ("futex_waitv", libc::SYS_futex_waitv),
    ("ioctl", libc::SYS_ioctl),
    ("ppoll", libc::SYS_ppoll),
    ("pselect6", libc::SYS_pselect6),
    ("epoll_pwait", libc::SYS_epoll_pwait),
    ("epoll_pwait2", libc::SYS_epoll_pwait2),
    ("recvfrom", libc::SYS_recvfrom),
    ("recvmsg", libc::SYS_recvmsg),
    ("recvmmsg", libc::SYS_recvmmsg),
    ("sendto", libc::SYS_sendto),
    ("sendmsg", libc::SYS_sendmsg),
    ("sendmmsg", libc::SYS_sendmmsg),
    ("accept", libc::SYS_accept),
    ("accept4", libc::SYS_accept4),
    ("connect", libc::SYS_connect),
    ("nanosleep", libc::SYS_nanosleep),
    ("clock_nanosleep", libc::SYS_clock_nanosleep),
    ("openat", libc::SYS_openat),
    ("openat2", libc::SYS_openat2),
    ("fstat", libc::SYS_fstat),
    ("newfstatat", libc::SYS_newfstatat),
    ("statx", libc::SYS_statx),
    ("faccessat", libc::SYS_faccessat),
    ("faccessat2", libc::SYS_faccessat2),
    ("readlinkat", libc::SYS_readlinkat),
    ("getdents64", libc::SYS_getdents64),
    ("chdir", libc::SYS_chdir),
    ("mkdirat", libc::SYS_mkdirat),
    ("unlinkat", libc::SYS_unlinkat),
    ("renameat2", libc::SYS_renameat2),
    ("linkat", libc::SYS_linkat),
    ("symlinkat", libc::SYS_symlinkat),
    ("truncate", libc::SYS_truncate),
    ("ftruncate", libc::SYS_ftruncate),
    ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchown", libc::SYS_fchown),
    ("fchownat", libc::SYS_fchownat),
    ("utimensat", libc::SYS_utimensat),
    ("statfs", libc::SYS_statfs),
    ("fstatfs", libc::SYS_fstatfs),
    ("getxattr", libc::SYS_getxattr),
    ("lgetxattr", libc::SYS_lgetxattr),
    ("fgetxattr", libc::SYS_fgetxattr),
    ("listxattr", libc::SYS_listxattr),
    ("llistxattr", libc::SYS_llistxattr),
    ("flistxattr", libc::SYS_flistxattr),
    ("setxattr", libc::SYS_setxattr),
    ("lsetxattr", libc::SYS_lsetxattr),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("rt_sigtimedwait", libc::SYS_rt_sigtimedwait),
    ("rt_sigsuspend", libc::SYS_rt_sigsuspend),
    ("msgrcv", libc::SYS_msgrcv),
    ("mq_timedreceive", libc::SYS_mq_timedreceive),
    ("semop", libc::SYS_semop),
    ("semtimedop", libc::SYS_semtimedop),
    ("wait4", libc::SYS_wait4),
    ("waitid", libc::SYS_waitid),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    // Not in the libc crate for every architecture; numbers from 424 up are the same on all.
    ("futex_wake", 454),
    ("futex_wait", 455),
    ("futex_requeue", 456),
];

#[cfg(target_arch = "x86_64")]
const OWN_NUMBERS: &[(&str, c_long)] = &[
    ("io_pgetevents", 333),
    ("poll", libc::SYS_poll),
    ("select", libc::SYS_select),
    ("epoll_wait", libc::SYS_epoll_wait),
    ("open", libc::SYS_open),
    ("creat", libc::SYS_creat),
    ("stat", libc::SYS_stat),
    ("lstat", libc::SYS_lstat),
    ("access", libc::SYS_access),
    ("readlink", libc::SYS_readlink),
    ("getdents", libc::SYS_getdents),
    ("mkdir", libc::SYS_mkdir),
    ("rmdir", libc::SYS_rmdir),
    ("unlink", libc::SYS_unlink),
    ("rename", libc::SYS_rename),
    ("link", libc::SYS_link),
    ("symlink", libc::SYS_symlink),
    ("chmod", libc::SYS_chmod),
    ("chown", libc::SYS_chown),
    ("lchown", libc::SYS_lchown),
    ("pause", libc::SYS_pause),
    ("fork", libc::SYS_fork),
    ("vfork", libc::SYS_vfork),
    ("renameat", libc::SYS_renameat),
];
#[cfg(target_arch = "aarch64")]
const OWN_NUMBERS: &[(&str, c_long)] = &[("io_pgetevents", 292)];

/// The number of a system call; `None` if the architecture lacks it.
pub(crate) fn syscall_number(name: &str) -> Option<usize> {
    let (_, number) = NUMBERS.iter().chain(OWN_NUMBERS).find(|(own, _)| *own == name)?;
    usize::try_from(*number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn each_system_call_that_is_classified_has_a_number() {
        let without =
            gpucause_abi::classified_syscalls().filter(|name| syscall_number(name).is_none());
        assert_eq!(without.collect::<Vec<_>>(), [""; 0]);
    }
}
