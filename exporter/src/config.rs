//! The configuration file: what it may say, what holds where it says nothing, and what is wrong with it.

mod launch_ops;
mod nearest;
mod outline;
mod process_filter;
mod reader;
pub mod reload;
mod typed;
mod watch;

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpucause_engine::settings::Settings;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::duration::Span;
use crate::retention;
use outline::{Node, Value};

pub use launch_ops::OpNames;
pub use outline::Place;
pub use process_filter::{Matcher, Pattern, ProcessFilter};
pub(crate) use typed::typed;

/// Bytes that a file may have.
const MAX_BYTES: u64 = 1 << 20;

/// Everything that the file can set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// From when on something is worth a causal chain. Has [`launch_ops`](Self::launch_ops) too.
    pub chains: Settings,
    /// The ops that count as launches.
    pub launch_ops: OpNames,
    /// The processes that are told of.
    pub processes: ProcessFilter,
    /// How long the series of an exited process stay.
    pub retention: Span,
    /// Bounds.
    pub limits: Limits,
    /// The probes.
    pub probe: ProbeSettings,
}

/// Whether there are probes, and what they may take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeSettings {
    /// Without, nothing is attached and nothing observed.
    pub enabled: bool,
    /// Share of a thread's time that probes on calls may take.
    pub budget: Budget,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self { enabled: true, budget: Budget::default() }
    }
}

/// Bounds on what is told, and on what clients take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Live processes that are told apart.
    pub live_processes: usize,
    /// Exited processes that are told apart.
    pub exited_processes: usize,
    /// Names told apart for each process and metric, of culprits and of wakers.
    pub wait_names: usize,
    /// Scrapes at a time.
    pub scrapes: u32,
    /// Open connections.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            live_processes: 1_024,
            exited_processes: 256,
            wait_names: 10,
            scrapes: 2,
            connections: 512,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            chains: Settings::default(),
            launch_ops: OpNames::default(),
            processes: ProcessFilter::default(),
            retention: Span(Duration::from_secs(300)),
            limits: Limits::default(),
            probe: ProbeSettings::default(),
        }
    }
}

/// One thing that is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// Where it stands.
    pub place: Option<Place>,
    /// Key, value and accepted form.
    pub problem: String,
}

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It cannot be a configuration.
    #[error("{path}: {problem}", path = .path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: &'static str,
    },
    /// It says something wrong.
    #[error("{}", told(.path, .complaints))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        complaints: Vec<Complaint>,
    },
}

impl ConfigError {
    /// Whether there is no such file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

fn told(path: &Path, complaints: &[Complaint]) -> String {
    let line = |complaint: &Complaint| match complaint.place {
        Some(place) => format!("{}:{}: {}", path.display(), place.line, complaint.problem),
        None => format!("{}: {}", path.display(), complaint.problem),
    };
    complaints.iter().map(line).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// What a text says.
    ///
    /// # Errors
    /// With everything that is wrong with it, or with the first thing when that keeps the rest from being understood.
    pub fn parse(text: &str) -> Result<Self, Vec<Complaint>> {
        let document = outline::read(text)
            .map_err(|error| vec![Complaint { place: error.place, problem: error.problem }])?;
        let mut config = Self::deserialize(&document).map_err(|refusal| {
            vec![Complaint { place: refusal.place, problem: refusal.to_string() }]
        })?;
        config.chains.launch_ops = config.launch_ops.0;
        let complaints = config.complaints();
        if complaints.is_empty() {
            return Ok(config);
        }
        let placed = |(key, problem): (String, String)| Complaint {
            place: place_of(&document, &key),
            problem: format!("{key} {problem}"),
        };
        Err(complaints.into_iter().map(placed).collect())
    }

    /// Keys with what is wrong with their values.
    fn complaints(&self) -> Vec<(String, String)> {
        let chains = self.chains.complaints().into_iter();
        let mut complaints: Vec<_> =
            chains.map(|c| (format!("chains.{}", c.key), c.problem)).collect();
        complaints.extend(self.processes.empty_entries().map(|key| {
            let form = "must have at least one of comm, exe, cgroup and user";
            (key, format!("is empty, and {form}"))
        }));
        let Limits { live_processes, exited_processes, wait_names, scrapes, connections } =
            self.limits;
        let bounds = [
            ("live_processes", live_processes as u64, 1..=8_192),
            ("exited_processes", exited_processes as u64, 0..=2_048),
            ("wait_names", wait_names as u64, 1..=100),
            ("scrapes", scrapes.into(), 1..=16),
            ("connections", connections.into(), 1..=65_536),
        ];
        for (key, value, accepted) in bounds {
            if !accepted.contains(&value) {
                let (least, most) = accepted.into_inner();
                let problem = format!("is {value}, and must be from {least} to {most}");
                complaints.push((format!("limits.{key}"), problem));
            }
        }
        complaints
    }

    /// The defaults, with launches watched all the time: for somebody who looks on.
    #[must_use]
    pub fn without_budget() -> Self {
        let probe = ProbeSettings { budget: Budget(None), ..ProbeSettings::default() };
        Self { probe, ..Self::default() }
    }

    /// What to keep of exited processes.
    #[must_use]
    pub fn retention_policy(&self) -> retention::Policy {
        retention::Policy { keep_for: self.retention.0, max_ended: self.limits.exited_processes }
    }
}

/// Where the value of a key stands, or the innermost section of it that there is.
fn place_of(document: &Node, key: &str) -> Option<Place> {
    let mut place = None;
    let mut node = document;
    for part in key.split(['.', '[']) {
        let next = match &node.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| key.text == part).map(|e| &e.1),
            Value::List(items) => {
                let index = part.strip_suffix(']').and_then(|index| index.parse::<usize>().ok());
                index.and_then(|index| items.get(index))
            }
            _ => None,
        };
        let Some(found) = next else { break };
        (node, place) = (found, Some(found.place));
    }
    place
}

/// Reads a file whole, within bounds.
///
/// # Errors
/// When it cannot be read, or cannot be a configuration.
fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.into(), source };
    let no_text = |problem| ConfigError::NoText { path: path.into(), problem };
    // Asked first: to open a pipe is to wait for somebody who writes.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(no_text("not a file"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(no_text("larger than 1 MiB, which no configuration is"));
    }
    String::from_utf8(bytes).map_err(|_| no_text("not UTF-8 text"))
}

/// The configuration that a file says.
///
/// # Errors
/// When it cannot be read, or says something wrong.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    parse(path, &read(path)?)
}

fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let wrong = |complaints| ConfigError::Wrong { path: path.into(), complaints };
    Config::parse(text).map_err(wrong)
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(place) => write!(f, "line {}: {}", place.line, self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

#[cfg(test)]
mod tests;
