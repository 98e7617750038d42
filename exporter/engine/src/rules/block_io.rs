//! The victim thread itself waited for a disk.

use gpucause_abi::state::Reason;

use super::Rule;
use super::share::{Blocked, OFF_CPU_ACCOUNTS, blocked, lost_part};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

const WAIT: Blocked = Blocked {
    cause: Cause::BlockIo,
    reason: Reason::Io,
    claim: |_, thread, _| lost_part(thread, &[Reason::Io]),
    by: "block device",
    mechanism: "reads and writes",
    state: "blocked on a file",
    sentence: "Disk I/O of the GPU-feeding thread explains {explained_share|percent} of the lost time of {comm} \
               ({lost_share|percent} of the last {window_seconds|seconds}).",
    fix: "Read ahead in another thread or in loader workers, move the data to a faster disk, and write checkpoints and logs from another thread.",
};

pub(super) const RULE: Rule = Rule {
    cause: Cause::BlockIo,
    reads: &OFF_CPU_ACCOUNTS,
    needs: "waits for files and block devices are part of an effect",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    blocked(context, index, &WAIT)
}
