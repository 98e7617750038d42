//! Chains, of a recording or of nodes.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::ToolError;
use super::answer::{self, Page, list, object, rounded};
use super::arguments::Rows;
use super::observed::{self, Coverage};
use super::source::{Source, failure, failures, limits};
use super::statistics::{NAME_NOT_IN_FILE, NAME_UNOBSERVED};
use crate::chain_filter::culprits;
use crate::fleet::{self, FleetAnswer};
use crate::observation::Outcome;
use gpucause_engine::chain::{Chain, CodeShare, Culprit, Loss, Place};

/// Chains with their nodes' names, the worst first.
pub(super) struct Found {
    pub(super) head: Map<String, Value>,
    chains: Vec<(String, Chain)>,
    observed: Coverage,
    /// Number of nodes.
    pub(super) nodes: usize,
    /// PIDs of observed processes, where all nodes report them.
    pids: Option<HashSet<u32>>,
    /// Their names, where all nodes report them.
    names: Option<HashSet<String>>,
    /// The note about a name of none of them.
    if_no_name: &'static str,
}

const UNOBSERVED: &str =
    "not observed: no process with this PID is observed; whether it was starved is unknown";

const DELAYS_OTHERS: &str = "no chain has it as victim, but it delays others: see delays_others";
const EXCLUDED: &str =
    "no chain of what was asked for; there are others: ask without pid, comm and node";

/// The answer, with the chains that were asked for.
pub(super) fn select(found: Found, asked: &Rows) -> Result<Value, ToolError> {
    let page = asked.page();
    let several = found.nodes > 1;
    let is_asked = |own: &&(String, Chain)| {
        let (node, Chain { victim, .. }) = own;
        asked.includes(node, victim.pid, &victim.comm)
    };
    let is_of_one = asked.pid.is_some() || asked.comm.is_some();
    let is_delayed = |own: &&(String, Chain)| {
        let (node, chain) = own;
        let mut culprits = culprits(chain);
        is_of_one
            && !is_asked(own)
            && culprits.any(|(pid, comm)| asked.includes(node, pid.unwrap_or_default(), comm))
    };
    let as_row = |(node, chain): &(String, Chain)| row(several.then_some(node), chain, page);
    let mut rows: Vec<Value> = found.chains.iter().filter(is_asked).map(as_row).collect();
    let own = rows.len();
    rows.extend(found.chains.iter().filter(is_delayed).map(as_row));
    let delayed = rows.len() - own;
    let mut head = found.head;
    head.insert("chains_in_all".into(), own.into());
    if delayed > 0 {
        head.insert("delays_others_in_all".into(), delayed.into());
    }
    let excluded = found.chains.len() - rows.len();
    if excluded > 0 {
        head.insert("excluded".into(), excluded.into());
    }
    if own == 0 {
        let is_missing = |pid| found.pids.as_ref().is_some_and(|pids| !pids.contains(&pid));
        let is_unobserved = asked.pid.is_some_and(is_missing);
        let is_no_name = |comm| found.names.as_ref().is_some_and(|names| !names.contains(comm));
        let note = match &asked.comm {
            _ if delayed > 0 => DELAYS_OTHERS,
            _ if is_unobserved => UNOBSERVED,
            Some(comm) if is_no_name(comm) => found.if_no_name,
            _ if excluded > 0 && found.observed.if_none == Outcome::NothingFound => EXCLUDED,
            _ => found.observed.note(),
        };
        head.insert("note".into(), note.into());
    }
    head.insert("observation".into(), found.observed.observation);
    // Pages go over both.
    let mut answer = list(head, "chains", &rows, page)?;
    if let (1.., Some(shown)) = (delayed, answer["chains"].as_array_mut()) {
        let delayed = shown.split_off(own.saturating_sub(page.offset).min(shown.len()));
        answer["delays_others"] = delayed.into();
    }
    Ok(answer)
}

/// How many nodes answered, those that did not, and clocks that differ; and what was observed.
pub(super) fn head_of_nodes(
    found: &FleetAnswer,
) -> Result<(Map<String, Value>, Coverage), ToolError> {
    let failed: Vec<_> =
        found.failures.iter().map(|own| failure(&own.url.to_string(), &own.error)).collect();
    if found.answers.is_empty() {
        let why = found.failures.iter().take(3).map(|own| own.error.to_string());
        return Err(ToolError(format!("no node answered: {}", why.collect::<Vec<_>>().join("; "))));
    }
    let mut head =
        object(json!({"nodes_answered": found.answers.len(), "nodes_failed": failed.len()}));
    let observed = Coverage::of_answers(&found.answers, failed.is_empty());
    if !failed.is_empty() {
        head.insert("failures".into(), failures(failed));
    }
    let warnings = found.clock_warnings();
    if !warnings.is_empty() {
        let shown = warnings.iter().take(20).map(|text| answer::name(text));
        head.insert("clock_warnings".into(), shown.collect());
    }
    Ok((head, observed))
}

/// The chains of a source.
pub(super) async fn find(source: &Source) -> Result<Found, ToolError> {
    match source {
        Source::File(file) => {
            file.read(|recording| {
                let chains = recording.chains()?.into_iter();
                let chains =
                    chains.map(|own| (recording.node_name(own.node).to_owned(), own.chain));
                let node = |node: &gpucause_trace::recording::Node| {
                    let clock = node.clock_ahead_ns.map(|ns| rounded(ns as f64 / 1e9));
                    json!({"node": answer::name(&node.name), "clock_ahead_s": clock})
                };
                let nodes: Vec<_> = recording.nodes().iter().take(50).map(node).collect();
                let head = object(json!({"nodes": nodes}));
                let observed = Coverage::of_recording(recording)?;
                let nodes = recording.nodes().len();
                let processes = recording.processes().iter();
                let (pids, names) = processes.map(|own| (own.pid, own.comm.clone())).unzip();
                let (pids, names) = (Some(pids), Some(names));
                let (chains, if_no_name) = (chains.collect(), NAME_NOT_IN_FILE);
                Ok(Found { head, chains, observed, nodes, pids, names, if_no_name })
            })
            .await
        }
        Source::Nodes(clients) => {
            let mut answer = fleet::chains(clients, limits(clients)).await;
            answer.make_names_distinct();
            let (mut head, observed) = head_of_nodes(&answer)?;
            let node = |own: &fleet::NodeAnswer| {
                json!({
                    "node": answer::name(&own.chains.node),
                    "url": answer::name(&own.url.to_string()),
                    "chains": own.chains.chains.len(),
                    "clock_ahead_s": own.clock.map(|clock| rounded(clock.ahead_seconds)),
                    "clock_uncertainty_s": own.clock.map(|clock| rounded(clock.uncertainty_seconds)),
                })
            };
            let nodes: Vec<_> = answer.answers.iter().take(20).map(node).collect();
            head.insert("nodes".into(), nodes.into());
            let pids = answer.answers.iter().map(|own| own.chains.processes.clone());
            let pids = pids.collect::<Option<Vec<_>>>();
            let pids = pids.map(|pids| pids.into_iter().flatten().collect());
            let names = observed::names(answer.answers.iter().map(|own| &own.chains));
            let chains = answer.answers.into_iter().flat_map(|own| {
                let node = own.chains.node;
                own.chains.chains.into_iter().map(move |chain| (node.clone(), chain))
            });
            let mut chains: Vec<_> = chains.collect();
            chains.sort_by(|(_, a), (_, b)| a.worst_first(b, Chain::ALWAYS));
            let (nodes, if_no_name) = (clients.len(), NAME_UNOBSERVED);
            Ok(Found { head, chains, observed, nodes, pids, names, if_no_name })
        }
    }
}

/// Culprits listed of a chain.
const MOST_LOSSES: usize = 5;

/// A process, and where it runs, as far as known.
fn placed(process: Value, place: &Place) -> Value {
    let mut process = object(process);
    let Place { unit, pod, container, cpus, .. } = place;
    for (name, value) in [("unit", unit), ("pod", pod), ("container", container), ("cpus", cpus)] {
        if !value.is_empty() {
            process.insert(name.into(), answer::name(value));
        }
    }
    process.into()
}

fn culprit(own: &Culprit) -> Value {
    let mut culprit = json!({"pid": own.local_pid(), "comm": answer::name(&own.comm)});
    if !own.host.is_empty() {
        culprit["host"] = answer::name(&own.host);
    }
    if let Some(tid) = own.tid {
        culprit["tid"] = tid.into();
    }
    if !own.thread.is_empty() {
        culprit["thread"] = answer::name(&own.thread);
    }
    placed(culprit, &own.place)
}

/// One chain.
pub(super) fn row(node: Option<&String>, chain: &Chain, page: Page) -> Value {
    let mut row = object(json!({
        "id": answer::name(&chain.id),
        "cause": chain.cause,
        "effect": chain.effect,
        "severity": chain.severity,
        "last_severity": chain.last_severity(),
        "victim": placed(json!({"pid": chain.victim.pid, "tid": chain.victim.tid, "comm": answer::name(&chain.victim.comm)}), &chain.victim.place),
        "culprit": chain.culprit.as_ref().map(culprit),
        "ongoing": chain.ongoing,
        "explained": rounded(chain.explained),
        "attributed_seconds": rounded(chain.attributed_seconds()),
        "lost_seconds": rounded(chain.lost_seconds),
        "sentence": answer::text(&chain.sentence, 800),
        "fix": answer::text(&chain.fix, 800),
    }));
    if let Some(node) = node {
        row.insert("node".into(), answer::name(node));
    }
    if !chain.losses.is_empty() {
        let loss = |own: &Loss| json!({"pid": own.pid, "comm": answer::name(&own.comm), "seconds": rounded(own.seconds)});
        row.insert("lost_to".into(), chain.losses.iter().take(MOST_LOSSES).map(loss).collect());
    }
    if !chain.code.is_empty() {
        let code = |own: &CodeShare| json!({"function": answer::name(&own.function), "file": answer::name(&own.file), "line": own.line, "share": rounded(own.share)});
        row.insert("code".into(), chain.code.iter().take(MOST_LOSSES).map(code).collect());
    }
    if page.detail {
        row.insert("first_seen".into(), json!(chain.first_seen));
        row.insert("last_seen".into(), json!(chain.last_seen));
        row.insert("severity_at".into(), json!(chain.course.severity_at));
        row.insert("taken_by".into(), json!(chain.course.taken_by));
        let evidence = chain.evidence.0.iter();
        let evidence: Map<String, Value> =
            evidence.map(|(name, value)| (answer::text(name, 80), json!(value))).collect();
        row.insert("evidence".into(), evidence.into());
        let step = |step: &gpucause_engine::chain::Step| {
            json!({
                "from": answer::name(&step.from),
                "to": answer::name(&step.to),
                "mechanism": answer::name(&step.mechanism),
                "seconds": rounded(step.seconds),
            })
        };
        row.insert("path".into(), chain.path.iter().map(step).collect());
    }
    row.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_others_are_no_proof_that_nothing_was_found() {
        let chain = json!({"id": "1", "cause": "lock_wait", "effect": "hang", "severity": "low",
            "victim": {"pid": 7, "tid": 7, "comm": "t"}, "culprit": {"pid": 9, "comm": "w"},
            "explained": 1.0, "lost_seconds": 1.0, "evidence": {}, "path": [], "sentence": "",
            "fix": "", "first_seen": 1.0, "last_seen": 2.0});
        let note = |chains: &[&Value]| {
            let of =
                |chain: &&Value| ("n".into(), serde_json::from_value((*chain).clone()).unwrap());
            let found = Found {
                head: Map::new(),
                chains: chains.iter().map(of).collect(),
                observed: Coverage { observation: json!([]), if_none: Outcome::NothingFound },
                nodes: 1,
                pids: None,
                names: None,
                if_no_name: NAME_UNOBSERVED,
            };
            let asked = crate::mcp::arguments::parse(json!({"pid": 8})).unwrap();
            let answer = select(found, &asked).unwrap();
            (answer["note"].as_str().unwrap().to_owned(), answer.get("excluded").cloned())
        };
        assert_eq!(note(&[&chain]), (EXCLUDED.to_owned(), Some(json!(1))));
        assert!(note(&[]).0.starts_with("no host-side cause"));
    }
}
