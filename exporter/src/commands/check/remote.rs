//! Services that the exporter uses on other hosts: the OTLP endpoint, and the Prometheus that compares ranks.

use std::collections::HashSet;
use std::time::Duration;

use gpucause_investigations::prometheus::{Prometheus, PrometheusError};

use super::prometheus::{RULES, Rules};
use super::{Point, State};
use crate::nodes::{MAX_ANSWER, block_on};
use crate::otlp::{OtlpSettings, probe};
use crate::peers::{self, PeersSettings};

const OTLP: &str = "otlp.endpoint";
const PEERS: &str = "peers.url";
const METRIC_NAME: &str = "__name__";
/// Time for a request. The exporter gives more, and runs without an answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Checks that the files of the OTLP endpoint can be used and that it takes records, if there is one.
pub(super) fn otlp(settings: &OtlpSettings) -> Option<Point> {
    if let Err(error) = settings.check() {
        return Some(unusable(OTLP, &error.to_string()));
    }
    let warning = settings.warning();
    let Some(endpoint) = &settings.endpoint else { return warning.map(|text| unused(OTLP, text)) };
    let answer = block_on(probe(settings, TIMEOUT)).flatten();
    Some(match answer {
        Ok(()) => warned(Point::ok(OTLP, format!("{endpoint} takes records")), warning),
        Err(error) => failed(OTLP, &format!("{endpoint}: {error}")),
    })
}

/// Checks that the files of the Prometheus that compares ranks can be used, that it answers and has the rules, if there is one.
pub(super) fn peers(settings: &PeersSettings) -> Option<Point> {
    if let Err(error) = settings.check() {
        return Some(unusable(PEERS, &error.to_string()));
    }
    let warning = settings.warning();
    let Some(url) = &settings.url else { return warning.map(|text| unused(PEERS, text)) };
    let client = match settings.client() {
        Ok(client) => client?,
        Err(error) => return Some(unusable(PEERS, &error.to_string())),
    };
    let prometheus = Prometheus::new(client).with_timeout(TIMEOUT);
    let missing = match block_on(missing_rules(&prometheus)) {
        Ok(Ok(missing)) => missing,
        Ok(Err(error @ PrometheusError::Refused(_, 401 | 403, _))) => {
            let login = "check the user in peers.url, and peers.password_file";
            return Some(Point::failed(PEERS, &error.to_string()).advise(login));
        }
        Ok(Err(error)) => return Some(failed(PEERS, &error.to_string())),
        Err(error) => return Some(failed(PEERS, &error.to_string())),
    };
    let missing = match missing {
        Some(missing) if !missing.is_empty() => missing,
        known => {
            let has = if known.is_some() { "has the rules" } else { "does not list its rules" };
            let detail = format!("{url} answers, and {has}");
            return Some(warned(Point::ok(PEERS, detail), warning));
        }
    };
    let detail = format!("{url} lacks rules for ranks on other hosts: {}", missing.join(", "));
    let advice = "load /usr/share/gpucause/rules/*.yaml with rule_files, and reload it";
    Some(Point::failed(PEERS, &detail).advise(advice))
}

/// Returns the missing rules among those whose series are asked for; `None` where they are unknown. A rule that has series exists, also
/// where another program evaluates rules.
async fn missing_rules(
    prometheus: &Prometheus,
) -> Result<Option<Vec<&'static str>>, PrometheusError> {
    let names = peers::RULES.join("|");
    let present = format!("count by ({METRIC_NAME}) ({{{METRIC_NAME}=~\"{names}\"}})");
    let present = prometheus.query(&present).await?;
    let present = present.into_iter().filter_map(|mut own| own.labels.remove(METRIC_NAME));
    let mut known: HashSet<String> = present.collect();
    // While no job runs, rules have no series.
    if peers::RULES.iter().any(|name| !known.contains(*name)) {
        match prometheus.data::<Rules>(RULES, MAX_ANSWER).await {
            Ok(rules) => known.extend(rules.names()),
            // Such as of a proxy that lets queries pass, and nothing else.
            Err(PrometheusError::Refused(..)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(peers::RULES.into_iter().filter(|name| !known.contains(*name)).collect()))
}

/// The exporter does not start.
fn unusable(subject: &str, error: &str) -> Point {
    let point = Point::failed(subject, error).required();
    let usual = "check the path, and that the exporter may read it";
    if point.advice.is_some() { point } else { point.advise(usual) }
}

fn unused(subject: &str, warning: &str) -> Point {
    Point::new(State::Disabled, subject, warning)
}

fn failed(subject: &str, error: &str) -> Point {
    let point = Point::failed(subject, error);
    let usual = format!("check {subject}, and that it runs");
    if point.advice.is_some() { point } else { point.advise(usual) }
}

/// With what is wrong although it works.
fn warned(point: Point, warning: Option<&str>) -> Point {
    match warning {
        Some(warning) => point.advise(warning),
        None => point,
    }
}
