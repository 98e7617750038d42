//! Which system calls block for which reason.

use crate::record::MAX_SYSCALLS;
use crate::state::Reason;

/// Set in a reason when the call's first argument is the descriptor that it waits on.
pub(crate) const FIRST_ARG_IS_FD: u8 = 0x80;
/// Set when the call asks a file system: if that ends the wait, it was for a file.
pub(crate) const ASKS_FILE_SYSTEM: u8 = 0x40;
/// Set when the call writes: it waits until a reader has made room.
pub(crate) const WRITES: u8 = 0x20;

/// The call wakes threads that wait on a futex.
pub(crate) const WAKES_FUTEX: u8 = 1;
/// The call wakes threads that wait on a descriptor.
pub(crate) const WAKES_FD: u8 = 2;
/// The call makes room for threads that write to a descriptor, and wakes a thread of the peer that reads the same socket. Programs make it so
/// often that interrupts come in it, too.
pub(crate) const MAKES_ROOM: u8 = 4;
/// Of no call: the task had the lock of the kernel that the thread waits for.
pub(crate) const HOLDS_LOCK: u8 = 8;

/// System calls that wake others, by what the others wait on. A thread that exits releases those that join it.
const WAKERS: [(u8, &[&str]); 3] = [
    (WAKES_FUTEX, &["futex", "futex_wake", "futex_requeue", "exit", "exit_group"]),
    (
        WAKES_FD,
        &[
            "write",
            "pwrite64",
            "writev",
            "pwritev",
            "pwritev2",
            "sendto",
            "sendmsg",
            "sendmmsg",
            "sendfile",
            "splice",
            "connect",
            "accept",
            "accept4",
            "close",
            "shutdown",
            "io_uring_enter",
        ],
    ),
    (MAKES_ROOM, &["read", "readv", "preadv2", "recvfrom", "recvmsg", "recvmmsg"]),
];

/// What every system-call number can wake, as `WAKES_` bits, given the number of each name on this architecture.
pub fn wakes_of_syscalls(number_of: impl Fn(&str) -> Option<usize>) -> [u8; MAX_SYSCALLS] {
    let mut wakes = [0; MAX_SYSCALLS];
    for (bit, names) in WAKERS {
        for number in names.iter().filter_map(|name| number_of(name)) {
            if let Some(entry) = wakes.get_mut(number) {
                *entry |= bit;
            }
        }
    }
    wakes
}

/// System calls on a descriptor that may be a file as well as a pipe or a socket.
const ON_ANY_FD: &[&str] = &[
    "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev",
    "pwritev2",
];
/// Those on a socket.
const ON_SOCKET: &[&str] = &[
    "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4",
    "connect",
];

/// System calls that a thread blocks in for a reason of its own, by name.
const SYSCALL_REASONS: &[(Reason, &[&str])] = &[
    (Reason::Futex, &["futex", "futex_waitv", "futex_wait", "futex_requeue"]),
    (
        Reason::Io,
        &[
            "read",
            "pread64",
            "readv",
            "preadv",
            "preadv2",
            "write",
            "pwrite64",
            "writev",
            "pwritev",
            "pwritev2",
            "fsync",
            "fdatasync",
            "sync",
            "syncfs",
            "sync_file_range",
            "msync",
            "sendfile",
            "splice",
            "copy_file_range",
            "fallocate",
            "readahead",
            "io_getevents",
            "io_pgetevents",
            "io_uring_enter",
            "io_submit",
            "io_destroy",
        ],
    ),
    (Reason::GpuDriver, &["ioctl"]),
    (
        Reason::Poll,
        &["poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"],
    ),
    (
        Reason::Poll,
        &[
            "pause",
            "rt_sigtimedwait",
            "rt_sigsuspend",
            "msgrcv",
            "mq_timedreceive",
            "semop",
            "semtimedop",
        ],
    ),
    (Reason::Sleep, &["nanosleep", "clock_nanosleep"]),
    (Reason::Child, &["wait4", "waitid", "fork", "vfork", "clone", "clone3"]),
];

/// System calls that ask a file system about names and files. One that waits for a disk says so itself.
const ON_FILES: &[&str] = &[
    "open",
    "openat",
    "openat2",
    "creat",
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents",
    "getdents64",
    "chdir",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "truncate",
    "ftruncate",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utimensat",
    "statfs",
    "fstatfs",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "llistxattr",
    "flistxattr",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "execve",
    "execveat",
];

/// Those that write to a descriptor or a socket.
const WRITERS: &[&str] =
    &["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg"];

/// The names of all system calls that these tables have.
pub fn classified_syscalls() -> impl Iterator<Item = &'static str> {
    let lists = [ON_ANY_FD, ON_SOCKET, ON_FILES, WRITERS].into_iter();
    let reasons = SYSCALL_REASONS.iter().map(|&(_, names)| names);
    lists.chain(reasons).chain(WAKERS.iter().map(|&(_, names)| names)).flatten().copied()
}

/// The reason of every system-call number, given the number of each name on this architecture; names that the
/// architecture does not have are passed over. `read`-like calls are [`Reason::Io`] with a flag that makes the switch
/// program inspect the descriptor: a wait on a pipe is [`Reason::Poll`], on a socket [`Reason::Net`].
pub fn reason_of_syscalls(number_of: impl Fn(&str) -> Option<usize>) -> [u8; MAX_SYSCALLS] {
    let mut reasons = [Reason::Other as u8; MAX_SYSCALLS];
    for (reason, names) in SYSCALL_REASONS {
        for number in names.iter().filter_map(|name| number_of(name)) {
            if let Some(entry) = reasons.get_mut(number) {
                *entry = *reason as u8;
            }
        }
    }
    let flagged = [
        (Reason::Io as u8 | FIRST_ARG_IS_FD, ON_ANY_FD),
        (Reason::Net as u8 | FIRST_ARG_IS_FD, ON_SOCKET),
        (Reason::Other as u8 | ASKS_FILE_SYSTEM, ON_FILES),
    ];
    for (flagged, names) in flagged {
        for number in names.iter().filter_map(|name| number_of(name)) {
            if let Some(entry) = reasons.get_mut(number) {
                *entry = flagged;
            }
        }
    }
    for number in WRITERS.iter().filter_map(|name| number_of(name)) {
        if let Some(entry) = reasons.get_mut(number) {
            *entry |= WRITES;
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_other() {
        let reasons = reason_of_syscalls(|name| (name == "futex").then_some(202));
        assert_eq!(reasons[202], Reason::Futex as u8);
        assert_eq!(reasons.iter().filter(|&&r| r != Reason::Other as u8).count(), 1);
    }

    #[test]
    fn those_that_write_say_so_beside_their_reason() {
        let reasons = reason_of_syscalls(|name| match name {
            "read" => Some(0),
            "write" => Some(1),
            "openat" => Some(2),
            _ => None,
        });
        assert_eq!(reasons[0], Reason::Io as u8 | FIRST_ARG_IS_FD);
        assert_eq!(reasons[1], Reason::Io as u8 | FIRST_ARG_IS_FD | WRITES);
        assert_eq!(reasons[2], Reason::Other as u8 | ASKS_FILE_SYSTEM);
        assert!(Reason::COUNT <= usize::from(WRITES), "reasons and flags share a byte");
    }

    #[test]
    fn numbers_beyond_the_table_are_left_out() {
        let reasons = reason_of_syscalls(|_| Some(MAX_SYSCALLS));
        assert!(reasons.iter().all(|&r| r == Reason::Other as u8));
    }
}
