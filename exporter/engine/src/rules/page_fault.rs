//! The victim waited for pages: of files, of swap, or for memory to be freed, which it does itself where a limit is reached.

use gpucause_abi::state::Reason;

use super::Rule;
use super::share::{Blocked, Blocking, MOST, OFF_CPU_ACCOUNTS, Words, blocked, lost_part};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

const WAIT: Blocked = Blocked {
    cause: Cause::PageFault,
    reason: Reason::PageFault,
    claim: |_, thread, _| lost_part(thread, &[Reason::PageFault]),
    mechanism: "page faults",
    state: "blocked in a page fault",
    words,
};

/// Memory is short only where a page had been in it, or comes from swap: the kernel knows those.
fn words(blocking: &Blocking) -> Words {
    match blocking {
        Blocking { server: Some(_), .. } => Words {
            by: "file system",
            sentence: "Page faults on mapped files of the file system that {server} serves took {taken_share|percent} of the last \
                       {window_seconds|seconds} of {comm} and explain {explained_share|percent} of its {effect}.",
            fix: "Copy the data to a local disk before the training, or read it ahead from another thread (MADV_POPULATE_READ).",
        },
        Blocking { file_share, .. } if *file_share >= MOST => Words {
            by: "mapped file",
            sentence: "Page faults took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explain \
                       {explained_share|percent} of its {effect}; {file_share|percent} of that time they read mapped files that were not in \
                       memory.",
            fix: "Read the file ahead from another thread (MADV_WILLNEED or MADV_POPULATE_READ), or read it with read() in loader workers.",
        },
        Blocking { .. } => Words {
            by: "memory",
            sentence: "Page faults and freeing memory for its pages took {taken_share|percent} of the last {window_seconds|seconds} of \
                       {comm} and explain {explained_share|percent} of its {effect}.",
            fix: "Give the job more memory, or have it drop from the page cache what it has read and written (posix_fadvise); where its pages \
                  are in swap, lock those that the thread uses (mlock). Check its cgroup for memory pressure.",
        },
    }
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::PageFault,
    reads: &OFF_CPU_ACCOUNTS,
    needs: "waits in page faults, time in which the thread frees memory for its pages, or for which the kernel holds it up above `memory.high`, are part of an effect",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    blocked(context, index, &WAIT)
}
