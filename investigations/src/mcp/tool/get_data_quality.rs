//! How complete the data is.

use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object, rounded};
use crate::mcp::arguments::Nothing;
use crate::mcp::chains::head_of_nodes;
use crate::mcp::source::{Source, snapshots};
use crate::mcp::{Shared, ToolError, observed};
use gpucause_trace::recording::{Completeness, OBSERVATION, Recording, RecordingError, Session};

/// The tool.
pub(super) struct GetDataQuality;

impl Tool for GetDataQuality {
    const NAME: &str = "get_data_quality";
    const DESCRIPTION: &str = "How complete the data is: what was observed and since when, which probes are attached, what was lost, which percentiles are of a sample, and the cost of observing.";
    type Arguments = Nothing;

    async fn answer(server: &Shared, _: Nothing) -> Result<Value, ToolError> {
        match &server.source {
            Source::File(file) => {
                let (head, sessions) = file.read(of_recording).await?;
                list(object(head), "sessions", &sessions, Page::LARGEST)
            }
            Source::Nodes(clients) => {
                let (answer, read) = snapshots(clients, of_recording).await;
                let (mut head, observed) = head_of_nodes(&answer)?;
                head.insert("source".into(), "live nodes".into());
                head.insert("observation".into(), observed.observation);
                let rows = answer.answers.iter().zip(read).map(|(node, (mut row, sessions))| {
                    row["node"] = answer::name(&node.chains.node);
                    row["url"] = answer::name(&node.url.to_string());
                    row["details"] =
                        sessions.first().map_or(Value::Null, |own| own["details"].clone());
                    row
                });
                list(head, "nodes", &rows.collect::<Vec<_>>(), Page::LARGEST)
            }
        }
    }
}

fn of_recording(recording: &dyn Recording) -> Result<(Value, Vec<Value>), RecordingError> {
    let (calls, waits) = (recording.calls()?, recording.waits()?);
    let durations = calls.iter().map(|own| &own.durations);
    let durations = durations.chain(waits.iter().map(|own| &own.durations));
    let sampled = durations
        .clone()
        .filter(|own| matches!(own.completeness, Completeness::Sample { .. }))
        .count();
    let all = durations.count();
    let lost: Vec<u64> = recording.sessions().iter().filter_map(|own| own.lost_events).collect();
    let counts_losses = lost.len() == recording.sessions().len();
    let counted: u64 = calls.iter().map(|own| own.durations.count).sum();
    let measured = calls.iter().filter(|own| own.off_cpu_ns.is_some()).count();
    let head = json!({
        "source": answer::text(&recording.format(), 100),
        "observation": observed::Coverage::of_recording(recording)?.observation,
        "nodes": recording.nodes().len(),
        "processes": recording.processes().len(),
        "events_kept": recording.event_count()?,
        "calls_counted": counted,
        "chains": recording.chains()?.len(),
        "statistics": {"in_all": all, "with_percentiles_of_a_sample": sampled},
        "ops_with_off_cpu_measured": {"measured": measured, "in_all": calls.len()},
        "lost_events": counts_losses.then(|| lost.iter().sum::<u64>()),
        "losses_are_counted": counts_losses,
    });
    let sessions = recording.sessions().iter().map(|own| session(recording, own)).collect();
    Ok((head, sessions))
}

fn session(recording: &dyn Recording, own: &Session) -> Value {
    let details = own.details.iter().filter(|(name, _)| name != OBSERVATION).take(30);
    let details: serde_json::Map<String, Value> = details
        .map(|(key, value)| (answer::text(key, 60), answer::text(value, 400).into()))
        .collect();
    let clock = recording.nodes().get(usize::from(own.node.0)).and_then(|node| node.clock_ahead_ns);
    json!({
        "node": answer::name(recording.node_name(own.node)),
        "recorder": answer::name(&own.recorder),
        "started": rounded(own.started_ns as f64 / 1e9),
        "seconds": own.ended_ns.map(|end| rounded((end - own.started_ns) as f64 / 1e9)),
        "ended_properly": own.ended_ns.is_some(),
        "lost_events": own.lost_events,
        "clock_ahead_s": clock.map(|ns| rounded(ns as f64 / 1e9)),
        "details": details,
    })
}
