//! These functions put the numbers of a chain into words.

use gpucause_engine::chain::{Chain, Loss};

/// Less is printed as 0.0 s.
const LEAST_LOST: f64 = 0.05;

/// Culprits listed of a chain; JSON has all.
const MOST_LOSSES: usize = 5;

/// Share of the loss from which a culprit is listed.
const LEAST_LOSS: f64 = 0.01;

/// The probes keep some names for each process and call all other tasks this. A task that has this name counts as one of them.
const UNNAMED: &str = "other";

/// The share of its effect, and the time that it took: in the period, and in all where that is more.
pub(crate) fn amounts(
    chain: &Chain,
    period: (f64, f64),
    time: impl Fn(f64) -> String,
) -> (String, String) {
    (share(chain, period, &time), taken(chain, period, &time))
}

fn share(chain: &Chain, (from, until): (f64, f64), time: impl Fn(f64) -> String) -> String {
    let effect = chain.effect.describe();
    let share = format!("explains {:.0} % of the {effect}", chain.explained * 100.0);
    let measured = chain.course.measured_at.unwrap_or(chain.last_seen);
    match measured < from || measured > until {
        true => format!("{share} at {}, outside this period", time(measured)),
        false => share,
    }
}

fn taken(chain: &Chain, period: (f64, f64), time: impl Fn(f64) -> String) -> String {
    let all = chain.attributed_seconds();
    let of_it = |lost: f64| {
        let says_something = chain.cause.loses_time() || lost >= LEAST_LOST;
        if says_something { format!(", {lost:.1} s of it lost") } else { String::new() }
    };
    let lost = of_it(chain.lost_seconds);
    let is_whole = period.0 <= chain.first_seen && period.1 >= chain.last_seen;
    match chain.taken_in(period) {
        _ if is_whole => format!("took {all:.1} s in all{lost}"),
        Some((own, lost)) => format!(
            "took {own:.1} s in this period{}; {all:.1} s since {}",
            of_it(lost),
            time(chain.first_seen)
        ),
        None => format!(
            "took {all:.1} s since {}{lost}: times are of the whole chain",
            time(chain.first_seen)
        ),
    }
}

/// Lost time by culprit, the longest first, that of all others, with their number where the probes could name them all, and the rest,
/// whose culprits are not known.
pub(crate) fn losses(chain: &Chain) -> String {
    let (unnamed, named): (Vec<&Loss>, Vec<&Loss>) =
        chain.losses.iter().partition(|loss| loss.pid.is_none() && loss.comm == UNNAMED);
    let least = LEAST_LOSS * chain.lost_seconds;
    let shown = named.iter().take(MOST_LOSSES).take_while(|loss| loss.seconds >= least).count();
    let (listed, others) = named.split_at(shown);
    let total = |losses: &[&Loss]| losses.iter().map(|loss| loss.seconds).sum::<f64>();
    let mut parts: Vec<_> = listed
        .iter()
        .map(|loss| match loss.pid {
            Some(pid) => format!("{} (PID {pid}) {:.2} s", loss.comm, loss.seconds),
            None => format!("{} {:.2} s", loss.comm, loss.seconds),
        })
        .collect();
    let rest = total(others) + total(&unnamed);
    let time = match rest < 0.005 {
        true => "less than 0.01 s".to_owned(),
        false => format!("{rest:.2} s"),
    };
    match (others.len(), unnamed.is_empty()) {
        (0, true) => {}
        (1, true) => parts.push(format!("1 other {time}")),
        (count, true) => parts.push(format!("{count} others {time}")),
        (_, false) => parts.push(format!("others {time}")),
    }
    let unknown = chain.lost_seconds - total(listed) - rest;
    if unknown >= 0.01 {
        parts.push(format!("not known {unknown:.2} s"));
    }
    parts.join(", ")
}

/// At most six decimal places, without trailing zeros.
pub(crate) fn plain(value: f64) -> String {
    let text = if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.6}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}
