//! How severe a chain was when, and what it took by when.

use serde::{Deserialize, Serialize};

use super::{Chain, Severity};

/// Points of [`Course::taken_by`]: 384 bytes of each of up to `max_chains` chains.
const MAX_POINTS: usize = 32;

/// The course of a chain. Chains of old nodes and old files have none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// When a window had the chain's severity for the last time, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity_at: Option<f64>,
    /// Severity of the last window that was not cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_severity: Option<Severity>,
    /// End of the window that evidence and sentence are of, where a later one had another effect or culprit, or was cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_at: Option<f64>,
    /// Points in the order of time: seconds since the chain was first seen, and the attributed and the lost seconds until then. The
    /// last point has the totals; earlier ones are the fewer the longer ago.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_by: Vec<[f32; 3]>,
}

impl Course {
    /// Adds the window that ended `at` seconds after the first, and the totals until then.
    pub(crate) fn add(&mut self, at: f64, window: f64, totals: (f64, f64)) {
        let [at, window, attributed, lost] = [at, window, totals.0, totals.1].map(rounded);
        let (last_at, last) = match self.taken_by.last() {
            Some(&[at, attributed, lost]) => (at, [attributed, lost]),
            None => (f32::NEG_INFINITY, [0.0; 2]),
        };
        let at = at.max(last_at);
        // A window can be charged with earlier time, too: a thread takes no more of it than there is.
        let begin = at - window.max(attributed - last[0]);
        if begin > last_at {
            self.push([begin, last[0], last[1]]);
        }
        self.push([at, attributed, lost]);
    }

    /// The points of both, those of `later` from the end of these on; none where one has none. `shift` is the time between their
    /// beginnings, and `base` is added to the totals of `later`.
    pub(super) fn joined(&self, later: &Self, shift: f64, base: (f64, f64)) -> Vec<[f32; 3]> {
        let Some(&[end, ..]) = self.taken_by.last() else { return Vec::new() };
        if later.taken_by.is_empty() {
            return Vec::new();
        }
        let mut joined = self.clone();
        for point in &later.taken_by {
            let [at, attributed, lost] = point.map(f64::from);
            let point = [at + shift, attributed + base.0, lost + base.1].map(rounded);
            if point[0] > end {
                joined.push(point);
            }
        }
        joined.taken_by
    }

    /// Where there is no room, the point goes whose neighbours are the closest for their age.
    fn push(&mut self, point: [f32; 3]) {
        if self.taken_by.len() >= MAX_POINTS {
            let width = |own: &[[f32; 3]]| (own[2][0] - own[0][0]) / (point[0] - own[0][0]);
            let widths = self.taken_by.windows(3).map(width).enumerate();
            if let Some((index, _)) = widths.min_by(|a, b| a.1.total_cmp(&b.1)) {
                self.taken_by.remove(index + 1);
            }
        }
        self.taken_by.push(point);
    }

    /// Attributed and lost seconds until `at`; `None` without points. Evenly spread between two points.
    fn until(&self, at: f64) -> Option<(f64, f64)> {
        let last = self.taken_by.last()?.map(f64::from);
        let index = self.taken_by.partition_point(|point| f64::from(point[0]) <= at);
        let Some(after) = self.taken_by.get(index) else { return Some((last[1], last[2])) };
        let Some(before) = index.checked_sub(1) else { return Some((0.0, 0.0)) };
        let (before, after) = (self.taken_by[before].map(f64::from), after.map(f64::from));
        let part = (at - before[0]) / (after[0] - before[0]);
        let between = |column: usize| before[column] + part * (after[column] - before[column]);
        Some((between(1), between(2)))
    }
}

/// To milliseconds: short in JSON.
#[expect(clippy::cast_possible_truncation, reason = "seven digits suffice")]
fn rounded(seconds: f64) -> f32 {
    ((seconds * 1e3).round() / 1e3) as f32
}

impl Chain {
    /// The period without bounds.
    pub const ALWAYS: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

    /// Records the severity of a window, unless it was cut short, and the totals until its end.
    pub(crate) fn record_window(
        &mut self,
        severity: Option<Severity>,
        window: Option<f64>,
        unix: f64,
    ) {
        let totals = (self.attributed_seconds(), self.lost_seconds);
        let course = &mut self.course;
        course.last_severity = severity.or(course.last_severity);
        if severity == Some(self.severity) {
            course.severity_at = Some(unix);
        }
        course.add(unix - self.first_seen, window.unwrap_or(0.0), totals);
    }

    /// Attributed and lost seconds in a period, by its begin and end in seconds since the Unix epoch; `None` where a part of the chain
    /// is outside and only the whole is known.
    pub fn taken_in(&self, (from, until): (f64, f64)) -> Option<(f64, f64)> {
        let begin = self.course.taken_by.first().map_or(0.0, |point| f64::from(point[0]));
        if from <= self.first_seen + begin && until >= self.last_seen {
            return Some((self.attributed_seconds(), self.lost_seconds));
        }
        let at = |unix: f64| self.course.until(unix - self.first_seen);
        let (before, after) = (at(from)?, at(until)?);
        Some(((after.0 - before.0).max(0.0), (after.1 - before.1).max(0.0)))
    }

    /// Severity of the last window.
    pub fn last_severity(&self) -> Severity {
        self.course.last_severity.unwrap_or(self.severity)
    }

    /// The highest severity if a window in the period had it, else that of the last window.
    pub fn severity_in(&self, (from, until): (f64, f64)) -> Severity {
        match self.course.severity_at {
            Some(at) if at < from || at > until => self.last_severity(),
            _ => self.severity,
        }
    }

    /// The [severity in a period](Self::severity_in), and that of the last window or the highest if that was another, such as
    /// `critical at 14:50:57, last medium`, or `medium, critical at 14:50:57` in a period without that time.
    pub fn severities(&self, period: (f64, f64), time: impl Fn(f64) -> String) -> String {
        let (own, last) = (self.severity_in(period), self.last_severity());
        match self.course.severity_at {
            Some(at) if own != last => format!("{own} at {}, last {last}", time(at)),
            Some(at) if own != self.severity => format!("{own}, {} at {}", self.severity, time(at)),
            _ => own.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_the_closer_the_more_recent_they_are() {
        let mut course = Course::default();
        let apart = |course: &Course| {
            let now = course.taken_by.last().unwrap()[0];
            let pairs = course.taken_by.windows(2).filter(|pair| now - pair[1][0] > 10.0);
            pairs.map(|pair| (pair[1][0] - pair[0][0]) / (now - pair[0][0])).fold(0.0, f32::max)
        };
        for (ticks, most) in [(0..400, 0.25), (400..2_400, 0.3), (2_400..57_600, 0.45)] {
            for tick in ticks {
                let at = f64::from(tick) * 1.5;
                course.add(at, 1.5, (at / 3.0, 0.0));
            }
            assert!(apart(&course) <= most, "{} is more than {most}", apart(&course));
            assert_eq!(course.taken_by.len(), MAX_POINTS);
        }
    }
}
