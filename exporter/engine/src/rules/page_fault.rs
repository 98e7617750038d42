//! The victim waited for pages: of files that are not in memory, of swap, or for memory to be reclaimed.

use gpucause_abi::state::Reason;

use super::share::{best, lost};
use super::{Declaration, Rule, Window};
use crate::case::Scene;
use crate::chain::{Cause, Step};
use crate::finding::{Finding, name_of};
use crate::tell::tell;

pub(super) struct PageFault;

impl Rule for PageFault {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::PageFault,
            reads: &[
                "gpucause_cuda_call_offcpu_seconds_total",
                "gpucause_dispatcher_seconds_total",
            ],
            window: Window::Looks,
            needs: "waits in page faults explain the effect",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index)?;
        let (cause, reasons) = (Cause::PageFault, [Reason::PageFault]);
        let share = best(scene, subject, cause, |e| e.offcpu(&reasons), |_, t| lost(t, &reasons))?;
        let evidence = share.evidence();
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let sentence = "{comm} waited for pages that were not in memory: that is {explained_share|percent} of the time that \
                        is missing, and cost {lost_share|percent} of its time.";
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
                    from: "memory".into(),
                    to: victim.clone(),
                    mechanism: "page faults".into(),
                    seconds: share.time.as_secs_f64(),
                },
                Step {
                    from: victim,
                    to: share.effect.effect.label().into(),
                    mechanism: "blocked in a page fault".into(),
                    seconds: share.time.as_secs_f64(),
                },
            ],
            sentence: tell(sentence, &evidence, &[("comm", &comm)]),
            fix: "Give the job more memory, or lock or read in what the thread touches (mlock, MAP_POPULATE); look for memory pressure in its cgroup."
                .into(),
            evidence,
        })
    }
}
