//! The victim waited for a lock of the kernel, in a system call or a page fault: that of its address space, of a file, of a driver.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::{TimeAccount, Wait};
use gpucause_abi::state::{LockKind, Reason};

use super::Rule;
use super::share::{MOST, best, lost, lost_part};
use crate::chain::{Cause, Culprit, Step};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::ThreadDelta;
use crate::detection::{Detection, Sentence, culprit_of, name_of};
use crate::phases::Phases;
use crate::times::{ratio, total};

const LOCK: [Reason; 1] = [Reason::KernelLock];

pub(super) const RULE: Rule = Rule {
    cause: Cause::KernelLock,
    reads: &[
        "gpucause_cuda_call_offcpu_seconds_total",
        "gpucause_dispatcher_seconds_total",
        "gpucause_blocked_on_seconds_total",
    ],
    needs: "waits for a lock of the kernel (of the address space, a file, a driver), in system calls or page faults, are part of an effect",
    during_warm_up: false,
    evaluate,
};

fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    lost_part(thread, &LOCK)
}

/// Time of those of the waits that are like this one.
fn time_like<T: PartialEq>(waits: &[Wait], wait: &Wait, key: impl Fn(&Wait) -> T) -> Nanos {
    let is_like = |own: &&Wait| key(own) == key(wait);
    total(waits.iter().filter(is_like).map(|own| own.total))
}

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let cause = Cause::KernelLock;
    let share = best(context, process, cause, |e| e.offcpu(&LOCK), |_, t| lost(t, &LOCK))?;
    let waits = process.waits_of(share.tid, share.effect, &LOCK);
    let all = total(waits.iter().map(|wait| wait.total));
    let of_kind = |wait: &&Wait| time_like(&waits, wait, |own| own.lock);
    let kind = waits.iter().max_by_key(of_kind).and_then(|wait| wait.lock);
    let by_holder = |wait: &Wait| time_like(&waits, wait, |own| (own.on, own.tgid, own.holder));
    let holders = waits.iter().filter(|wait| wait.tgid.is_some() && wait.lock == kind);
    let holder = holders.max_by_key(|wait| by_holder(wait));
    let holder = holder.filter(|wait| ratio(by_holder(wait), all) >= MOST);
    let mut evidence = share.evidence();
    if let Some(held) = holder.map(by_holder) {
        evidence = evidence
            .with("holder_share", ratio(held, all))
            .with("holder_seconds", held.min(share.time).as_secs_f64());
    }
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let culprit = holder.and_then(|wait| {
        let tid = wait.holder.map(|tid| tid.0);
        culprit_of(wait).map(|culprit| Culprit { tid, ..culprit })
    });
    let name = match &culprit {
        Some(Culprit { comm, tid: Some(tid), .. }) => format!("{comm} (thread {tid})"),
        Some(culprit) => format!("{} (pid {})", culprit.comm, culprit.pid),
        None => "others".to_owned(),
    };
    let lock = kind.map_or("a lock of the kernel", LockKind::describe);
    let is_own = culprit.as_ref().is_none_or(|culprit| culprit.pid == process.now.tgid.0);
    let sentence = "Waiting for {lock}, held by {holder}, took {taken_share|percent} of the last {window_seconds|seconds} of \
                    {comm} and explains {explained_share|percent} of its {effect}[; {holder} had it for \
                    {holder_seconds|seconds} of that][ in {calls}].";
    Some(Detection {
        culprit,
        path: vec![
            Step::new(name.clone(), &victim, share.mechanism(&format!("held {lock}")), share.time),
            Step::new(
                victim,
                share.effect.effect.label(),
                share.mechanism("blocked in the kernel"),
                share.time,
            ),
        ],
        sentence: Sentence::new(sentence, [("comm", &*comm), ("holder", &*name), ("lock", lock)])
            .and("calls", share.effect.effect.slow_calls()),
        fix: fix(kind, &name, is_own),
        ..share.detection(cause, (index, process), claim, evidence)
    })
}

fn fix(kind: Option<LockKind>, holder: &str, is_own: bool) -> String {
    match kind {
        Some(LockKind::AddressSpace) if !is_own => {
            format!(
                "Find why {holder} reads or changes the memory of this process, and let it do so more rarely."
            )
        }
        Some(LockKind::AddressSpace) => format!(
            "All threads of a process wait for each other in mmap, munmap, madvise and page faults. Map, fill and unmap large memory in \
             another process, or once and keep it; let {holder} do it in smaller parts, and reuse buffers where the GPU is fed."
        ),
        Some(LockKind::Inode | LockKind::Rename) => format!(
            "Give {holder} and the thread that feeds the GPU files and folders of their own, or let another thread write, create and \
             rename files."
        ),
        _ => format!(
            "Find what {holder} does in the kernel while it holds the lock, by its stack there, and do it more rarely or in another \
             process: a driver often has one lock for all that a process asks of it."
        ),
    }
}
