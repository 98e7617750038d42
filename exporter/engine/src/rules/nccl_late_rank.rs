//! One rank of a job comes late to the collectives, and the others of this host wait for it.
//!
//! Seen on one host only when it runs several ranks. The ranks that wait spend their time in collectives and in waiting for
//! the GPU; the late one does not, and what it did instead is in its own account.

use std::collections::HashSet;

use gpucause_abi::Nanos;
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::Phase;

use super::share::MOST;
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Culprit, Effect, Evidence, Step};
use crate::delta::ThreadDelta;
use crate::divide::{at_most, part};
use crate::effect::{ratio, total};
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct NcclLateRank;

/// The time in which a rank waits for others: in collectives, and for the GPU that is in them.
fn in_collectives(thread: &ThreadDelta) -> TimeAccount {
    part(&thread.time, |phase, _| matches!(phase, Phase::Nccl | Phase::Sync))
}

fn waiting(thread: &ThreadDelta) -> Nanos {
    total([Phase::Nccl, Phase::Sync].iter().map(|&phase| thread.in_phase(phase)))
}

/// Share of its time that a rank's thread waits for others, and the thread.
fn wait_of<'a>(subject: &'a Subject<'_>) -> Option<(f64, &'a ThreadDelta)> {
    let in_collectives = subject.short.threads().iter().filter(|t| t.in_phase(Phase::Nccl).0 > 0);
    let thread = in_collectives.max_by_key(|thread| thread.in_phase(Phase::Nccl))?;
    Some((ratio(waiting(thread), thread.wall), thread))
}

/// By how much the calls of ranks that meet differ at most: the first looks may come in the middle of a step.
const SAME_CALLS: f64 = 0.9;

/// Calls of NCCL since it is observed.
fn collectives(subject: &Subject<'_>) -> u64 {
    let of_nccl = |id: OpId| id.op().is_some_and(|op| op.class.phase() == Phase::Nccl);
    let calls = subject.now.calls.iter().filter(|call| !call.nested && of_nccl(call.op));
    calls.map(|call| call.durations.count()).fold(0, u64::saturating_add)
}

/// Whether they may be of one communicator, whose ranks make the same calls. A rank that was given by a launcher, or the host's
/// part of a larger job, tells no more than a number.
fn meet(ranks: &[(f64, &Subject<'_>, &ThreadDelta)]) -> bool {
    let calls = || ranks.iter().map(|(_, subject, _)| collectives(subject));
    let (least, most) = (calls().min().unwrap_or(0), calls().max().unwrap_or(0));
    least as f64 >= most as f64 * SAME_CALLS
}

impl Rule for NcclLateRank {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::NcclLateRank,
            reads: &["gpucause_dispatcher_seconds_total", "gpucause_process_info"],
            window: Window::Looks,
            needs: "all other ranks of the job on this host wait in collectives for longer than this one, by the share of \
                    severity medium, all make the same number of NCCL calls, and the late rank's own time explains it",
        }
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let victim = scene.subjects.get(index)?;
        let (_, world) = victim.now.rank.filter(|&(_, world)| world > 1)?;
        let settings = scene.settings;
        let same_job = |subject: &&Subject<'_>| {
            subject.now.rank.is_some_and(|(_, ranks)| ranks == world) && subject.now.ended.is_none()
        };
        // A rank that is there twice tells of two jobs, which wait for each other as little as for anybody.
        let numbers = || scene.subjects.iter().filter(same_job).filter_map(|s| s.now.rank);
        if numbers().collect::<HashSet<_>>().len() != numbers().count() {
            return None;
        }
        let mut ranks: Vec<_> = scene
            .subjects
            .iter()
            .filter(same_job)
            .filter_map(|subject| wait_of(subject).map(|(share, thread)| (share, subject, thread)))
            .collect();
        if !meet(&ranks) {
            return None;
        }
        ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [(late_share, late, late_thread), rest @ ..] = ranks.as_slice() else { return None };
        // The next quickest waits for nobody but the late one.
        let (next_share, ..) = rest.first()?;
        let (own_share, _, own_thread) =
            rest.iter().find(|(_, subject, _)| subject.now.id == victim.now.id)?;
        let lost_share = own_share - late_share;
        let rule = settings.rule(Cause::NcclLateRank);
        let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
        if next_share - late_share < least || lost_share < least {
            return None;
        }
        let late_busy = Nanos(late_thread.wall.less(waiting(late_thread)).0);
        let attributed = own_thread.wall.share(lost_share);
        let explained = ratio(late_busy.min(attributed), attributed);
        if explained < rule.explained_share.unwrap_or(MOST) {
            return None;
        }
        let (late_rank, _) = late.now.rank?;
        let (rank, _) = victim.now.rank?;
        let evidence = Evidence::default()
            .with("rank", f64::from(rank))
            .with("late_rank", f64::from(late_rank))
            .with("world_size", f64::from(world))
            .with("waiting_share", *own_share)
            .with("late_rank_waiting_share", *late_share)
            .with("late_rank_busy_seconds", late_busy.as_secs_f64())
            .with("lost_share", lost_share)
            .with("explained_share", explained);
        let (comm, name, late_name) = (victim.now.comm.to_text(), name_of(victim), name_of(late));
        let (pid, late_comm) = (late.now.tgid.0, late.now.comm.to_text());
        let culprit = Culprit { pid, comm: late_comm, ..Culprit::default() };
        let sentence = "Rank {late_rank|count}, {late}[ on {host}], comes late to the collectives: rank {rank|count} of {comm} waits \
                        {waiting_share|percent} of its time in them, the late one {late_rank_waiting_share|percent}.";
        let step = |from: String, to: String, mechanism: &str, time: Nanos| Step {
            from,
            to,
            mechanism: mechanism.into(),
            seconds: time.as_secs_f64(),
        };
        let effect = Effect::LaunchRateDrop;
        Some(Finding {
            cause: Cause::NcclLateRank,
            effect,
            subject: index,
            tid: Some(own_thread.tid),
            path: vec![
                step(late_name.clone(), name.clone(), "comes late to collectives", late_busy),
                step(name, effect.label().into(), "waits in collectives", attributed),
            ],
            culprit: Some(culprit),
            explained,
            size: attributed,
            taken: at_most(in_collectives(own_thread), attributed).into(),
            // Of earlier looks it would take those at all ranks.
            claim: None,
            lost_share,
            sentence: Sentence::new(sentence, [("comm", &*comm), ("late", &*late_name)])
                .and("host", scene.host),
            fix: "Look at the late rank's own chains and time account; if it has none, compare its input sizes, its GPU's clocks and its CPUs with those of the others."
                .into(),
            evidence,
        })
    }
}
