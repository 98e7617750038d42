//! `gpucause check`: whether the exporter can run on this host and whether it does, and how to fix what failed.

mod args;
mod capability;
mod host;
mod installed;
mod listening;
mod programs;
mod prometheus;
mod remote;
mod settings;
mod text;

use std::collections::BTreeMap;

use gpucause_investigations::json::Versioned;
use gpucause_observe::host_name::node_name;
use serde::Serialize;

use gpucause_probes::Options;

pub use args::CheckArgs;
pub(crate) use args::STATUS;

/// The result of one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Passed.
    Ok,
    /// This kernel or library does not have it; the exporter runs without it.
    Unsupported,
    /// Off, or not permitted; the exporter runs without it.
    Disabled,
    /// Has to be fixed.
    Failed,
}

impl State {
    const ALL: [Self; 4] = [Self::Ok, Self::Unsupported, Self::Disabled, Self::Failed];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::Disabled => "disabled",
            Self::Failed => "failed",
        }
    }
}

/// One point of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The result.
    pub state: State,
    /// The subject of the check.
    pub subject: String,
    /// The result in words.
    pub detail: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// True if the exporter cannot run unless this point is ok.
    pub required: bool,
}

impl Point {
    fn new(state: State, subject: impl Into<String>, detail: impl Into<String>) -> Self {
        let (subject, detail) = (subject.into(), detail.into());
        Self { state, subject, detail, advice: None, required: false }
    }

    fn ok(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(State::Ok, subject, detail)
    }

    /// Makes a failed point of an error. Behind a dash, its message may say what to do.
    fn failed(subject: impl Into<String>, error: &str) -> Self {
        match error.rsplit_once(" - ") {
            Some((what, advice)) => Self::new(State::Failed, subject, what).advise(advice),
            None => Self::new(State::Failed, subject, error),
        }
    }

    fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Returns the detail and the advice.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{} - {advice}", self.detail),
            None => self.detail.clone(),
        }
    }
}

/// The report as JSON has it.
#[derive(Serialize)]
struct Object<'a> {
    host: String,
    exporter_can_run: bool,
    /// Points by state.
    summary: BTreeMap<&'static str, usize>,
    points: &'a [Point],
}

/// Everything that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// In the order in which the exporter needs them.
    pub points: Vec<Point>,
    /// True if a configuration is invalid.
    pub misconfigured: bool,
}

impl Report {
    /// Checks this host for an exporter with these flags, and the exporter that runs.
    #[must_use]
    pub fn of(args: &CheckArgs) -> Self {
        let exporter = &args.exporter;
        let mut report = Self::default();
        report.add_settings(settings::report(exporter));
        report.points.extend(settings::flights(exporter));
        report.add_host(exporter.probe.options());
        report.add_settings(settings::dcgm(&exporter.gpus));
        for address in &exporter.web.listen_addresses {
            report.points.extend(listening::report(address));
        }
        if let Some(url) = &args.prometheus {
            report.points.extend(prometheus::report(url, &args.prometheus_login, &exporter.web));
        }
        report
    }

    /// Checks what any exporter needs of this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        let mut report = Self::default();
        report.add_host(Options::default());
        report
    }

    fn add_settings(&mut self, points: impl IntoIterator<Item = Point>) {
        for point in points {
            self.misconfigured |= point.required && point.state == State::Failed;
            self.points.push(point);
        }
    }

    fn add_host(&mut self, options: Options) {
        self.points.extend(host::report());
        self.points.extend(capability::report());
        self.points.extend(programs::report(options));
        self.points.extend(installed::report());
    }

    /// Returns true if the exporter can run.
    #[must_use]
    pub fn can_run(&self) -> bool {
        !self.points.iter().any(|point| point.required && point.state != State::Ok)
    }

    /// Returns true if an exporter runs.
    fn runs(&self) -> bool {
        let exporter = |point: &Point| point.subject.starts_with("exporter ");
        self.points.iter().any(|point| exporter(point) && point.state == State::Ok)
    }

    /// Returns true if a point failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.count(State::Failed) > 0
    }

    fn count(&self, state: State) -> usize {
        self.points.iter().filter(|point| point.state == state).count()
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None in practice: every value has a form in JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Versioned::new(Object {
            host: node_name(),
            exporter_can_run: self.can_run(),
            summary: State::ALL.map(|state| (state.label(), self.count(state))).into(),
            points: &self.points,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_required_keeps_the_exporter_from_running() {
        let mut report = Report::default();
        report.points.push(Point::new(State::Disabled, "mmap events", "scans only"));
        assert!(report.can_run() && !report.has_failed());
        report.points.push(Point::failed("prometheus", "no target - add one"));
        assert!(report.can_run() && report.has_failed());
        report.points.push(Point::failed("listen :9400", "taken").required());
        assert!(!report.can_run());
    }

    #[test]
    fn json_has_a_version_the_counts_and_every_point() {
        let ok = Point::ok("kernel", "6.18");
        let failed = Point::failed("listen :9400", "used by x - stop it").required();
        let report = Report { points: vec![ok, failed], misconfigured: false };
        let text = report.json().unwrap();
        assert!(text.starts_with("{\n  \"version\": 1,\n  \"host\""), "{text}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["exporter_can_run"], false);
        assert_eq!((&json["summary"]["ok"], &json["summary"]["disabled"]), (&1.into(), &0.into()));
        let point = &json["points"][1];
        assert_eq!((&point["state"], &point["advice"]), (&"failed".into(), &"stop it".into()));
        assert!(json["points"][0].get("advice").is_none());
    }
}
