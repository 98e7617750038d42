//! The victim itself waited for a disk.

use gpucause_abi::state::Reason;

use super::share::{Blocked, OFF_CPU_ACCOUNTS, blocked, lost_part};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::Cause;
use crate::finding::Finding;

pub(super) struct BlockIo;

const TOLD: Blocked = Blocked {
    cause: Cause::BlockIo,
    reason: Reason::Io,
    claim: |_, thread, _| lost_part(thread, &[Reason::Io]),
    by: "block device",
    mechanism: "reads and writes",
    state: "blocked on a file",
    sentence: "{comm} waited for the disk in the thread that feeds the GPU: that is {explained_share|percent} of \
                        the time that is missing, and cost {lost_share|percent} of its time.",
    fix: "Read ahead in another thread or in loader workers, keep the data on a faster disk, and write checkpoints and logs from another thread.",
};

impl Rule for BlockIo {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::BlockIo,
            reads: &OFF_CPU_ACCOUNTS,
            window: Window::Looks,
            needs: "waits for files and block devices are part of an effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        blocked(scene, index, &TOLD)
    }
}
