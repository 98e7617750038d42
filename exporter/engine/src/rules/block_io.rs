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
    sentence: "Disk I/O of the dispatcher thread took {taken_share|percent} of the last {window_seconds|seconds} of \
               {comm} and explains {explained_share|percent} of its {effect}.[ Busiest disk of the process: {disk}, \
               {disk_seconds|seconds} in {disk_requests|count} {disk_requests|request/requests}.]",
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
    let mut detection = blocked(context, index, &WAIT)?;
    let process = context.processes.get(index)?;
    let effect = process.effects.iter().find(|effect| effect.effect == detection.effect);
    if let Some(disk) = effect.and_then(|effect| effect.delta(process).busiest_disk()) {
        let name = disk.device.to_text();
        detection.evidence = detection
            .evidence
            .with("disk_seconds", disk.time.as_secs_f64())
            .with("disk_requests", disk.requests as f64);
        detection.sentence = detection.sentence.and("disk", Some(&name));
    }
    Some(detection)
}
