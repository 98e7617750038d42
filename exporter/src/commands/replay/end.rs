//! A replay that stands at the end of its file: the page has all of it at once.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;
use gpucause_engine::Findings;
use gpucause_engine::activity::Totals;
use gpucause_engine::observation::Period;
use gpucause_investigations::accounts::rebuild;
use gpucause_investigations::chain_filter::ChainFilter;
use gpucause_investigations::explain::Report;
use gpucause_observe::chains::EVALUATE_EVERY;
use gpucause_observe::observation::Observation;
use gpucause_trace::recording::{NodeIndex, Recording};

use super::source::{Current, ReplaySource, nothing};
use crate::live_page::Processes;
use crate::progress::Progress;

/// Reads what a file has of a node: chains as `explain` reports them, and accounts over all of the file.
pub(super) fn read(
    path: &Path,
    recording: &dyn Recording,
    node: NodeIndex,
) -> anyhow::Result<ReplaySource> {
    let events = if Progress::is_shown() { recording.event_count()? } else { 0 };
    let progress = Progress::of(events, "events");
    let all = ChainFilter::default();
    let report = Report::read(path, recording, &all, &mut |events| progress.at(events))?;
    progress.say(", reading the accounts".into());
    let own = report.nodes.into_iter().nth(node.0.into());
    let incident = own.context("the file has nothing of the node")?.incident;
    let shown = incident.shown_pids();
    let mut totals = Totals::of(shown.clone(), &incident.observation.not_fully_observed);
    // In the order of the report: those of the processes that were recorded come first.
    let chains: Vec<_> = incident.root_cause.into_iter().chain(incident.others).collect();
    recording.snapshots(&mut |own| {
        if own.node == node {
            totals.add(own.session, own.input.unix_seconds, &own.input.snapshot);
        }
        ControlFlow::Continue(())
    })?;
    let events_only = totals.is_empty();
    if events_only {
        // Without accounts the file does not say when it observed.
        totals = Totals::of(shown, &[]);
        rebuild(recording, node, EVALUATE_EVERY, &mut |own| {
            totals.add(0, own.unix_ns as f64 / 1e9, &own.snapshot);
            ControlFlow::Continue(())
        })?;
    }
    let (activities, timeline) = totals.finish(&chains);
    let unknown = || Period::disabled(0.0, "the file does not say what was observed");
    let state = incident.observation.current.unwrap_or_else(unknown).into();
    let current = Current {
        observation: Observation { state, ..nothing() }.into(),
        findings: Findings { chains, ..Findings::default() }.into(),
        processes: Processes { events_only, ..Processes::of(activities.as_ref(), None) },
        timeline,
    };
    Ok(ReplaySource::at_end(path.display().to_string(), incident.node, current))
}
