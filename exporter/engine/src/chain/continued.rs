//! One chain of two that recorders found one after the other.

use super::{Chain, Course};
use crate::chain::losses;

impl Chain {
    /// This chain, which a later run of a recorder continues with `other`. Sums are of both, and of times that both saw they count
    /// once; all else is of the one that was seen last.
    #[must_use]
    pub fn continued_by(self, other: Self) -> Self {
        let (earlier, mut later) = match self.first_seen <= other.first_seen {
            true => (self, other),
            false => (other, self),
        };
        let (known, known_lost) = (earlier.attributed_seconds(), earlier.lost_seconds);
        let (all, all_lost) = (later.attributed_seconds(), later.lost_seconds);
        let (own, own_lost) =
            later.taken_in((earlier.last_seen, f64::INFINITY)).unwrap_or((all, all_lost));
        let part = if all_lost > 0.0 { own_lost / all_lost } else { 0.0 };
        later.losses.iter_mut().for_each(|loss| loss.seconds *= part);
        let mut losses = earlier.losses.clone();
        losses::add(&mut losses, &later.losses);
        let shift = later.first_seen - earlier.first_seen;
        let base = (known + own - all, known_lost + own_lost - all_lost);
        let taken_by = earlier.course.joined(&later.course, shift, base);
        let worst = if earlier.severity > later.severity { &earlier } else { &later };
        let (severity, severity_at) = (worst.severity, worst.course.severity_at);
        let first_seen = earlier.first_seen;
        let mut whole = if later.last_seen >= earlier.last_seen { later } else { earlier };
        let last_severity = Some(whole.last_severity());
        let when = whole.when();
        (whole.first_seen, whole.severity) = (first_seen, severity);
        whole.course = Course { severity_at, last_severity, taken_by, ..whole.course };
        (whole.lost_seconds, whole.losses) = (known_lost + own_lost, losses);
        whole.set_attributed_seconds(known + own);
        if let Some(sentence) = whole.sentence.strip_suffix(&when) {
            whole.sentence = format!("{sentence}{}", whole.when());
        }
        whole
    }
}
