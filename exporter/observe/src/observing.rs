//! The observation state of this daemon, evaluated from the state of the probes, and since when it holds.

use gpucause_engine::observation::{ObservationState, Period, State};
use gpucause_probes::Status;
use gpucause_probes::registry::{LibraryStatus, LibraryVerdict};
use gpucause_probes::thread_records::ThreadRecords;
use gpucause_probes::verdict::ProgramVerdict;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::{WallClock, monotonic_now};
use crate::visibility::Obstacle;

/// Missing probes that a reason names; the rest is counted.
const MAX_NAMED: usize = 3;
/// Why nothing is observed while SIGUSR1 keeps the probes detached.
const BY_SIGNAL: &str = "SIGUSR1 detached all probes; a second SIGUSR1 or SIGHUP attaches them";
const BY_CONFIGURATION: &str = "probe.enabled is false in the configuration";
const ALL_BROKEN: &str = "every probe is broken; the log says why";
const NO_RECORDS: &str = "broken: the kernel refuses records of threads, so no call is counted; gpucause_map_full_total has the refusals";
const FEW_RECORDS: &str = "the kernel refuses records of some threads, whose calls are lost: gpucause_events_dropped_total{reason=\"no_thread_record\"}";
const OVER_BUDGET: &str = "probes on calls of a process would cost more than the budget; gpucause_launch_sampling_ratio says which";

const LEFT_OUT: &str = "functions of CUDA are not probed, as the kernel would single-step an instruction of them, which can crash programs on this processor: gpucause check names them, and probe.risky_single_steps probes them all the same";

/// Returns true if this reason, for which nothing is observed, is a fault.
pub fn is_broken(reason: &str) -> bool {
    [ALL_BROKEN, NO_RECORDS].contains(&reason) || Obstacle::is_reason(reason)
}

/// Who had the probes detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// `probe.enabled` of the configuration.
    Configuration,
    /// A signal.
    Signal,
}

/// The observation state and earlier ones.
#[derive(Debug)]
pub struct Observing {
    /// Obstacles that hide processes, or a part of their details.
    obstacles: Vec<Obstacle>,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    clock: WallClock,
    switch: Switch,
    state: ObservationState,
}

impl Observing {
    /// For a daemon whose probes were just loaded, and from which these hide something.
    pub fn new(obstacles: Vec<Obstacle>) -> Self {
        let clock = WallClock::now();
        let state = Period::disabled(clock.unix_seconds(monotonic_now()), Period::STARTING).into();
        let log = Mutex::new(Log { clock, switch: Switch::Configuration, state });
        Self { obstacles, log }
    }

    /// Sets who has the probes detached.
    pub fn set_switch(&self, switch: Switch) {
        self.log().switch = switch;
    }

    /// The state now. To be called every second or so, since a change and its reversal between two calls leave no trace.
    pub fn update(&self, status: &Status) -> ObservationState {
        let mut log = self.log();
        log.clock = log.clock.refreshed();
        let now = log.clock.unix_seconds(monotonic_now());
        let switch = log.switch;
        let period = evaluate(status, &self.obstacles, switch, now);
        // Observation begins with the first state that is not the search for libraries.
        match log.state.earlier.is_empty() && log.state.current.reason == Period::STARTING {
            true => log.state = period.into(),
            false => log.state.continue_with(period),
        }
        log.state.clone()
    }

    /// Why nothing is observed although the probes are enabled; `None` if something is.
    pub fn why_nothing(&self, status: &Status) -> Option<String> {
        why_nothing(status, &self.obstacles)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

/// The state of the probes as a period that begins now.
fn evaluate(status: &Status, obstacles: &[Obstacle], switch: Switch, since: f64) -> Period {
    if !status.enabled {
        let reason = match switch {
            Switch::Configuration => BY_CONFIGURATION,
            Switch::Signal => BY_SIGNAL,
        };
        return Period::disabled(since, reason);
    }
    if !status.is_ready() {
        return Period::disabled(since, Period::STARTING);
    }
    if let Some(reason) = why_nothing(status, obstacles) {
        return Period::disabled(since, reason);
    }
    let missing = missing(status);
    let share = status.timed_share;
    let partial = |timed_share, reason: String| Period {
        state: State::Partial,
        timed_share,
        since,
        until: None,
        reason,
    };
    if missing.is_empty() && status.thread_records != ThreadRecords::Granted {
        return partial(None, FEW_RECORDS.into());
    }
    if missing.is_empty() && !obstacles.is_empty() {
        return partial(None, sentences(obstacles));
    }
    if missing.is_empty() && status.libraries.iter().any(|library| !library.left_out.is_empty()) {
        let over = if share < 1.0 { format!("; {OVER_BUDGET}") } else { String::new() };
        return partial(None, format!("{LEFT_OUT}{over}"));
    }
    if missing.is_empty() {
        return match share < 1.0 {
            true => partial(Some(share), OVER_BUDGET.into()),
            false => Period::attached(since),
        };
    }
    let more = missing.len().saturating_sub(MAX_NAMED);
    let mut reason = format!("probes are missing: {}", missing[..missing.len() - more].join(", "));
    if more > 0 {
        reason.push_str(&format!(" and {more} more"));
    }
    partial(None, reason)
}

fn why_nothing(status: &Status, obstacles: &[Obstacle]) -> Option<String> {
    if is_all_broken(status) {
        return Some(ALL_BROKEN.into());
    }
    if status.thread_records == ThreadRecords::Refused {
        return Some(NO_RECORDS.into());
    }
    let is_left_out = |library: &LibraryStatus| library.verdict == LibraryVerdict::SingleStepped;
    if !status.libraries.is_empty() && status.libraries.iter().all(is_left_out) {
        return Some(LEFT_OUT.into());
    }
    // One: the state is known by its reason.
    obstacles.iter().find(|obstacle| obstacle.hides_all).map(Obstacle::sentence)
}

fn sentences(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(Obstacle::sentence).collect::<Vec<_>>().join("; ")
}

/// Returns true if no probe works, neither in the kernel nor in a library.
fn is_all_broken(status: &Status) -> bool {
    let broken = |verdict: &ProgramVerdict| matches!(verdict, ProgramVerdict::Broken(_));
    let refused = |verdict: &LibraryVerdict| matches!(verdict, LibraryVerdict::Refused(_));
    status.programs.iter().all(|program| broken(&program.verdict))
        && status.libraries.iter().all(|library| refused(&library.verdict))
}

/// Probes that should be attached and are not.
fn missing(status: &Status) -> Vec<String> {
    let programs = status.programs.iter().filter_map(|program| match &program.verdict {
        ProgramVerdict::Broken(_) => {
            Some(format!("{} ({})", program.program, program.verdict.label()))
        }
        ProgramVerdict::Attached | ProgramVerdict::Disabled | ProgramVerdict::Unsupported(_) => {
            None
        }
    });
    let libraries = status.libraries.iter().filter_map(|library| match &library.verdict {
        LibraryVerdict::Broken(_) | LibraryVerdict::Refused(_) | LibraryVerdict::OverLimit => {
            Some(format!("{} ({})", library.path.display(), library.verdict))
        }
        LibraryVerdict::Attached | LibraryVerdict::NoSymbols | LibraryVerdict::SingleStepped => {
            None
        }
    });
    programs.chain(libraries).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::visibility::PID_NAMESPACE;
    use gpucause_probes::discovery::DiscoveryStatus;
    use gpucause_probes::feature::AttachMode;
    use gpucause_probes::registry::{FileId, RegistryCounts};
    use gpucause_probes::verdict::ProgramStatus;

    fn status() -> Status {
        let library = LibraryStatus {
            replaced: Vec::new(),
            path: "/usr/lib/libcudart.so.12".into(),
            file: FileId { device: 1, inode: 2 },
            build_id: None,
            link: None,
            sites: 100,
            ops: 70,
            slow: Vec::new(),
            left_out: Vec::new(),
            verdict: LibraryVerdict::Attached,
            gap: None,
            max_gap: None,
        };
        Status {
            enabled: true,
            duty_ratio: 1.0,
            timed_share: 1.0,
            entry_cost: None,
            step_cost: None,
            hit_cost: None,
            mode: AttachMode::Session,
            programs: vec![ProgramStatus {
                program: "sched_switch",
                verdict: ProgramVerdict::Attached,
            }],
            thread_records: ThreadRecords::Granted,
            libraries: vec![library],
            discovery: DiscoveryStatus { scans: 1, ..DiscoveryStatus::default() },
            counts: RegistryCounts::default(),
        }
    }

    fn evaluated(change: impl FnOnce(&mut Status)) -> (State, Option<f64>, String) {
        let mut status = status();
        change(&mut status);
        let period = evaluate(&status, &[], Switch::Signal, 7.0);
        assert_eq!((period.since, period.until), (7.0, None));
        (period.state, period.timed_share, period.reason)
    }

    #[test]
    fn each_report_of_the_probes_is_one_state() {
        assert_eq!(evaluated(|_| {}), (State::Attached, Some(1.0), String::new()));
        let sampled = (State::Partial, Some(0.25), OVER_BUDGET.to_owned());
        assert_eq!(evaluated(|status| status.timed_share = 0.25), sampled);
        let disabled = |reason: &str| (State::Disabled, Some(0.0), reason.to_owned());
        assert_eq!(evaluated(|status| status.enabled = false), disabled(BY_SIGNAL));
        assert_eq!(evaluated(|status| status.discovery.scans = 0), disabled(Period::STARTING));
        let broken = || ProgramVerdict::Broken("no BTF".into());
        let no_probe = evaluated(|status| {
            status.programs[0].verdict = broken();
            status.libraries[0].verdict = LibraryVerdict::Refused("EPERM".into());
        });
        assert_eq!(no_probe, disabled(ALL_BROKEN));
        let refused = evaluated(|status| status.thread_records = ThreadRecords::Refused);
        assert_eq!(refused, disabled(NO_RECORDS));
        let few = evaluated(|status| status.thread_records = ThreadRecords::SomeRefused);
        assert_eq!(few, (State::Partial, None, FEW_RECORDS.to_owned()));
        assert_eq!(
            evaluate(&Status { enabled: false, ..status() }, &[], Switch::Configuration, 7.0)
                .reason,
            BY_CONFIGURATION
        );
    }

    #[test]
    fn functions_that_get_no_probe_for_the_risk_of_it_leave_observation_partial() {
        let left_out = evaluated(|status| status.libraries[0].left_out = vec!["cuInit".into()]);
        assert_eq!(left_out, (State::Partial, None, LEFT_OUT.to_owned()));
        let all = evaluated(|status| status.libraries[0].verdict = LibraryVerdict::SingleStepped);
        assert_eq!(all, (State::Disabled, Some(0.0), LEFT_OUT.to_owned()));
    }

    #[test]
    fn a_missing_probe_is_named_and_leaves_the_share_unknown() {
        let (state, share, reason) = evaluated(|status| {
            status.timed_share = 0.25;
            status.libraries[0].verdict = LibraryVerdict::Refused("EPERM".into());
        });
        assert_eq!((state, share), (State::Partial, None));
        assert_eq!(reason, "probes are missing: /usr/lib/libcudart.so.12 (refused: EPERM)");
        let (_, _, reason) = evaluated(|status| {
            let mut library = status.libraries[0].clone();
            library.verdict = LibraryVerdict::OverLimit;
            status.libraries = vec![library; 5];
        });
        assert!(reason.ends_with(" and 2 more"), "{reason}");
    }

    #[test]
    fn processes_that_cannot_be_seen_are_not_observed_and_probes_on_them_are_no_proof() {
        let with = |obstacles: &[Obstacle], status: &Status| {
            let period = evaluate(status, obstacles, Switch::Signal, 7.0);
            (period.state, period.timed_share, period.reason)
        };
        let hidden = with(&[PID_NAMESPACE], &status());
        assert_eq!(hidden, (State::Disabled, Some(0.0), PID_NAMESPACE.sentence()));
        assert!(hidden.2.contains("hostPID: true") && is_broken(&hidden.2), "{}", hidden.2);
        let some = Obstacle { hides_all: false, ..PID_NAMESPACE };
        assert_eq!(with(&[some], &status()), (State::Partial, None, some.sentence()));
        let detached = Status { enabled: false, ..status() };
        assert_eq!(with(&[PID_NAMESPACE], &detached).2, BY_SIGNAL);
        let blind = Observing::new(vec![PID_NAMESPACE]);
        assert_eq!(blind.update(&status()).current.state, State::Disabled);
        assert_eq!(blind.why_nothing(&status()), Some(PID_NAMESPACE.sentence()));
        assert_eq!(Observing::new(vec![some]).why_nothing(&status()), None);
    }

    #[test]
    fn the_state_is_kept_with_the_time_when_it_began() {
        let observing = Observing::new(Vec::new());
        let mut starting = status();
        starting.discovery.scans = 0;
        assert_eq!(observing.update(&starting).current.reason, Period::STARTING);
        let begun = observing.update(&status());
        assert_eq!((begun.current.state, begun.earlier.len()), (State::Attached, 0));
        let since = observing.update(&status()).current.since;
        assert_eq!(since, begun.current.since);
        observing.set_switch(Switch::Signal);
        let state = observing.update(&Status { enabled: false, ..status() });
        assert_eq!((state.current.state, &*state.current.reason), (State::Disabled, BY_SIGNAL));
        assert_eq!(state.earlier.last().map(|own| own.since), Some(since));
        assert_eq!(state.earlier.last().and_then(|own| own.until), Some(state.current.since));
    }
}
