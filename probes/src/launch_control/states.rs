//! How the launches of each process are observed, and the estimate of unobserved ones. Written by launch control, read by
//! snapshots.

use std::collections::{HashMap, HashSet};

use gpucause_abi::snapshot::{DispatcherSnapshot, LaunchSampling, LaunchStep};
use gpucause_abi::state::{Phase, Reason, State as ThreadState};
use gpucause_abi::{Nanos, ProcId, Tid};
use parking_lot::Mutex;

/// By process; processes without an entry have always been observed in full.
#[derive(Debug, Default)]
pub(crate) struct LaunchStates(Mutex<HashMap<ProcId, State>>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    step: LaunchStep,
    /// Sum over the pauses that have ended.
    estimated: f64,
    unobserved: u64,
    paused: Option<Pause>,
    /// Whether the process has ended; nothing changes any more.
    ended: bool,
}

/// What the threads of a process do at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activity {
    pub(crate) now: Nanos,
    pub(crate) state: ActivityState,
    /// The dispatcher that has launched for longest.
    pub(crate) busiest: Option<Busy>,
}

/// For how long a dispatcher has been busy: running or waiting for a CPU, neither in calls that wait for the GPU nor blocked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Busy {
    tid: Tid,
    wall: Nanos,
    busy: Nanos,
    launching: Nanos,
}

/// A thread that was busy for this share of the time makes as many launches as its CPU allows.
const ALWAYS_BUSY: f64 = 0.9;

impl Busy {
    /// Of the one of these threads that has launched for longest.
    pub(crate) fn most_of(dispatchers: &[DispatcherSnapshot]) -> Option<Self> {
        let states = [Reason::Preempted, Reason::Runqueue].map(ThreadState::Off);
        let busy = |thread: &DispatcherSnapshot| {
            let in_phase = |phase| {
                let times = states.iter().map(|&state| thread.time.at(phase, state).0);
                times.sum::<u64>() + thread.time.at(phase, ThreadState::Running).0
            };
            let launching = Nanos(in_phase(Phase::Launch));
            let busy = Nanos(in_phase(Phase::Host) + launching.0);
            Self { tid: thread.tid, wall: thread.wall, busy, launching }
        };
        dispatchers.iter().map(busy).max_by_key(|thread| thread.launching)
    }

    /// Whether this thread was busy all the time since then.
    pub(crate) fn always_since(self, before: Self) -> bool {
        let wall = self.wall.less(before.wall).as_secs_f64();
        let busy = self.busy.less(before.busy).as_secs_f64();
        self.tid == before.tid && wall > 0.0 && busy >= wall * ALWAYS_BUSY
    }
}

/// Whether a process can be launching.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ActivityState {
    Active,
    /// None of its threads has run since then.
    IdleSince(Nanos),
    /// None of its threads is known, as after its end.
    Unknown,
}

/// A process whose threads have been off the CPU for longer launches nothing.
const IDLE_AFTER: Nanos = Nanos(100_000_000);

impl Activity {
    /// Of a process one of whose threads last ran at that time, if that is known.
    pub(crate) fn new(now: Nanos, ran: Option<Nanos>, busiest: Option<Busy>) -> Self {
        let state = match ran {
            None => ActivityState::Unknown,
            Some(ran) if now.less(ran) > IDLE_AFTER => ActivityState::IdleSince(ran),
            Some(_) => ActivityState::Active,
        };
        Self { now, state, busiest }
    }

    /// The same at a later time.
    pub(crate) const fn at(self, now: Nanos) -> Self {
        Self { now, ..self }
    }
}

/// A pause in which launches are not observed.
#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Nanos,
    /// Rate of launches before it.
    per_second: f64,
    /// Since when the process had been idle when it was last read.
    idle_since: Option<Nanos>,
    /// How far launches are estimated, and how far time is unobserved. Neither steps back.
    launching: Nanos,
    until: Nanos,
}

impl State {
    fn until(&mut self, Activity { now, state, .. }: Activity) -> (f64, u64) {
        let Some(pause) = &mut self.paused else { return (self.estimated, self.unobserved) };
        match state {
            ActivityState::Active => pause.idle_since = None,
            ActivityState::IdleSince(since) => pause.idle_since = Some(since),
            // It goes on as it was last seen.
            ActivityState::Unknown => {}
        }
        pause.until = pause.until.max(now);
        pause.launching = pause.launching.max(pause.idle_since.unwrap_or(now));
        let launching = pause.launching.less(pause.since).as_secs_f64();
        let unobserved = self.unobserved + pause.until.less(pause.since).0;
        (self.estimated + pause.per_second * launching, unobserved)
    }
}

impl LaunchStates {
    /// The sampling state of a process at this time, or at its end, without counted launches.
    pub(crate) fn of(&self, id: ProcId, now: Activity) -> LaunchSampling {
        let mut states = self.0.lock();
        let Some(state) = states.get_mut(&id) else { return LaunchSampling::default() };
        let (estimated, unobserved) = state.until(now);
        let step = state.step;
        drop(states);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and far less than the type holds"
        )]
        let estimated = estimated as u64;
        LaunchSampling { step, untimed: 0, estimated, unobserved: Nanos(unobserved) }
    }

    /// The least share of the time for which launches of any live process are observed.
    pub(crate) fn least_share(&self) -> f64 {
        self.least(|step| match step {
            LaunchStep::PartTime { share, .. } => share,
            _ => 1.0,
        })
    }

    /// The least share of any live process's launches that are timed now.
    pub(crate) fn least_timed_share(&self) -> f64 {
        self.least(LaunchStep::timed_share)
    }

    fn least(&self, share: impl Fn(LaunchStep) -> f64) -> f64 {
        let share = |state: &State| share(state.step);
        self.0.lock().values().filter(|state| !state.ended).map(share).fold(1.0, f64::min)
    }

    /// Sets the step of a process.
    pub(crate) fn set_step(&self, id: ProcId, step: LaunchStep) {
        if step != LaunchStep::Full || self.0.lock().contains_key(&id) {
            self.0.lock().entry(id).or_default().step = step;
        }
    }

    /// Starts a pause; launches were made at this rate before.
    pub(crate) fn pause(&self, id: ProcId, since: Nanos, per_second: f64) {
        let pause = Pause { since, per_second, idle_since: None, launching: since, until: since };
        self.0.lock().entry(id).or_default().paused.get_or_insert(pause);
    }

    /// Ends the pause.
    pub(crate) fn resume(&self, id: ProcId, now: Activity) {
        if let Some(state) = self.0.lock().get_mut(&id) {
            (state.estimated, state.unobserved) = state.until(now);
            state.paused = None;
        }
    }

    /// Marks the process as ended; callers know when.
    pub(crate) fn end(&self, id: ProcId) {
        if let Some(state) = self.0.lock().get_mut(&id) {
            state.ended = true;
        }
    }

    /// Forgets processes.
    pub(crate) fn forget(&self, ids: &HashSet<ProcId>) {
        self.0.lock().retain(|id, _| !ids.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use gpucause_abi::snapshot::TimeAccount;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// After so many seconds, when a thread last ran after so many.
    fn after(seconds: u64, ran: Option<u64>) -> Activity {
        Activity::new(Nanos(seconds * SECOND), ran.map(|ran| Nanos(ran * SECOND)), None)
    }

    #[test]
    fn estimates_grow_at_the_rate_before_while_paused_and_stay_when_resumed() {
        let (states, id) = (LaunchStates::default(), ProcId(1));
        let at = |seconds| {
            let sampling = states.of(id, after(seconds, Some(seconds)));
            (sampling.estimated, sampling.unobserved.0 / SECOND)
        };
        assert_eq!(states.of(id, after(0, Some(0))), LaunchSampling::default());
        states.pause(id, Nanos(SECOND), 1_000.0);
        states.pause(id, Nanos(2 * SECOND), 5.0);
        assert_eq!((at(1), at(3)), ((0, 0), (2_000, 2)));
        states.resume(id, after(4, Some(4)));
        assert_eq!(at(9), (3_000, 3));
        states.pause(id, Nanos(10 * SECOND), 1.0);
        assert_eq!(at(12), (3_002, 5));
        states.set_step(id, LaunchStep::Sampled { one_in: 4 });
        assert_eq!(states.least_timed_share(), 0.25);
        states.end(id);
        assert_eq!((at(12), states.least_timed_share()), ((3_002, 5), 1.0));
        states.forget(&HashSet::from([id]));
        assert_eq!(at(12), (0, 0));
    }

    #[test]
    fn nothing_is_estimated_after_the_threads_of_a_process_last_ran() {
        let (states, id) = (LaunchStates::default(), ProcId(1));
        let estimated = |seconds, ran| states.of(id, after(seconds, ran)).estimated;
        states.pause(id, Nanos(10 * SECOND), 1_000.0);
        assert_eq!((estimated(12, Some(12)), estimated(15, Some(13))), (2_000, 3_000));
        assert_eq!((estimated(16, None), estimated(17, Some(11))), (3_000, 3_000));
        states.resume(id, after(18, None));
        assert_eq!(states.of(id, after(19, Some(19))).estimated, 3_000);
        assert_eq!(states.of(id, after(19, Some(19))).unobserved, Nanos(8 * SECOND));
    }

    #[test]
    fn a_process_that_ends_or_whose_threads_are_not_known_goes_on_as_it_was_last_seen() {
        let (states, id) = (LaunchStates::default(), ProcId(1));
        let estimated = |seconds, ran| states.of(id, after(seconds, ran)).estimated;
        states.pause(id, Nanos(10 * SECOND), 1_000.0);
        assert_eq!(estimated(11, None), 1_000);
        assert_eq!((estimated(12, Some(12)), estimated(13, None)), (2_000, 3_000));
        assert_eq!((estimated(15, Some(14)), estimated(20, None)), (4_000, 4_000));
    }

    #[test]
    fn a_thread_that_waits_for_the_gpu_or_for_work_is_not_always_busy() {
        let thread = |tid, cells: &[(Phase, ThreadState, u64)]| {
            let mut time = TimeAccount::default();
            for &(phase, state, seconds) in cells {
                time.0[phase as usize][state.index()] = Nanos(seconds * SECOND);
            }
            DispatcherSnapshot { tid: Tid(tid), wall: time.total(), time, inflight: None }
        };
        let running = ThreadState::Running;
        let preempted = ThreadState::Off(Reason::Preempted);
        let before = [
            thread(1, &[(Phase::Host, running, 5), (Phase::Launch, preempted, 1)]),
            thread(2, &[]),
        ];
        let always = |cells: &[(Phase, ThreadState, u64)]| {
            let now = [thread(1, cells), thread(2, &[(Phase::Sync, running, 50)])];
            let [before, now] = [&before, &now].map(|threads| Busy::most_of(threads).unwrap());
            now.always_since(before)
        };
        let launching = (Phase::Launch, preempted, 3);
        assert!(always(&[(Phase::Host, running, 12), launching]));
        assert!(!always(&[(Phase::Host, running, 12), launching, (Phase::Sync, running, 3)]));
        assert!(!always(&[(Phase::Host, running, 5), (Phase::Launch, preempted, 1)]));
        assert!(Busy::most_of(&[]).is_none());
    }

    #[test]
    fn neither_estimates_nor_unobserved_time_step_back() {
        let (states, id) = (LaunchStates::default(), ProcId(1));
        states.pause(id, Nanos(10 * SECOND), 1_000.0);
        let at = |activity| {
            let sampling = states.of(id, activity);
            (sampling.estimated, sampling.unobserved.0 / SECOND)
        };
        assert_eq!(at(after(14, Some(14))), (4_000, 4));
        assert_eq!(at(after(13, Some(12))), (4_000, 4));
        assert_eq!(at(after(15, Some(12))), (4_000, 5));
    }
}
