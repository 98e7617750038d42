//! A call does not return. The cause follows from the state of the thread in it.

use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use super::Rule;
use super::share::MOST;
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::claim::Span;
use crate::context::{Context, Process};
use crate::delta::ThreadDelta;
use crate::detection::{Detection, Sentence, name_of};
use crate::phases::Phases;
use crate::times::{part, ratio};

struct Hung {
    tid: Tid,
    op: &'static str,
    phase: Phase,
    age: Nanos,
}

fn oldest(context: &Context<'_>, process: &Process<'_>) -> Option<Hung> {
    let hung = process.now.dispatchers.iter().filter_map(|thread| {
        let (op, age) = thread.inflight?;
        let op = op.op()?;
        let limit = match op.class {
            // Set-up waits as well: for other ranks to join, for kernels to compile.
            Class::Sync | Class::Nccl | Class::Init => context.settings.hang_in_sync_seconds,
            _ => context.settings.hang_seconds,
        };
        let (tid, phase) = (thread.tid, op.class.phase());
        // A suspended thread does not hang. All suspended time of the phase is assumed to be in this call.
        let age = Nanos(age.0.saturating_sub(thread.time.suspended(phase).0));
        (age.as_secs_f64() >= limit).then_some(Hung { tid, op: op.name, phase, age })
    });
    hung.max_by_key(|hung| hung.age)
}

/// All time in the phase of the call.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    part(&thread.time, |phase, _| matches!(phases, Phases::Only(only) if only == phase))
}

/// The most frequent state of the thread in the phase of the call, its time, and the thread's wall time.
fn state(thread: Option<&ThreadDelta>, hung: &Hung) -> (State, Nanos, Nanos) {
    let time = |state| thread.map_or(Nanos(0), |thread| thread.time.at(hung.phase, state));
    let most = State::all().max_by_key(|&state| time(state)).unwrap_or(State::Running);
    (most, time(most), thread.map_or(Nanos(0), |thread| thread.wall))
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::Unexplained,
    reads: &["gpucause_inflight_call_age_seconds", "gpucause_dispatcher_seconds_total"],
    needs: "a call that has not returned for hang_seconds, or hang_in_sync_seconds when it waits for the GPU or for other ranks; where it mostly waits for a lock, a disk, a page or a CPU, that is the cause, with the effect hang",
    during_warm_up: true,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index).filter(|process| process.now.ended.is_none())?;
    let hung = oldest(context, process)?;
    let thread = process.short.threads().iter().find(|thread| thread.tid == hung.tid);
    let (state, time, wall) = state(thread, &hung);
    let phases = Phases::Only(hung.phase);
    let cause = match state {
        State::Off(Reason::Lock) => Cause::LockWait,
        State::Off(Reason::KernelLock) => Cause::KernelLock,
        State::Off(Reason::Io) => Cause::BlockIo,
        State::Off(Reason::PageFault) => Cause::PageFault,
        State::Off(Reason::Preempted) => Cause::CpuPreemption,
        State::Off(Reason::Runqueue) => Cause::RunqueueWait,
        _ => Cause::Unexplained,
    };
    let explained = ratio(time, wall);
    let needed = context.settings.rule(cause).explained_share;
    let cause = if explained >= needed.unwrap_or(MOST) { cause } else { Cause::Unexplained };
    let evidence = Evidence::default()
        .with("age_seconds", hung.age.as_secs_f64())
        .with("state_share", explained);
    let (comm, victim) = (process.now.comm.to_text(), name_of(process));
    let doing = match state {
        State::Running => "running".to_owned(),
        State::Off(reason) => format!("off the CPU ({})", reason.label()),
    };
    let sentence = "{comm} has been in {op} for {age_seconds|seconds}: {doing} for {state_share|percent} of the last \
                    {window_seconds|seconds}.";
    let names = [("comm", &*comm), ("op", hung.op), ("doing", &*doing)];
    Some(Detection {
        tid: Some(hung.tid),
        explained: if cause == Cause::Unexplained { 0.0 } else { explained },
        taken: thread.map(|own| claim(&process.span(), own, phases)).unwrap_or_default().into(),
        claim: Some((claim, phases)),
        taken_share: 1.0,
        path: vec![Step::new(
            victim,
            Effect::Hang.label(),
            format!("{} does not return", hung.op),
            hung.age,
        )],
        sentence: Sentence::new(sentence, names),
        fix: "Check the stack of the thread (py-spy dump, gdb -p), the kernel log for Xid messages and, in a job of several ranks, the calls in flight of the other ranks."
            .into(),
        ..Detection::new(cause, Effect::Hang, index, evidence)
    })
}
