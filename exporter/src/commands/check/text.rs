//! The report as text: failed points last.

use std::fmt::Write as _;

use super::{Point, Report, State};
use gpucause_investigations::untrusted_text::line;

impl Report {
    /// The report as text, with colours: to be printed on a stream that removes them where they are not wanted.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (failed, others): (Vec<_>, Vec<_>) =
            self.points.iter().partition(|point| point.state == State::Failed);
        others.into_iter().for_each(|point| write_point(&mut out, point));
        if !failed.is_empty() {
            out.push('\n');
        }
        failed.into_iter().for_each(|point| write_point(&mut out, point));
        let counts = State::ALL.map(|state| format!("{} {}", self.count(state), state.label()));
        let verdict = match (self.can_run(), self.runs()) {
            (true, _) => "the exporter can run",
            (false, true) => {
                "you cannot run the exporter, and one runs: ask it with gpucause explain --url http://USER@HOST:PORT"
            }
            (false, false) => "the exporter cannot run",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}: {verdict}", counts.join(", "));
        out
    }
}

fn write_point(out: &mut String, point: &Point) {
    let colour = match point.state {
        State::Ok => "\x1b[32m",
        State::Unsupported | State::Disabled => "\x1b[33m",
        State::Failed => "\x1b[1;31m",
    };
    let (label, subject) = (point.state.label(), line(&point.subject));
    let text = line(&point.text());
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{colour}{label:<12}\x1b[0m {subject:<26} {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_exporter_runs_one_who_may_not_start_another_learns_how_to_ask_it() {
        let lacking = Point::failed("CAP_BPF", "loads the programs").required();
        let running = Point::ok("exporter :9400", "it runs");
        let of = |points| Report { points, misconfigured: false }.text();
        assert!(of(vec![lacking.clone(), running]).contains("one runs: ask it with"));
        assert!(of(vec![lacking]).ends_with("the exporter cannot run\n"));
    }

    #[test]
    fn failed_points_are_last_before_the_summary() {
        let points = vec![
            Point::failed("listen :9400", "used by \u{1b}[2J (PID 7) - stop it").required(),
            Point::ok("kernel", "6.18"),
        ];
        let report = Report { points, misconfigured: false };
        let text = anstream::adapter::strip_str(&report.text()).to_string();
        assert_eq!(
            text,
            "ok           kernel                     6.18\n\n\
             failed       listen :9400               used by ?[2J (PID 7) - stop it\n\n\
             1 ok, 0 unsupported, 0 disabled, 1 failed: the exporter cannot run\n"
        );
    }
}
