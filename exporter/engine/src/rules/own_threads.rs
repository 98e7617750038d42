//! The threads of a program and its workers want more CPUs than they may run on, and so preempt its dispatcher thread or keep it
//! waiting. Nothing else on the host does anything wrong.

use gpucause_abi::snapshot::Wait;
use gpucause_abi::state::{Relation, State};

use super::cpu_preemption::{claim, competitor};
use super::share::Share;
use crate::chain::{Cause, Chain, HostCpus, Place, Severity, Step};
use crate::context::{Context, Process};
use crate::cpu_list::{cpus, list};
use crate::delta::NO_CPU;
use crate::detection::{Detection, Sentence, name_of};
use crate::times::{ratio, total};

/// Evidence key of the share of the wait for a CPU in which the program's own threads or workers had it.
const OWN_SHARE: &str = "own_share";
/// Share that counts as most.
const MOST: f64 = 0.5;
/// How the sentence begins.
const BEGIN: &str = "Its own threads compete for CPUs";

/// A thread of the process ended the wait, or a worker that prepares data for it. Any other child, such as a monitor or a rank, is a
/// program of its own.
pub(super) fn is_own(context: &Context<'_>, process: &Process<'_>, wait: &Wait) -> bool {
    let Some(tgid) = wait.tgid else { return wait.relation == Relation::Thread };
    tgid == process.now.tgid || context.preparers.has(process.now.id, tgid)
}

/// The share of the wait for a CPU that was for the program itself, if that is most of it. Over the long window, as the cause is.
pub(super) fn share_of(
    context: &Context<'_>,
    process: &Process<'_>,
    share: &Share<'_>,
) -> Option<f64> {
    let is_lost = |wait: &&Wait| {
        let is_of_thread = wait.tid.is_none_or(|tid| tid == share.tid);
        is_of_thread
            && NO_CPU.contains(&wait.reason)
            && State::Off(wait.reason).is_lost_in(wait.phase)
    };
    // Checked first: most programs have no such wait at all.
    let mut ever = process.now.waits.iter().filter(is_lost);
    if !ever.any(|wait| is_own(context, process, wait)) {
        return None;
    }
    let waits: Vec<_> = process.long.waits().iter().filter(is_lost).collect();
    let own = waits.iter().filter(|wait| is_own(context, process, wait));
    let own = ratio(total(own.map(|wait| wait.total)), total(waits.iter().map(|wait| wait.total)));
    (own >= MOST).then_some(own)
}

/// One chain, however much of the time was in the run queue. It is no more severe than low: fewer threads may be slower.
pub(super) fn detection(
    context: &Context<'_>,
    index: usize,
    share: &Share<'_>,
    own: f64,
) -> Detection {
    let process = &context.processes[index];
    let waits = process.waits_of(share.tid, share.effect, &NO_CPU);
    let all = total(waits.iter().map(|wait| wait.total));
    let waits: Vec<_> = waits.iter().filter(|wait| is_own(context, process, wait)).collect();
    let time = total(waits.iter().map(|wait| wait.total));
    let first = waits.first();
    let named = first.filter(|wait| ratio(wait.total, all) >= MOST);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let sentence = "{begin}. This took {taken_share|percent} of the last {window_seconds|seconds} of {comm} and explains \
                    {explained_share|percent} of its {effect}.[ {first} had most of the CPU time: {culprit_seconds|seconds}.]";
    let first = first.map(|wait| (wait.on.to_text(), wait.total));
    let name = first.as_ref().map(|(name, _)| &**name);
    let evidence = share
        .evidence()
        .with(OWN_SHARE, own)
        .with("culprit_seconds", first.as_ref().map_or(0.0, |(_, time)| time.as_secs_f64()));
    let from = named.map_or_else(|| "its own threads".to_owned(), |wait| wait.on.to_text());
    let step = Step::new(from, &victim, "kept from a CPU", named.map_or(time, |wait| wait.total));
    let off = share.mechanism("off the CPU");
    Detection {
        culprit: named.and_then(|wait| competitor(context, process, wait)),
        most: Severity::Low,
        is_worse_beside_idle_cpus: true,
        path: vec![step, Step::new(victim, share.effect.effect.label(), off, share.time)],
        sentence: Sentence::new(sentence, [("begin", BEGIN), ("comm", &comm)]).and("first", name),
        fix: format!(
            "More threads of {comm} and its workers want a CPU than it has CPUs: run fewer workers (num_workers) or \
             threads (OMP_NUM_THREADS), or give it more CPUs."
        ),
        ..share.detection(Cause::CpuPreemption, (index, process), claim, evidence)
    }
}

impl Chain {
    /// Returns true if the victim's own threads compete for CPUs.
    pub fn is_of_own_threads(&self) -> bool {
        self.evidence.get(OWN_SHARE).is_some()
    }
}

/// The sentence with the number of threads and CPUs, where both are known and there are more threads.
pub(crate) fn with_numbers(sentence: &str, place: &Place) -> String {
    let (threads, cpus) = (place.busy_threads, cpus(&place.cpus).len());
    if cpus == 0 || threads <= cpus {
        return sentence.to_owned();
    }
    let s = if cpus == 1 { "" } else { "s" };
    let numbers = format!("{BEGIN}: {threads} threads on {cpus} CPU{s}");
    sentence.replacen(BEGIN, &numbers, 1)
}

/// CPUs that are idle and that a thread may not run on although its cgroup allows them; empty where that is unknown.
pub(crate) fn idle_elsewhere(place: &Place, host: &HostCpus) -> String {
    let (own, cpuset) = (cpus(&place.cpus), cpus(&place.cpuset));
    let is_allowed = |cpu: &u32| cpuset.is_empty() || cpuset.contains(cpu);
    let idle = cpus(&host.idle).into_iter().filter(|cpu| !own.is_empty() && !own.contains(cpu));
    list(&idle.filter(is_allowed).collect())
}

/// The CPUs of a program, and these as well.
pub(crate) fn widened(place: &Place, more: &str) -> String {
    list(&cpus(&place.cpus).union(&cpus(more)).copied().collect())
}
