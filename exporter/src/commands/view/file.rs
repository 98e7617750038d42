//! The content of a trace file for one node, as the page shows it.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;
use gpucause_engine::activity::TimelinePoint;
use gpucause_engine::chain::Chain;
use gpucause_engine::observation::{ObservationState, Period};
use gpucause_investigations::accounts::rebuild;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::Report;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_page::family::Sink;
use gpucause_trace::recording::{NodeIndex, Recording};

use super::totals::Totals;
use crate::collector::Scope;
use crate::live_page::Processes;
use crate::progress::Progress;
use crate::routes::{Readiness, ScrapeError, Source};

/// Read once: a file does not change.
#[derive(Debug)]
pub(super) struct TraceFile {
    name: String,
    node: String,
    observation: ObservationState,
    chains: Vec<Chain>,
    processes: Processes,
    timeline: Vec<TimelinePoint>,
}

impl TraceFile {
    /// Reads what it has of a node: chains as `explain` reports them, and accounts over all of the file.
    pub(super) fn read(
        path: &Path,
        recording: &dyn Recording,
        node: NodeIndex,
    ) -> anyhow::Result<Self> {
        let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
        let progress = Progress::of(events, "events");
        let all = ChainFilter::default();
        let mut report = Report::read(path, recording, &all, &mut |events| progress.at(events))?;
        progress.say(", reading the accounts".into());
        let index = usize::from(node.0);
        let incident =
            (index < report.nodes.len()).then(|| report.nodes.swap_remove(index).incident);
        let incident = incident.context("the file has nothing of the node")?;
        let shown = incident.shown_pids();
        let periods = &incident.observation.not_fully_observed;
        let mut totals = Totals::of(shown.clone(), periods);
        // In the order of the report: those of the processes that were recorded come first.
        let chains: Vec<_> = incident.root_cause.into_iter().chain(incident.others).collect();
        recording.snapshots(&mut |own| {
            if own.node == node {
                totals.add(own.session, own.input.unix_seconds, &own.input.snapshot);
            }
            ControlFlow::Continue(())
        })?;
        let has_accounts = !totals.is_empty();
        if !has_accounts {
            // Without accounts the file does not say when it observed.
            totals = Totals::of(shown, &[]);
            rebuild(recording, node, EVALUATE_EVERY, &mut |own| {
                totals.add(0, own.unix_ns as f64 / 1e9, &own.snapshot);
                ControlFlow::Continue(())
            })?;
        }
        let (processes, timeline) = totals.finish(&chains);
        let processes = Processes { events_only: !has_accounts, ..processes };
        let unknown = || Period::disabled(0.0, "the file does not say what was observed");
        Ok(Self {
            name: path.display().to_string(),
            node: incident.node,
            observation: incident.observation.current.unwrap_or_else(unknown).into(),
            chains,
            processes,
            timeline,
        })
    }
}

impl Source for TraceFile {
    fn collectors(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn scrape(&self, _: &Scope, _: &mut dyn Sink) -> Result<(), ScrapeError> {
        Err(ScrapeError("a file is served without metrics; gpucause replay serves them".into()))
    }

    fn chains(&self) -> Vec<Chain> {
        self.chains.clone()
    }

    fn process_rows(&self) -> Processes {
        self.processes.clone()
    }

    fn timeline(&self) -> Vec<TimelinePoint> {
        self.timeline.clone()
    }

    fn node(&self) -> String {
        self.node.clone()
    }

    fn file(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn observation(&self) -> ObservationState {
        self.observation.clone()
    }

    fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}
