//! Demonstrations of faults on this host.

use std::sync::Arc;
use std::time::Duration;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object};
use crate::mcp::call::blocking;
use crate::mcp::{Shared, ToolError, chains};

/// Longest demonstration.
pub(in crate::mcp) const MAX_DEMO: Duration = Duration::from_secs(60);

/// Which demonstration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Demo {
    /// The fault to demonstrate, such as cpu-contention.
    scenario: String,
    /// For how long, 10 to 60; 45 unless given.
    #[serde(default = "usual")]
    seconds: u64,
}

const fn usual() -> u64 {
    45
}

/// The tool.
pub(super) struct RunDemo;

impl Tool for RunDemo {
    const NAME: &str = "run_demo";
    const DESCRIPTION: &str = "Starts a stand-in workload with a real fault on the host where this server runs, observes it, and reports the chains found beside the workload's own account. Off unless the server was started with --allow-demo.";
    const IS_DEMONSTRATION: bool = true;
    type Arguments = Demo;

    fn is_listed(server: &Shared) -> bool {
        server.host.scenarios().is_some()
    }

    fn check(asked: &Demo) -> Result<(), String> {
        if (10..=MAX_DEMO.as_secs()).contains(&asked.seconds) {
            return Ok(());
        }
        Err(format!("seconds is {}; expected 10 to {}", asked.seconds, MAX_DEMO.as_secs()))
    }

    async fn answer(server: &Shared, demo: Demo) -> Result<Value, ToolError> {
        let Some(scenarios) = server.host.scenarios() else {
            return Err(ToolError::new(
                "demonstrations are off because they put load on the host; enable them with --allow-demo",
            ));
        };
        if !scenarios.iter().any(|own| own.name == demo.scenario) {
            let names: Vec<_> = scenarios.iter().map(|own| own.name.as_str()).collect();
            return Err(ToolError(format!(
                "unknown scenario; expected one of {}",
                names.join(", ")
            )));
        }
        let (host, time) = (Arc::clone(&server.host), Duration::from_secs(demo.seconds));
        let name = demo.scenario.clone();
        let report = blocking(move |_| host.demo(&name, time)).await?.map_err(ToolError)?;
        let rows: Vec<_> =
            report.chains.iter().map(|chain| chains::row(None, chain, Page::LARGEST)).collect();
        let lines = report.comparison.lines().filter(|line| !line.is_empty());
        let comparison: Vec<_> = lines.take(40).map(|line| answer::text(line, 300)).collect();
        let head = json!({
            "scenario": demo.scenario,
            "seconds": demo.seconds,
            "simulated": "the GPU and the CUDA libraries; processes, contention, probes and numbers are real",
            "comparison": comparison,
        });
        list(object(head), "chains", &rows, Page::LARGEST)
    }
}
