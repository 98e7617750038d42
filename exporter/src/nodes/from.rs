//! Nodes that Prometheus knows: those that it scrapes, or those of a file of its service discovery.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpucause_http::client::{Address, GetError, tls_advice};
use gpucause_input::complaint::in_one_line;
use gpucause_input::document::typed;
use gpucause_input::text_file;
use gpucause_investigations::node::NodeUrl;
use gpucause_investigations::prometheus::{Prometheus, PrometheusError, encoded};
use serde::Deserialize;

use crate::nodes::block_on;
use crate::store_url::{PrometheusLogin, PrometheusUrl, StoreUrlError};

/// Prefix of the names of exporters' scrape jobs, as in `alerts/prometheus.yml`.
const JOB: &str = "gpucause";
/// Largest file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Path of the targets of a Prometheus.
pub(crate) const TARGETS: &str = "/api/v1/targets?state=active";

/// Largest answer in bytes: that of many thousand targets.
pub(crate) const MAX_ANSWER: usize = 128 << 20;

/// Where nodes are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodesFrom {
    /// The targets of this Prometheus.
    Prometheus(PrometheusUrl),
    /// The targets in this file, in YAML or JSON.
    FileSd(PathBuf),
}

/// Text that is not a [`NodesFrom`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesFromError {
    /// The address has a password.
    #[error(transparent)]
    Url(StoreUrlError),
    /// It is neither.
    #[error(
        "{0}expected prometheus:URL, such as prometheus:http://localhost:9090, or file_sd:FILE"
    )]
    Form(String),
}

impl FromStr for NodesFrom {
    type Err = NodesFromError;

    fn from_str(text: &str) -> Result<Self, NodesFromError> {
        match text.split_once(':') {
            Some(("prometheus", url)) => match url.parse() {
                Ok(url) => Ok(Self::Prometheus(url)),
                Err(error @ StoreUrlError::Password(_)) => Err(NodesFromError::Url(error)),
                Err(error) => Err(NodesFromError::Form(format!("{error}; "))),
            },
            Some(("file_sd", path)) if !path.is_empty() => Ok(Self::FileSd(path.into())),
            _ => Err(NodesFromError::Form(String::new())),
        }
    }
}

impl fmt::Display for NodesFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prometheus(url) => write!(f, "{url}"),
            Self::FileSd(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Targets {
    #[serde(rename = "activeTargets", default)]
    active: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    #[serde(rename = "scrapeUrl")]
    scrape_url: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Group {
    targets: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl NodesFrom {
    /// The nodes, each once; `login` is that of the Prometheus, whose certificate may also be of an authority in `ca_file`, and
    /// `user` that of nodes with TLS. Credentials in a target's address are left out: they are Prometheus's own.
    ///
    /// # Errors
    /// With what is wrong, when Prometheus does not answer or the file cannot be used.
    pub fn read(
        &self,
        login: &PrometheusLogin,
        ca_file: Option<&Path>,
        user: Option<&str>,
    ) -> Result<Vec<NodeUrl>, String> {
        let urls = match self {
            Self::Prometheus(url) => scraped(targets(url, login, ca_file)?),
            Self::FileSd(path) => listed(path)?,
        };
        let mut nodes: Vec<NodeUrl> = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            // By its index: it may contain a password.
            let node = node(url, user);
            let node = node.ok_or_else(|| format!("{self}: invalid address of target {index}"))?;
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        Ok(nodes)
    }
}

fn targets(
    url: &PrometheusUrl,
    login: &PrometheusLogin,
    ca_file: Option<&Path>,
) -> Result<Targets, String> {
    let client = url.client_also_trusting(login, ca_file).map_err(|error| error.to_string())?;
    let prometheus = Prometheus::new(client);
    let answer = block_on(prometheus.data(TARGETS, MAX_ANSWER));
    answer.map_err(|error| format!("{error:#}"))?.map_err(|error| match &error {
        PrometheusError::Refused(address, 401, _) if address.user().is_some() => {
            format!("{address}: wrong user or password - check the user in --nodes-from, and --prometheus-password-file")
        }
        PrometheusError::Refused(address, 401, _) => format!(
            "{address} requires a login - use --nodes-from prometheus:https://USER@HOST:PORT, with the password in --prometheus-password-file"
        ),
        PrometheusError::Broken(_, GetError::Tls(why)) => format!("{error} - {}", tls_advice(why)),
        PrometheusError::Silent(..) | PrometheusError::Broken(..) => {
            format!("{error} - check --nodes-from, and that it runs")
        }
        PrometheusError::Refused(..) | PrometheusError::Foreign(..) => {
            format!("{error} - check --nodes-from: is this a Prometheus?")
        }
    })
}

/// The addresses of a scrape job of exporters.
fn scraped(targets: Targets) -> Vec<String> {
    let is_ours =
        |target: &Target| target.labels.get("job").is_some_and(|job| job.starts_with(JOB));
    targets.active.into_iter().filter(is_ours).map(|target| target.scrape_url).collect()
}

fn listed(path: &Path) -> Result<Vec<String>, String> {
    let wrong = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let text = text_file::read_up_to(path, MAX_FILE).map_err(|error| wrong(&error))?;
    // JSON is YAML.
    let groups: Vec<Group> = typed(&text).map_err(|complaints| {
        let said = in_one_line(&complaints);
        wrong(&format!("{said} - a file of Prometheus's service discovery is a list of groups, such as [{{\"targets\": [\"gpu-1:9400\"]}}]"))
    })?;
    let urls = groups.iter().flat_map(|group| {
        let scheme = group.labels.get("__scheme__").map_or("http", String::as_str);
        group.targets.iter().map(move |target| format!("{scheme}://{target}"))
    });
    Ok(urls.collect())
}

fn node(url: &str, user: Option<&str>) -> Option<NodeUrl> {
    let address = Address::parse(url, [80, 443])?;
    let authority = address.authority();
    let text = match user {
        Some(user) if address.is_tls() => format!("https://{}@{authority}", encoded(user)),
        _ if address.is_tls() => format!("https://{authority}"),
        _ => format!("http://{authority}"),
    };
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(nodes: &[NodeUrl]) -> Vec<String> {
        nodes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn targets_of_the_exporters_jobs_are_nodes_and_others_are_not() {
        let answer = r#"{"activeTargets": [
            {"scrapeUrl": "http://gpu-1:9400/metrics", "labels": {"job": "gpucause", "instance": "gpu-1:9400"}},
            {"scrapeUrl": "http://gpu-1:9400/metrics?level=fleet", "labels": {"job": "gpucause-fleet"}},
            {"scrapeUrl": "https://me:secret@gpu-2:443/metrics", "labels": {"job": "gpucause"}},
            {"scrapeUrl": "http://gpu-1:9100/metrics", "labels": {"job": "node"}}]}"#;
        let urls = scraped(serde_json::from_str(answer).unwrap());
        let user = Some("ops@example.com");
        let nodes: Vec<_> = urls.iter().filter_map(|url| node(url, user)).collect();
        let users: Vec<_> = nodes.iter().map(|node| node.address().user()).collect();
        assert_eq!(users, [None, None, user]);
        assert_eq!(shown(&nodes), ["http://gpu-1:9400", "http://gpu-1:9400", "https://gpu-2:443"]);
    }

    #[test]
    fn a_file_of_service_discovery_is_read_as_yaml_and_json() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let from: NodesFrom = format!("file_sd:{}", file.path().display()).parse().unwrap();
        for text in [
            "- targets: [gpu-1:9400, gpu-2:9400]\n- targets: ['gpu-1:9400']\n  labels: {__scheme__: http, rack: a}\n",
            r#"[{"targets": ["gpu-1:9400", "gpu-2:9400"], "labels": {}}]"#,
        ] {
            std::fs::write(file.path(), text).unwrap();
            let nodes = from.read(&PrometheusLogin::default(), None, None).unwrap();
            assert_eq!(shown(&nodes), ["http://gpu-1:9400", "http://gpu-2:9400"], "{text}");
        }
        for (text, part) in [
            ("- targets: ['a b']", "invalid address of target 0"),
            (
                "hosts: [a]",
                "line 1: the file is a section, and must be a list, as in [a, b] - a file of Prometheus's service discovery",
            ),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = from.read(&PrometheusLogin::default(), None, None).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_source_is_a_prometheus_or_a_file() {
        for text in ["", "gpu-1:9400", "prometheus:", "prometheus:ftp://gpu", "file_sd:"] {
            let error = text.parse::<NodesFrom>().unwrap_err().to_string();
            assert!(error.contains("expected prometheus:URL"), "{text}: {error}");
        }
        let secret = "prometheus:http://me:secret@p".parse::<NodesFrom>().unwrap_err().to_string();
        assert!(secret.contains("--prometheus-password-file"), "{secret}");
    }
}
