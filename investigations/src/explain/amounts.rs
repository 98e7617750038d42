//! These functions put a chain's share and time in the asked period into words.

use gpucause_engine::chain::Chain;

/// Less is printed as 0.0 s.
const LEAST_LOST: f64 = 0.05;

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
