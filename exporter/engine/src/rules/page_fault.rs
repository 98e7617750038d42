//! The victim waited for pages: of files, of swap, or for memory to be reclaimed.

use gpucause_abi::state::Reason;

use super::Rule;
use super::share::{Blocked, OFF_CPU_ACCOUNTS, blocked, lost_part};
use crate::chain::Cause;
use crate::context::Context;
use crate::detection::Detection;

const WAIT: Blocked = Blocked {
    cause: Cause::PageFault,
    reason: Reason::PageFault,
    claim: |_, thread, _| lost_part(thread, &[Reason::PageFault]),
    by: "memory",
    mechanism: "page faults",
    state: "blocked in a page fault",
    sentence: "Page faults took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explain \
               {explained_share|percent} of its {effect}.",
    fix: "Give the job more memory, or prefault and lock the pages that the thread uses (mlock, MAP_POPULATE); check its cgroup for memory pressure.",
};

pub(super) const RULE: Rule = Rule {
    cause: Cause::PageFault,
    reads: &OFF_CPU_ACCOUNTS,
    needs: "waits in page faults are part of an effect",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    blocked(context, index, &WAIT)
}
