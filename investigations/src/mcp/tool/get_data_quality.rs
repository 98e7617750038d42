//! How complete the data is.

use serde_json::{Value, json};

use super::Tool;
use crate::mcp::answer::{self, Page, list, object, rounded};
use crate::mcp::arguments::Nothing;
use crate::mcp::source::{Answered, Source, failures, pages};
use crate::mcp::{Shared, ToolError, observed};
use crate::page::{Sample, samples};
use gpucause_trace::recording::{Completeness, Recording, RecordingError, Session};

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
                let of = |page: &str| Ok((of_page(page), observed::of_page(page)));
                let (pages, failed) = pages(clients, of).await;
                let observed = pages.iter().map(|own| (&*own.node, &own.of_page.1));
                let observation = observed::of_pages(observed);
                let row = |own: Answered<(Value, Value)>| {
                    let (mut row, _) = own.of_page;
                    row["node"] = answer::name(&own.node);
                    row["url"] = answer::name(&own.url.to_string());
                    row
                };
                let rows: Vec<_> = pages.into_iter().map(row).collect();
                let mut head = object(json!({"source": "live nodes", "observation": observation}));
                if !failed.is_empty() {
                    head.insert("failures".into(), failures(failed));
                }
                list(head, "nodes", &rows, Page::LARGEST)
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
    let details = own.details.iter().take(30);
    let details: serde_json::Map<String, Value> = details
        .map(|(key, value)| (answer::text(key, 60), answer::text(value, 120).into()))
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

fn of_page(page: &str) -> Value {
    let all: Vec<Sample> = samples(page, "gpucause_").collect();
    let named = |name: &'static str| all.iter().filter(move |own| own.name == name);
    let sum = |name| named(name).map(|own| own.value).reduce(|all, one| all + one);
    let version = named("gpucause_build_info").next();
    let attached = |own: &&Sample| own.label("verdict") == "attached" && own.value > 0.0;
    let troubled = named("gpucause_probe_status")
        .filter(|own| own.value > 0.0 && own.label("verdict") != "attached")
        .take(20)
        .map(|own| {
            json!({
                "probe": answer::name(own.label("probe")),
                "library": answer::name(own.label("library")),
                "verdict": answer::name(own.label("verdict")),
            })
        });
    let full = named("gpucause_map_full_total").filter(|own| own.value > 0.0).take(20);
    let full: Vec<_> = full
        .map(|own| json!({"map": answer::name(own.label("map")), "times": own.value}))
        .collect();
    let host = |name: &'static str| samples(page, name).next().map(|own| own.value);
    let duty = named("gpucause_probe_duty_ratio").map(|own| own.value).reduce(f64::min);
    let (hits, cost) = (sum("gpucause_probe_hits_total"), sum("gpucause_probe_cost_seconds_total"));
    json!({
        "version": version.map(|own| answer::name(own.label("version"))),
        "processes": named("gpucause_process_info").count(),
        "probes_attached": named("gpucause_probe_status").filter(attached).count(),
        "probes_not_attached": troubled.collect::<Vec<_>>(),
        "maps_that_were_full": full,
        "least_probe_duty_ratio": duty,
        "probe_hits": hits,
        "probe_cost_s": cost.map(rounded),
        "daemon_cpu_s": host("process_cpu_seconds_total"),
        "daemon_memory_bytes": host("process_resident_memory_bytes"),
        "daemon_started": host("process_start_time_seconds"),
    })
}
