//! One rank of a job comes late to the collectives, and the others wait for it. Detected when the host runs several ranks: the
//! waiting ones are in collectives or wait for the GPU, the late one is not, and its own account shows what it did instead. Where a
//! Prometheus says how long ranks on other hosts wait, the late one may be there.

use std::collections::HashSet;

use gpucause_abi::Nanos;
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::Phase;

use super::Rule;
use super::share::MOST;
use crate::chain::{Cause, Culprit, Effect, Evidence, Step};
use crate::context::{Context, Process};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, Sentence, name_of};
use crate::peers::{PeerJob, PeerRank, RankPlace};
use crate::times::{at_most, part, ratio, total};

/// Waits for other ranks: in collectives, and for the GPU that runs them.
fn in_collectives(thread: &ThreadDelta) -> TimeAccount {
    part(&thread.time, |phase, _| matches!(phase, Phase::Nccl | Phase::Sync))
}

fn waiting(thread: &ThreadDelta) -> Nanos {
    total([Phase::Nccl, Phase::Sync].iter().map(|&phase| thread.in_phase(phase)))
}

/// The rank's thread and the share of its time that it waits for others.
fn wait_of<'a>(process: &'a Process<'_>) -> Option<(f64, &'a ThreadDelta)> {
    let in_collectives = process.short.threads().iter().filter(|t| t.in_phase(Phase::Nccl).0 > 0);
    let thread = in_collectives.max_by_key(|thread| thread.in_phase(Phase::Nccl))?;
    Some((ratio(waiting(thread), thread.wall), thread))
}

/// Least ratio of the ranks' call counts: the first snapshot may be in the middle of a step.
const MIN_CALL_RATIO: f64 = 0.9;

/// NCCL calls so far.
fn collectives(process: &Process<'_>) -> u64 {
    let of_nccl = |id: OpId| id.op().is_some_and(|op| op.class.phase() == Phase::Nccl);
    let calls = process.now.calls.iter().filter(|call| !call.nested && of_nccl(call.op));
    calls.map(|call| call.durations.count()).fold(0, u64::saturating_add)
}

/// Returns true if the ranks may share a communicator, whose ranks make the same calls. Rank numbers alone, from a launcher or of a part
/// of a larger job, do not prove it.
fn share_communicator(ranks: &[(f64, &Process<'_>, &ThreadDelta)]) -> bool {
    let calls = || ranks.iter().map(|(_, process, _)| collectives(process));
    let (least, most) = (calls().min().unwrap_or(0), calls().max().unwrap_or(0));
    least as f64 >= most as f64 * MIN_CALL_RATIO
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::NcclLateRank,
    reads: &["gpucause_dispatcher_seconds_total", "gpucause_process_info"],
    needs: "all other ranks of the job on this host wait in collectives for longer than this one, by severity medium, all make the \
            same number of NCCL calls, and the late rank's own time explains it; or by `--peers.url` all other ranks of the job \
            wait for longer than one on another host, and so do those of this host as measured here",
    during_warm_up: false,
    evaluate: |context, index| {
        // The late rank of this host may itself wait for one elsewhere.
        on_another_host(context, index).or_else(|| among_this_host(context, index))
    },
};

fn among_this_host(context: &Context<'_>, index: usize) -> Option<Detection> {
    let victim = context.processes.get(index)?;
    let (_, world) = victim.now.rank.filter(|&(_, world)| world > 1)?;
    let settings = context.settings;
    let same_job = |process: &&Process<'_>| {
        process.now.rank.is_some_and(|(_, ranks)| ranks == world) && process.now.ended.is_none()
    };
    // Duplicate rank numbers mean two independent jobs.
    let numbers = || context.processes.iter().filter(same_job).filter_map(|s| s.now.rank);
    if numbers().collect::<HashSet<_>>().len() != numbers().count() {
        return None;
    }
    let mut ranks: Vec<_> = context
        .processes
        .iter()
        .filter(same_job)
        .filter_map(|process| wait_of(process).map(|(share, thread)| (share, process, thread)))
        .collect();
    if !share_communicator(&ranks) {
        return None;
    }
    ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(late_share, late, late_thread), rest @ ..] = ranks.as_slice() else { return None };
    // The second shortest wait is for the late rank only.
    let (next_share, ..) = rest.first()?;
    let (own_share, _, own_thread) =
        rest.iter().find(|(_, process, _)| process.now.id == victim.now.id)?;
    let taken_share = own_share - late_share;
    let rule = settings.rule(Cause::NcclLateRank);
    let least = rule.min_lost_share.unwrap_or(settings.severities.medium);
    if next_share - late_share < least || taken_share < least {
        return None;
    }
    let is_later = |own: &PeerRank| {
        matches!(own.place, RankPlace::Elsewhere(_)) && own.waiting_share < *late_share
    };
    // The others wait for the last to come.
    if job_of(context, victim).is_some_and(|(job, _)| job.ranks.iter().any(is_later)) {
        return None;
    }
    let late_busy = Nanos(late_thread.wall.less(waiting(late_thread)).0);
    let attributed = own_thread.wall.share(taken_share);
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
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let (comm, name, late_name) = (victim.now.comm.to_text(), name_of(victim), name_of(late));
    let (pid, late_comm) = (late.now.tgid.0, late.now.comm.to_text());
    let culprit = Culprit { pid, comm: late_comm, ..Culprit::default() };
    let sentence = "Rank {late_rank|count}, {late}[ on {host}], comes late to the collectives: rank {rank|count} of {comm} waits \
                    {waiting_share|percent} of its time in them, the late rank {late_rank_waiting_share|percent}.";
    let effect = Effect::LaunchRateDrop;
    Some(Detection {
        tid: Some(own_thread.tid),
        path: vec![
            Step::new(&*late_name, &name, "comes late to collectives", late_busy),
            Step::new(name, effect.label(), "waits in collectives", attributed),
        ],
        culprit: Some(culprit),
        explained,
        size: attributed,
        // Without a claim: earlier windows would be charged with collectives of all ranks.
        taken: at_most(in_collectives(own_thread), attributed).into(),
        taken_share,
        sentence: Sentence::new(sentence, [("comm", &*comm), ("late", &*late_name)])
            .and("host", context.host),
        fix: "Check the late rank's own chains and time account; if it has none, compare its input sizes, GPU clocks and CPUs with those of the other ranks."
            .into(),
        ..Detection::new(Cause::NcclLateRank, effect, index, evidence)
    })
}

/// Returns the job of a process and its rank in it, as a Prometheus server reports them.
fn job_of<'a>(context: &Context<'a>, process: &Process<'_>) -> Option<(&'a PeerJob, &'a PeerRank)> {
    let (rank, world_size) = process.now.rank?;
    let here = RankPlace::Here(process.now.id);
    let is_it = |own: &&PeerRank| own.place == here && own.rank == rank;
    let jobs = context.peers?.jobs.iter().filter(|job| job.world_size == world_size);
    jobs.filter_map(|job| Some((job, job.ranks.iter().find(is_it)?))).next()
}

/// A rank on another host, which a Prometheus compares with those of this one. It is not trusted: the time that the victim waits is
/// what was measured here, and what Prometheus says can only lessen it. By what it says, the late rank's own time explains all of that.
fn on_another_host(context: &Context<'_>, index: usize) -> Option<Detection> {
    let victim = context.processes.get(index)?;
    let (rank, world) = victim.now.rank?;
    let (job, own) = job_of(context, victim)?;
    let mut ranks: Vec<&PeerRank> = job.ranks.iter().collect();
    ranks.sort_by(|a, b| a.waiting_share.total_cmp(&b.waiting_share));
    let [late, next, ..] = ranks.as_slice() else { return None };
    let RankPlace::Elsewhere(late_host) = &late.place else { return None };
    let (waiting_share, thread) = wait_of(victim)?;
    let taken_share = waiting_share.min(own.waiting_share) - late.waiting_share;
    let settings = context.settings;
    let least = settings.rule(Cause::NcclLateRank).min_lost_share;
    let least = least.unwrap_or(settings.severities.medium);
    let waits_now = |own: &&PeerRank| {
        let is_it = |process: &&Process<'_>| own.place == RankPlace::Here(process.now.id);
        let process = context.processes.iter().find(is_it);
        process.and_then(wait_of).is_some_and(|(share, _)| share - late.waiting_share >= least)
    };
    let mut here = ranks.iter().filter(|own| matches!(own.place, RankPlace::Here(_)));
    // A rank of this host that has become late since Prometheus compared them is the last to come.
    if next.waiting_share - late.waiting_share < least
        || taken_share < least
        || !here.all(waits_now)
    {
        return None;
    }
    let attributed = thread.wall.share(taken_share);
    let evidence = Evidence::default()
        .with("rank", f64::from(rank))
        .with("late_rank", f64::from(late.rank))
        .with("world_size", f64::from(world))
        .with("waiting_share", waiting_share)
        .with("late_rank_waiting_share", late.waiting_share)
        .with("peers_age_seconds", context.peers?.age_seconds)
        .with("taken_share", taken_share);
    let (comm, name) = (victim.now.comm.to_text(), name_of(victim));
    let late_name = format!("rank {} on {late_host}", late.rank);
    let sentence = "Rank {late_rank|count} on {late_host} comes late to the collectives: rank {rank|count} of {comm} waits \
                    {waiting_share|percent} of its time in them, the late rank {late_rank_waiting_share|percent} of \
                    the last minute, as Prometheus said {peers_age_seconds|seconds} ago.";
    let effect = Effect::LaunchRateDrop;
    Some(Detection {
        tid: Some(thread.tid),
        path: vec![
            Step::new(late_name, &name, "comes late to collectives", attributed),
            Step::new(name, effect.label(), "waits in collectives", attributed),
        ],
        culprit: Some(Culprit { comm: comm.clone(), host: late_host.clone(), ..Culprit::default() }),
        size: attributed,
        taken: at_most(in_collectives(thread), attributed).into(),
        taken_share,
        sentence: Sentence::new(sentence, [("comm", &*comm), ("late_host", late_host)]),
        fix: "Check the late rank's own chains and time account on its host; if it has none, compare its input sizes, GPU clocks and CPUs with those of the other ranks."
            .into(),
        ..Detection::new(Cause::NcclLateRank, effect, index, evidence)
    })
}
