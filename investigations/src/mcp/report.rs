//! The tools about the data's completeness, this host, and demonstrations.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ToolError;
use super::answer::{self, Page, list, object, rounded};
use super::arguments::Demo;
use super::call::blocking;
use super::source::{Answered, Host, Source, failures, pages};
use super::{chains, observed};
use crate::page::{Sample, samples};
use crate::recording::{Completeness, Recording, RecordingError, Session};

/// All of a list that has a bound of its own.
const ALL: Page = Page { offset: 0, limit: 200, detail: true };

/// The answer of `get_check`.
pub(super) async fn check(host: &Arc<dyn Host>) -> Result<Value, ToolError> {
    let host = Arc::clone(host);
    let report = blocking(move |_| host.check()).await?;
    let line = |own: &super::CheckLine| {
        json!({
            "state": own.state,
            "subject": answer::name(&own.subject),
            "detail": answer::text(&own.detail, 300),
        })
    };
    let (ok, not_ok): (Vec<_>, Vec<_>) = report.lines.iter().partition(|own| own.state == "ok");
    let rows: Vec<_> = not_ok.into_iter().map(line).collect();
    let head = json!({
        "host": answer::name(&report.host),
        "exporter_can_run": report.can_run,
        "lines_ok": ok.len(),
        "left_out": "what depends on the flags of the exporter: its configuration, ports and DCGM; `gpucause check` has them, too",
    });
    list(object(head), "not_ok", &rows, ALL)
}

/// The answer of `run_demo`.
pub(super) async fn demo(host: &Arc<dyn Host>, demo: Demo) -> Result<Value, ToolError> {
    let Some(scenarios) = host.scenarios() else {
        return Err(ToolError::new(
            "demonstrations are off because they put load on the host; enable them with --allow-demo",
        ));
    };
    if !scenarios.iter().any(|own| own.name == demo.scenario) {
        let names: Vec<_> = scenarios.iter().map(|own| own.name.as_str()).collect();
        return Err(ToolError(format!("unknown scenario; expected one of {}", names.join(", "))));
    }
    let (host, time) = (Arc::clone(host), Duration::from_secs(demo.seconds));
    let name = demo.scenario.clone();
    let report = blocking(move |_| host.demo(&name, time)).await?.map_err(ToolError)?;
    let rows: Vec<_> = report.chains.iter().map(|chain| chains::row(None, chain, ALL)).collect();
    let lines = report.comparison.lines().filter(|line| !line.is_empty());
    let comparison: Vec<_> = lines.take(40).map(|line| answer::text(line, 300)).collect();
    let head = json!({
        "scenario": demo.scenario,
        "seconds": demo.seconds,
        "simulated": "the GPU and the CUDA libraries; processes, contention, probes and numbers are real",
        "comparison": comparison,
    });
    list(object(head), "chains", &rows, ALL)
}

/// The answer of `get_data_quality`.
pub(super) async fn report(source: &Source) -> Result<Value, ToolError> {
    match source {
        Source::File(file) => {
            let (head, sessions) = file.read(of_recording).await?;
            list(object(head), "sessions", &sessions, ALL)
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
            list(head, "nodes", &rows, ALL)
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
