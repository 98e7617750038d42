//! The victim waited for pages: of files that are not in memory, of swap, or for memory to be reclaimed.

use gpucause_abi::state::Reason;

use super::share::{Blocked, OFF_CPU_ACCOUNTS, blocked, lost_part};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::Cause;
use crate::finding::Finding;

pub(super) struct PageFault;

const TOLD: Blocked = Blocked {
    cause: Cause::PageFault,
    reason: Reason::PageFault,
    claim: |_, thread, _| lost_part(thread, &[Reason::PageFault]),
    by: "memory",
    mechanism: "page faults",
    state: "blocked in a page fault",
    sentence: "{comm} waited for pages that were not in memory: that is {explained_share|percent} of the time that \
                        is missing, and cost {lost_share|percent} of its time.",
    fix: "Give the job more memory, or lock or read in what the thread touches (mlock, MAP_POPULATE); look for memory pressure in its cgroup.",
};

impl Rule for PageFault {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::PageFault,
            reads: &OFF_CPU_ACCOUNTS,
            window: Window::Looks,
            needs: "waits in page faults are part of an effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        blocked(scene, index, &TOLD)
    }
}
