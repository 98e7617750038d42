//! `gpucause explain --follow`: chains as they appear.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gpucause_engine::chain::{Chain, Severity};
use gpucause_engine::utc::utc;
use gpucause_http::client::Client;
use gpucause_investigations::explain::{NodeReport, Report, markdown, render_chain};
use gpucause_investigations::fleet::{self, Limits};
use gpucause_investigations::json::Versioned;
use gpucause_investigations::observation::Outcome;
use gpucause_investigations::untrusted_text::line;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use super::{ExplainArgs, ReportFormat, asked, print, status_of};
use crate::shutdown::shutdown_signal;

/// Between two requests: nodes evaluate once a second.
const POLL: Duration = Duration::from_secs(2);

/// A chain as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    node: &'a str,
    chain: &'a Chain,
}

/// The output so far.
#[derive(Debug, Default)]
struct Printed {
    /// Chains by address and id, with the severity that was printed.
    chains: HashMap<(String, String), Severity>,
    /// State of each node by address: true if it was observing.
    observing: HashMap<String, bool>,
    /// Nodes that do not answer now.
    silent: Vec<String>,
}

/// Prints chains when they appear or become more severe, until a signal, or until one is as severe as `--fail-on`. Returns the exit
/// status.
///
/// # Errors
/// When no node answers at first, or standard output is gone.
pub(super) async fn run(args: &ExplainArgs, clients: &[Client]) -> anyhow::Result<u8> {
    let stop = shutdown_signal().context("cannot catch signals")?;
    tokio::pin!(stop);
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut printed = Printed::default();
    let mut outcome = None;
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        let asking = fleet::chains(clients, Limits::default());
        let answer = tokio::select! {
            () = &mut stop => break,
            answer = asking => answer,
        };
        let report = Report::of_nodes(answer, asked(args), &args.wanted());
        let failed = report.failures.first();
        ensure!(
            outcome.is_some() || !report.nodes.is_empty(),
            "{}",
            failed.map_or("no node answered", |failure| &*failure.reason)
        );
        for text in printed.news(args.format(), &report)? {
            print(args.format(), text)?;
        }
        outcome = Some(report.outcome);
        let worst = printed.chains.values().max().copied();
        if args.fails(worst) {
            break;
        }
    }
    let outcome = match printed.chains.is_empty() {
        false => Outcome::Found,
        true => outcome.unwrap_or(Outcome::NotObserved),
    };
    Ok(status_of(args, outcome, printed.chains.values().max().copied()))
}

impl Printed {
    /// Returns the chains of a report that are new or more severe. Nodes that stopped answering or observing are reported on standard error.
    fn news(&mut self, format: ReportFormat, report: &Report) -> anyhow::Result<Vec<String>> {
        for failure in &report.failures {
            if !self.silent.contains(&failure.url) {
                tracing::warn!("{}", failure.reason);
            }
        }
        self.silent = report.failures.iter().map(|failure| failure.url.clone()).collect();
        let mut news = Vec::new();
        for node in &report.nodes {
            self.note_observation(node);
            let mut chains: Vec<&Chain> = node.incident.chains().collect();
            chains.sort_by(|a, b| a.first_seen.total_cmp(&b.first_seen));
            for chain in chains {
                let key = (address(node), chain.id.clone());
                let severity = chain.severity_in(node.incident.period());
                let before = self.chains.get(&key).copied();
                if before.is_none_or(|before| before < severity) {
                    self.chains.insert(key, severity);
                    news.push(text(format, &node.incident.node, chain)?);
                }
            }
        }
        Ok(news)
    }

    fn note_observation(&mut self, node: &NodeReport) {
        let Some(current) = &node.incident.observation.current else { return };
        let observes = current.shows_causes();
        let before = self.observing.insert(address(node), observes);
        if before != Some(observes) && (!observes || before.is_some()) {
            let state = gpucause_investigations::observation::sentence(current);
            tracing::warn!("{}: {state}", node.incident.node);
        }
    }
}

fn address(node: &NodeReport) -> String {
    node.url.clone().unwrap_or_default()
}

fn text(format: ReportFormat, node: &str, chain: &Chain) -> anyhow::Result<String> {
    Ok(match format {
        ReportFormat::Json => serde_json::to_string(&Versioned::new(Line { node, chain }))
            .context("the chain is not JSON")?,
        ReportFormat::Md => markdown::chain(chain),
        ReportFormat::Text | ReportFormat::Html => {
            let since = utc(chain.first_seen, true);
            format!("{since} UTC  {}\n{}", line(node), render_chain(chain))
        }
    })
}
