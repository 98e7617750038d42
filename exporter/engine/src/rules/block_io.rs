//! The victim itself waited for a disk.

use gpucause_abi::state::Reason;

use super::share::{best, lost};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Step};
use crate::finding::{Finding, name_of};
use crate::tell::tell;

pub(super) struct BlockIo;

impl Rule for BlockIo {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::BlockIo,
            reads: &[
                "gpucause_cuda_call_offcpu_seconds_total",
                "gpucause_dispatcher_seconds_total",
            ],
            window: Window::Looks,
            needs: "waits for files and block devices explain the effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let (cause, reasons) = (Cause::BlockIo, [Reason::Io]);
        let share = best(scene, subject, cause, |e| e.offcpu(&reasons), |_, t| lost(t, &reasons))?;
        let evidence = share.evidence();
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "{comm} waited for the disk in the thread that feeds the GPU: that is {explained_share|percent} of \
                        the time that is missing, and cost {lost_share|percent} of its time.";
        Some(Finding {
            cause,
            effect: share.effect.effect,
            subject: index,
            tid: Some(share.tid),
            culprit: None,
            explained: share.explained,
            lost: share.lost,
            lost_share: share.lost_share,
            path: vec![
                Step {
                    from: "block device".into(),
                    to: victim.clone(),
                    mechanism: "reads and writes".into(),
                    seconds: share.time.as_secs_f64(),
                },
                Step {
                    from: victim,
                    to: share.effect.effect.label().into(),
                    mechanism: "blocked on a file".into(),
                    seconds: share.time.as_secs_f64(),
                },
            ],
            sentence: tell(sentence, &evidence, &[("comm", &comm)]),
            fix: "Read ahead in another thread or in loader workers, keep the data on a faster disk, and write checkpoints and logs from another thread."
                .into(),
            evidence,
        })
    }
}
