//! Arithmetic of times and time accounts.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::{Phase, State};

/// Saturating sum.
pub(crate) fn total(times: impl Iterator<Item = Nanos>) -> Nanos {
    Nanos(times.fold(0, |all, time| all.saturating_add(time.0)))
}

/// `part / whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: Nanos, whole: Nanos) -> f64 {
    if whole.0 == 0 { 0.0 } else { part.0 as f64 / whole.0 as f64 }
}

/// The part of an account that is in these phases and states.
pub(crate) fn part(time: &TimeAccount, wanted: impl Fn(Phase, State) -> bool) -> TimeAccount {
    let mut part = TimeAccount::default();
    for &phase in Phase::ALL {
        for state in State::all().filter(|&state| wanted(phase, state)) {
            part.0[phase as usize][state.index()] = time.at(phase, state);
        }
    }
    part
}

/// Scales all cells of an account by a share from 0 to 1.
pub(crate) fn share(mut time: TimeAccount, share: f64) -> TimeAccount {
    if share < 1.0 {
        time.0.as_flattened_mut().iter_mut().for_each(|cell| *cell = cell.share(share));
    }
    time
}

/// Scales all cells of an account so that the total is at most `most`.
pub(crate) fn at_most(time: TimeAccount, most: Nanos) -> TimeAccount {
    let total = time.total();
    if total <= most { time } else { share(time, ratio(most, total)) }
}

/// Combines two accounts cell by cell.
fn combined(
    mut time: TimeAccount,
    other: &TimeAccount,
    of: impl Fn(Nanos, Nanos) -> Nanos,
) -> TimeAccount {
    let cells = time.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened());
    cells.for_each(|(own, other)| *own = of(*own, *other));
    time
}

/// Saturating difference, cell by cell.
pub(crate) fn less(time: TimeAccount, other: &TimeAccount) -> TimeAccount {
    combined(time, other, Nanos::less)
}

/// Minimum, cell by cell.
pub(crate) fn within(time: TimeAccount, most: &TimeAccount) -> TimeAccount {
    combined(time, most, Nanos::min)
}
