//! A call does not return. Why is told by what the thread does in it.

use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_abi::{Nanos, Tid};

use super::share::MOST;
use super::{Declaration, Rule, Window};
use crate::case::{Scene, Subject};
use crate::chain::{Cause, Effect, Evidence, Step};
use crate::delta::ThreadDelta;
use crate::divide::{Span, part};
use crate::effect::{Phases, ratio};
use crate::finding::{Finding, Sentence, name_of};

pub(super) struct Hang;

/// What a thread that hangs is in.
struct Hung {
    tid: Tid,
    op: &'static str,
    phase: Phase,
    age: Nanos,
}

fn oldest(scene: &Scene<'_>, subject: &Subject<'_>) -> Option<Hung> {
    let hung = subject.now.dispatchers.iter().filter_map(|thread| {
        let (op, age) = thread.inflight?;
        let op = op.op()?;
        let limit = match op.class {
            // Setting up waits as well: for other ranks to join, for kernels to be compiled.
            Class::Sync | Class::Nccl | Class::Init => scene.settings.hang_in_sync_seconds,
            _ => scene.settings.hang_seconds,
        };
        let (tid, phase) = (thread.tid, op.class.phase());
        // A thread that is suspended does not hang. When in its calls of this phase it was is not known: at worst all in this one.
        let age = Nanos(age.0.saturating_sub(thread.time.suspended(phase).0));
        (age.as_secs_f64() >= limit).then_some(Hung { tid, op: op.name, phase, age })
    });
    hung.max_by_key(|hung| hung.age)
}

/// All time in the call.
fn claim(_: &Span<'_, '_>, thread: &ThreadDelta, phases: Phases) -> TimeAccount {
    part(&thread.time, |phase, _| matches!(phases, Phases::Only(only) if only == phase))
}

/// The state that a thread spends most of its time in, in a phase.
fn state(thread: Option<&ThreadDelta>, hung: &Hung) -> (State, Nanos, Nanos) {
    let time = |state| thread.map_or(Nanos(0), |thread| thread.time.at(hung.phase, state));
    let most = State::all().max_by_key(|&state| time(state)).unwrap_or(State::Running);
    (most, time(most), thread.map_or(Nanos(0), |thread| thread.wall))
}

impl Rule for Hang {
    fn declaration(&self) -> Declaration {
        Declaration {
            cause: Cause::Unexplained,
            reads: &["gpucause_inflight_call_age_seconds", "gpucause_dispatcher_seconds_total"],
            window: Window::Now,
            needs: "a call that has not returned for hang_seconds, or hang_in_sync_seconds when it waits for the GPU or for other ranks",
        }
    }

    fn at_start(&self) -> bool {
        true
    }

    fn judge(&self, scene: &Scene<'_>, index: usize) -> Option<Finding> {
        let subject = scene.subjects.get(index).filter(|subject| subject.now.ended.is_none())?;
        let hung = oldest(scene, subject)?;
        let thread = subject.short.threads().iter().find(|thread| thread.tid == hung.tid);
        let (state, time, wall) = state(thread, &hung);
        let phases = Phases::Only(hung.phase);
        let cause = match state {
            State::Off(Reason::Futex) => Cause::LockWait,
            State::Off(Reason::Io) => Cause::BlockIo,
            State::Off(Reason::PageFault) => Cause::PageFault,
            State::Off(Reason::Preempted) => Cause::CpuPreemption,
            State::Off(Reason::Runqueue) => Cause::RunqueueWait,
            _ => Cause::Unexplained,
        };
        let explained = ratio(time, wall);
        let needed = scene.settings.rule(cause).explained_share;
        let cause = if explained >= needed.unwrap_or(MOST) { cause } else { Cause::Unexplained };
        let evidence = Evidence::default()
            .with("age_seconds", hung.age.as_secs_f64())
            .with("state_share", explained);
        let (comm, victim) = (subject.now.comm.to_text(), name_of(subject));
        let doing = match state {
            State::Running => "running".to_owned(),
            State::Off(reason) => format!("off the CPU ({})", reason.label()),
        };
        let sentence = "{comm} is in {op} since {age_seconds|seconds}, and was {doing} for {state_share|percent} of the \
                        time of late.";
        let names = [("comm", &*comm), ("op", hung.op), ("doing", &*doing)];
        Some(Finding {
            cause,
            effect: Effect::Hang,
            subject: index,
            tid: Some(hung.tid),
            culprit: None,
            explained: if cause == Cause::Unexplained { 0.0 } else { explained },
            size: Nanos(0),
            taken: thread
                .map(|own| claim(&subject.span(), own, phases))
                .unwrap_or_default()
                .into(),
            claim: Some((claim, phases)),
            lost_share: 1.0,
            path: vec![Step {
                from: victim,
                to: Effect::Hang.label().into(),
                mechanism: format!("{} does not return", hung.op),
                seconds: hung.age.as_secs_f64(),
            }],
            sentence: Sentence::new(sentence, names),
            fix: "Look at the stack of the thread (py-spy dump, gdb -p), at the kernel log for Xid messages, and in a job of several ranks at the other ranks' calls in flight."
                .into(),
            evidence,
        })
    }
}
