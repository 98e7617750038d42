//! The victim thread itself waited for a file: of a disk, or of a file system that a process or another host serves.

use gpucause_abi::state::Reason;

use super::Rule;
use super::share::{Blocked, Blocking, MOST, OFF_CPU_ACCOUNTS, Words, blocked, lost_part};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

const WAIT: Blocked = Blocked {
    cause: Cause::BlockIo,
    reason: Reason::Io,
    claim: |_, thread, _| lost_part(thread, &[Reason::Io]),
    mechanism: "reads and writes",
    state: "blocked on a file",
    words,
};

/// A device is named only where it was busy for the process: a network file system has none.
fn words(blocking: &Blocking) -> Words {
    match blocking {
        Blocking { server: Some(_), .. } => Words {
            by: "file system",
            sentence: "Waiting for files of the file system that {server} serves took {taken_share|percent} of the last \
                       {window_seconds|seconds} of {comm} and explains {explained_share|percent} of its {effect}.",
            fix: "Copy the data to a local disk before the training, look files up and read ahead in loader workers, or give the process that \
                  serves the file system more threads.",
        },
        Blocking { disk_share, .. } if *disk_share >= MOST => Words {
            by: "block device",
            sentence: "Disk I/O of the dispatcher thread took {taken_share|percent} of the last {window_seconds|seconds} of \
                       {comm} and explains {explained_share|percent} of its {effect}.[ Busiest disk of the process: {disk}, \
                       {disk_seconds|seconds} in {disk_requests|count} {disk_requests|request/requests}.]",
            fix: "Read ahead in another thread or in loader workers, move the data to a faster disk, and write checkpoints and logs from \
                  another thread.",
        },
        Blocking { .. } => Words {
            by: "file system",
            sentence: "Waiting for files took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
                       {explained_share|percent} of its {effect}; disks were busy with requests of the process itself for little of it: a \
                       network file system, a log of the file system or the writes of others look like that.\
                       [ Busiest disk of the process: {disk}, {disk_seconds|seconds} in {disk_requests|count} \
                       {disk_requests|request/requests}.]",
            fix: "Read ahead in another thread or in loader workers, copy the data to a local disk before the training, and write checkpoints \
                  and logs from another thread.",
        },
    }
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::BlockIo,
    reads: &OFF_CPU_ACCOUNTS,
    needs: "waits for files and block devices are part of an effect; a file system in user space by the process that serves it",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    blocked(context, index, &WAIT)
}
