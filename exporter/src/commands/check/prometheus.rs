//! A Prometheus must scrape this host, have the rules, and know how busy GPUs are.

use std::collections::HashSet;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant};

use gpucause_http::client::Address;
use gpucause_investigations::prometheus::Prometheus;
use gpucause_observe::host_name::node_name;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Point, State};
use crate::flags::WebArgs;
use crate::nodes::{MAX_ANSWER, TARGETS, block_on};
use crate::store_url::{PrometheusLogin, PrometheusUrl};

pub(super) const RULES: &str = "/api/v1/rules";

/// Time to resolve the names of targets.
const RESOLVE: Duration = Duration::from_secs(5);
/// Names of missing rules that a point lists.
const MAX_NAMED: usize = 3;

/// The utilization of GPUs by the names that rules know, and all metrics of the exporters that have it.
const UTILIZATION: &str = r#"count({__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_GPU_UTIL_RATIO",UUID!=""} or nvidia_smi_utilization_gpu_ratio)"#;
const OF_GPUS: &str = r#"count({__name__=~"DCGM_.+|nvidia_smi_.+"})"#;

/// The files of rules, and the names in each.
const FILES: &[(&str, &[&str])] = include!(concat!(env!("OUT_DIR"), "/rule_names.rs"));

#[derive(Debug, Deserialize)]
struct Targets {
    #[serde(rename = "activeTargets", default)]
    active: Vec<Target>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    scrape_url: String,
    #[serde(default)]
    health: String,
    #[serde(default)]
    last_error: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rules {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    name: String,
    #[serde(default)]
    health: String,
    #[serde(default)]
    last_error: String,
}

/// Points about the target and the rules.
pub(super) fn report(url: &PrometheusUrl, login: &PrometheusLogin, web: &WebArgs) -> Vec<Point> {
    let ports: Vec<u16> = web.listen_addresses.iter().map(|address| address.port()).collect();
    let path = web.telemetry_path.as_str();
    let target = match fetch::<Targets>(url, login, TARGETS) {
        Ok(Targets { active }) => target(&mine(url, active, &ports), url, &ports, path),
        // The rules would fail for the same reason.
        Err(error) => return vec![Point::failed("prometheus", &error)],
    };
    let rules = match fetch::<Rules>(url, login, RULES) {
        Ok(Rules { groups }) => rules(groups.into_iter().flat_map(|group| group.rules), url),
        Err(error) => Point::failed("prometheus rules", &error),
    };
    vec![target, rules, utilization(url, login)]
}

/// A question about series, and whether there are any.
fn has(url: &PrometheusUrl, login: &PrometheusLogin, expression: &str) -> Result<bool, String> {
    let client = url.client(login).map_err(|error| error.to_string())?;
    let found = block_on(Prometheus::new(client).query(expression))
        .map_err(|error| format!("{error:#}"))?
        .map_err(|error| error.to_string())?;
    Ok(!found.is_empty())
}

/// A point about the utilization of GPUs.
fn utilization(url: &PrometheusUrl, login: &PrometheusLogin) -> Point {
    match has(url, login, UTILIZATION) {
        Ok(true) => known_utilization(url, true, true),
        Ok(false) => match has(url, login, OF_GPUS) {
            Ok(others) => known_utilization(url, false, others),
            Err(error) => Point::failed(SUBJECT_UTILIZATION, &error),
        },
        Err(error) => Point::failed(SUBJECT_UTILIZATION, &error),
    }
}

const SUBJECT_UTILIZATION: &str = "prometheus utilization";

fn known_utilization(url: &PrometheusUrl, is_known: bool, has_others: bool) -> Point {
    if is_known {
        let detail = format!("{url} has the utilization of GPUs");
        return Point::ok(SUBJECT_UTILIZATION, detail);
    }
    let (state, what) = match has_others {
        true => (
            State::Failed,
            "has metrics of GPUs, and none of them is a utilization that rules know",
        ),
        false => (State::Disabled, "has no metrics of GPUs"),
    };
    let detail = format!("{url} {what}: rules that compare it with launches never fire");
    Point::new(state, SUBJECT_UTILIZATION, detail).advise(
        "scrape dcgm-exporter with DCGM_FI_DEV_GPU_UTIL or DCGM_FI_DEV_GPU_UTIL_RATIO among its counters, or let this daemon read NVML",
    )
}

/// The data of an answer of the API.
fn fetch<T: DeserializeOwned>(
    url: &PrometheusUrl,
    login: &PrometheusLogin,
    path: &str,
) -> Result<T, String> {
    let client = url.client(login).map_err(|error| error.to_string())?;
    let prometheus = Prometheus::new(client);
    block_on(prometheus.data(path, MAX_ANSWER))
        .map_err(|error| format!("{error:#}"))?
        .map_err(|error| format!("{error} - check --prometheus, and that it runs"))
}

/// The targets on these ports of this host.
fn mine(url: &PrometheusUrl, targets: Vec<Target>, ports: &[u16]) -> Vec<Target> {
    let addressed = targets.into_iter().filter_map(|target| {
        let address = Address::parse(&target.scrape_url, [80, 443])?;
        // Shown in messages: without a login.
        let target = Target { scrape_url: address.to_string(), ..target };
        ports.contains(&address.target().1).then_some((address, target))
    });
    // For a Prometheus on another host, localhost is not this host.
    let beside = is_here(url.address().target().0);
    let deadline = Instant::now() + RESOLVE;
    let here = |address: &Address| {
        let host = address.target().0;
        is_named(host, &node_name())
            || (address.is_loopback() && beside)
            || (!address.is_loopback() && Instant::now() < deadline && is_here(host))
    };
    addressed.filter(|(address, _)| here(address)).map(|(_, target)| target).collect()
}

/// Returns true if a target's name is that of this host, with or without a domain.
fn is_named(host: &str, node: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    host.parse::<std::net::IpAddr>().is_err() && !node.is_empty() && first(host) == first(node)
}

/// Returns true if a name or address is one of this host: a socket can be bound to it.
fn is_here(host: &str) -> bool {
    let mut resolved = (host, 0).to_socket_addrs().into_iter().flatten();
    resolved.any(|address| UdpSocket::bind(address).is_ok())
}

fn target(mine: &[Target], url: &PrometheusUrl, ports: &[u16], path: &str) -> Point {
    let subject = "prometheus target";
    let Some(first) = mine.first() else {
        let ports: Vec<_> = ports.iter().map(|port| format!(":{port}")).collect();
        let ports = ports.join(" or ");
        let detail = format!("{url} has no target that is {ports} of this host");
        let port = ports.split(' ').next().unwrap_or_default();
        let advice = format!("add {}{port} to its scrape_configs", node_name());
        return Point::new(State::Failed, subject, detail).advise(advice);
    };
    let down = mine.iter().find(|target| target.health == "down");
    let path_of = |target: &Target| Address::parse(&target.scrape_url, [80, 443]);
    let is_page = |target: &Target| {
        path_of(target).is_some_and(|own| own.path().split('?').next() == Some(path))
    };
    if let Some(Target { scrape_url, last_error, .. }) = down {
        let detail = format!("scrapes of {scrape_url} fail: {last_error}");
        return Point::new(State::Failed, subject, detail)
            .advise("check that an exporter runs here, its TLS and users, and firewalls");
    }
    if !mine.iter().any(is_page) {
        let detail = format!("{} is scraped, and not {path}", first.scrape_url);
        return Point::new(State::Failed, subject, detail)
            .advise(format!("set metrics_path: {path} in its scrape_configs"));
    }
    let urls: Vec<_> = mine.iter().map(|target| &*target.scrape_url).collect();
    Point::ok(subject, format!("{url} scrapes {}", urls.join(", ")))
}

impl Rules {
    /// Names of all of them.
    pub(super) fn names(self) -> impl Iterator<Item = String> {
        self.groups.into_iter().flat_map(|group| group.rules).map(|rule| rule.name)
    }
}

fn rules(found: impl Iterator<Item = Rule>, url: &PrometheusUrl) -> Point {
    let subject = "prometheus rules";
    let known: HashSet<&str> = FILES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let found: Vec<Rule> = found.filter(|rule| known.contains(&*rule.name)).collect();
    let names: HashSet<&str> = found.iter().map(|rule| &*rule.name).collect();
    let missing: Vec<_> =
        FILES.iter().filter_map(|(file, all)| missing(file, all, &names)).collect();
    if !missing.is_empty() {
        let detail = format!("{url} lacks rules: {}", missing.join("; "));
        return Point::new(State::Failed, subject, detail).advise(
            "load /usr/share/gpucause/rules/*.yaml and alerts/*.yaml with rule_files, and reload it",
        );
    }
    if let Some(Rule { name, last_error, .. }) = found.iter().find(|rule| rule.health == "err") {
        let detail = format!("{url} cannot evaluate {name}: {last_error}");
        return Point::new(State::Failed, subject, detail).advise("see its page /rules");
    }
    Point::ok(subject, format!("{url} has all {} rules", known.len()))
}

/// The rules of a file that are missing, if any are.
fn missing(file: &str, all: &[&str], names: &HashSet<&str>) -> Option<String> {
    let missing: Vec<_> = all.iter().filter(|name| !names.contains(**name)).copied().collect();
    let named = missing.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    match (missing.len(), all.len()) {
        (0, _) => None,
        (count, of) if count == of => Some(format!("{file} (all {of})")),
        (count, of) if count > MAX_NAMED => Some(format!("{file} ({count} of {of}: {named}, ...)")),
        (count, of) => Some(format!("{file} ({count} of {of}: {named})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> PrometheusUrl {
        "http://localhost:9090".parse().unwrap()
    }

    fn target_of(scrape_url: &str, health: &str) -> Target {
        let (scrape_url, health) = (scrape_url.into(), health.into());
        Target { scrape_url, health, last_error: "connection refused".into() }
    }

    fn all_rules() -> Vec<Rule> {
        let names = FILES.iter().flat_map(|(_, names)| names.iter());
        let rule = |name: &&str| Rule {
            name: (*name).into(),
            health: "ok".into(),
            last_error: String::new(),
        };
        names.map(rule).collect()
    }

    #[test]
    fn the_targets_of_this_host_are_known_by_name_and_address_and_port() {
        let (here, there) = ("http://127.0.0.1:9400/metrics", "http://192.0.2.1:9400/metrics");
        let named = format!("http://{}.example:9400/metrics", node_name());
        let all = [here, there, "http://127.0.0.1:9100/metrics", &named];
        let all = || all.iter().map(|url| target_of(url, "up")).collect();
        let found = mine(&url(), all(), &[9400]);
        let found: Vec<_> = found.iter().map(|target| &*target.scrape_url).collect();
        assert_eq!(found, [here, &named]);
        let elsewhere = "http://192.0.2.1:9090".parse().unwrap();
        let found = mine(&elsewhere, all(), &[9400]);
        assert_eq!(found.len(), 1, "localhost is the host of that Prometheus: {found:?}");
    }

    #[test]
    fn a_target_that_is_missing_down_or_of_another_path_fails_with_what_to_do() {
        let point = |targets: &[Target]| target(targets, &url(), &[9400], "/metrics");
        let up = target_of("http://gpu-1:9400/metrics?level=fleet", "up");
        assert_eq!(point(std::slice::from_ref(&up)).state, State::Ok);
        for (targets, what, advice) in [
            (vec![], "no target that is :9400", ":9400 to its scrape_configs"),
            (vec![up, target_of("http://gpu-1:9400/metrics", "down")], "refused", "firewalls"),
            (vec![target_of("http://gpu-1:9400/", "up")], "not /metrics", "metrics_path: /metrics"),
        ] {
            let point = point(&targets);
            assert_eq!(point.state, State::Failed, "{point:?}");
            assert!(point.detail.contains(what), "{point:?}");
            assert!(point.advice.as_ref().unwrap().contains(advice), "{point:?}");
        }
    }

    #[test]
    fn a_prometheus_without_a_utilization_that_rules_know_says_what_to_scrape() {
        let state = |known, others| known_utilization(&url(), known, others).state;
        assert_eq!(state(true, true), State::Ok);
        assert_eq!(state(false, false), State::Disabled);
        assert_eq!(state(false, true), State::Failed);
        let advice = known_utilization(&url(), false, true).advice.unwrap();
        assert!(advice.contains("DCGM_FI_DEV_GPU_UTIL_RATIO"), "{advice}");
    }

    #[test]
    fn missing_and_failing_rules_are_named_with_their_file() {
        let names: Vec<_> = FILES.iter().map(|(file, _)| *file).collect();
        for file in ["alerts/exporter.yaml", "alerts/workload.yaml", "rules/processes.yaml"] {
            assert!(names.contains(&file), "{names:?}");
        }
        assert_eq!(rules(all_rules().into_iter(), &url()).state, State::Ok);
        let none = rules(std::iter::empty(), &url());
        assert!(none.detail.contains("alerts/exporter.yaml (all "), "{none:?}");
        let lacks =
            |name: &str| rules(all_rules().into_iter().filter(|rule| rule.name != name), &url());
        let one = lacks("GpucauseExporterDown");
        assert_eq!(one.state, State::Failed);
        assert!(one.detail.ends_with(": GpucauseExporterDown)"), "{one:?}");
        let mut broken = all_rules();
        broken[0].health = "err".into();
        assert!(rules(broken.into_iter(), &url()).detail.contains("cannot evaluate"));
    }

    #[test]
    fn rules_of_native_histograms_are_enough_in_place_of_those_of_classic_buckets() {
        let names = |text: &'static str| -> HashSet<&str> {
            text.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect()
        };
        let classic = names(include_str!("../../../../rules/histograms.yaml"));
        let native = names(include_str!("../../../../rules/native/histograms.yaml"));
        assert_eq!((classic.len(), native.len()), (5, 4), "{classic:?} {native:?}");
        let others = all_rules().into_iter().filter(|rule| !classic.contains(&*rule.name));
        let mut loaded: Vec<Rule> = others.collect();
        assert_eq!(rules(loaded.clone().into_iter(), &url()).state, State::Failed);
        let rule = |name: &&str| Rule { name: (*name).into(), ..loaded[0].clone() };
        let natives: Vec<Rule> = native.iter().map(rule).collect();
        loaded.extend(natives);
        assert_eq!(rules(loaded.into_iter(), &url()).state, State::Ok);
    }
}
