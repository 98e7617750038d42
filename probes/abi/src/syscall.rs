//! Which system calls block for which reason.

use std::str::FromStr as _;

use syscalls::Sysno;

use crate::record::MAX_SYSCALLS;
use crate::state::Reason;

/// A system call of this architecture, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Syscall(&'static str);

impl Syscall {
    /// The one of a number; `None` if the architecture has none.
    pub fn from_number(number: usize) -> Option<Self> {
        Sysno::new(number).map(|own| Self(own.name()))
    }

    /// The one of a name; `None` if the architecture has none.
    pub fn from_name(name: &str) -> Option<Self> {
        Sysno::from_str(name).ok().map(|own| Self(own.name()))
    }

    /// Its name, as in the kernel's table.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// The number of a system call; `None` if the architecture lacks it.
fn number_of(name: &str) -> Option<usize> {
    // One call has two names.
    let own = if cfg!(target_arch = "aarch64") && name == "newfstatat" { "fstatat" } else { name };
    usize::try_from(Sysno::from_str(own).ok()?.id()).ok()
}

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
/// The call reads: it makes room for who writes to the same pipe or socket, and wakes who reads the same socket. Programs are in such calls so
/// often that interrupts come there, too.
pub(crate) const MAKES_ROOM: u8 = 4;
/// No call has this bit: the task had the lock of the kernel that the thread waits for.
pub(crate) const HOLDS_LOCK: u8 = 8;

/// The call releases a lock of a file.
pub(crate) const RELEASES_FILE_LOCK: u8 = 0x20;

/// System calls that wake others, by what the others wait on. A thread that exits releases those that join it.
const WAKERS: [(u8, &[&str]); 4] = [
    (
        RELEASES_FILE_LOCK,
        &["flock", "fcntl", "close", "close_range", "dup2", "dup3", "execve", "exit", "exit_group"],
    ),
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
    (MAKES_ROOM, &["read", "readv", "preadv2", "recvfrom", "recvmsg", "recvmmsg", "splice"]),
];

/// Returns for every system-call number what the call can wake, as `WAKES_` bits.
pub fn wakes_of_syscalls() -> [u8; MAX_SYSCALLS] {
    let mut wakes = [0; MAX_SYSCALLS];
    for (bit, names) in WAKERS {
        for number in names.iter().copied().filter_map(number_of) {
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
/// System calls on a socket.
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

/// System calls that write to descriptors or sockets.
const WRITERS: &[&str] =
    &["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg"];

/// The reason of every system-call number. Names that the architecture does not have are passed over. `read`-like calls are
/// [`Reason::Io`] with a flag that makes the switch program inspect the descriptor: a wait on a pipe is [`Reason::Poll`], on a
/// socket [`Reason::Net`].
pub fn reason_of_syscalls() -> [u8; MAX_SYSCALLS] {
    let mut reasons = [Reason::Other as u8; MAX_SYSCALLS];
    for (reason, names) in SYSCALL_REASONS {
        for number in names.iter().copied().filter_map(number_of) {
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
        for number in names.iter().copied().filter_map(number_of) {
            if let Some(entry) = reasons.get_mut(number) {
                *entry = flagged;
            }
        }
    }
    for number in WRITERS.iter().copied().filter_map(number_of) {
        if let Some(entry) = reasons.get_mut(number) {
            *entry |= WRITES;
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that the tables name.
    fn classified() -> impl Iterator<Item = &'static str> {
        let lists = [ON_ANY_FD, ON_SOCKET, ON_FILES, WRITERS].into_iter();
        let reasons = SYSCALL_REASONS.iter().map(|&(_, names)| names);
        lists.chain(reasons).chain(WAKERS.iter().map(|&(_, names)| names)).flatten().copied()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn each_system_call_that_is_classified_has_a_number() {
        let without = classified().filter(|name| number_of(name).is_none());
        assert_eq!(without.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn all_numbers_are_in_the_table() {
        assert!(classified().filter_map(number_of).all(|number| number < MAX_SYSCALLS));
    }

    #[test]
    fn what_no_table_has_is_other() {
        let others = ["getpid", "brk"].map(|name| reason_of_syscalls()[number_of(name).unwrap()]);
        assert_eq!(others, [Reason::Other as u8; 2]);
        assert_eq!(reason_of_syscalls()[MAX_SYSCALLS - 1], Reason::Other as u8);
    }

    #[test]
    fn those_that_write_say_so_beside_their_reason() {
        let reasons = reason_of_syscalls();
        let of = |name| reasons[number_of(name).unwrap()];
        assert_eq!(of("futex"), Reason::Futex as u8);
        assert_eq!(of("read"), Reason::Io as u8 | FIRST_ARG_IS_FD);
        assert_eq!(of("write"), Reason::Io as u8 | FIRST_ARG_IS_FD | WRITES);
        assert_eq!(of("openat"), Reason::Other as u8 | ASKS_FILE_SYSTEM);
        assert!(Reason::COUNT <= usize::from(WRITES), "reasons and flags share a byte");
    }

    #[test]
    fn a_system_call_is_the_same_by_number_and_by_name() {
        let futex = Syscall::from_name("futex").unwrap();
        assert_eq!(Syscall::from_number(number_of("futex").unwrap()), Some(futex));
        assert_eq!(futex.name(), "futex");
        assert_eq!(Syscall::from_name("no_such_call"), None);
        assert_eq!(Syscall::from_number(usize::MAX), None);
    }
}
