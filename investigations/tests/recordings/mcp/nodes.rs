//! Live nodes: how they are named, and processes that they do not export.

use std::sync::Arc;
use std::time::Duration;

use gpucause_abi::snapshot::{Comm, ProcessSnapshot};
use gpucause_abi::{ProcId, Tgid};
use gpucause_investigations::mcp::{Assistant, Source, Stores};
use serde_json::{Value, json};

use super::http::{client_of, process};
use super::recording::Quiet;
use super::{answers, call, json_of, run, tools_of};
use crate::fake_node::{Nature, start};

/// The answers of nodes with these names to calls.
fn answered(nodes: &[(&'static str, &Nature)], calls: &[(&str, Value)]) -> Vec<Value> {
    let lines: Vec<_> =
        (0u32..).zip(calls).map(|(id, (tool, asked))| call(id, tool, asked)).collect();
    let mut reported = run(async {
        let mut clients = Vec::new();
        for (name, nature) in nodes {
            clients.push(client_of(start(name, (*nature).clone()).await));
        }
        let host = Arc::new(Quiet { allow_demo: false });
        let assistant = Assistant::new(Source::Nodes(clients), host, Stores::default());
        answers(assistant, &lines, lines.len()).await
    });
    reported.sort_by_key(|own| own["id"].as_u64());
    reported.iter().map(json_of).collect()
}

/// Observes a process with calls, one without, and a worker that it does not export.
fn observing() -> Nature {
    let idle = Comm(*b"idle\0\0\0\0\0\0\0\0\0\0\0\0");
    let processes = vec![process(7), ProcessSnapshot::new(ProcId(8), Tgid(8), idle)];
    let names = [(7, "t"), (8, "idle"), (9, "pt_data_worker")];
    Nature { processes, names: Some(names.into()), ..Nature::default() }
}

/// The notes about processes: with calls, without, a worker, none.
fn notes(nodes: &[(&'static str, &Nature)], tool: &str) -> Vec<[String; 4]> {
    let pids = [7, 8, 9, 99_999].map(|pid| (tool, json!({"pid": pid})));
    let names = ["t", "idle", "pt_data_worker", "idl"].map(|comm| (tool, json!({"comm": comm})));
    let note = |asked: &[(&str, Value)]| -> [String; 4] {
        let notes: Vec<_> = answered(nodes, asked)
            .iter()
            .map(|own| own["note"].as_str().unwrap_or_default().to_owned())
            .collect();
        notes.try_into().unwrap()
    };
    vec![note(&pids), note(&names)]
}

#[test]
fn a_worker_is_said_to_be_observed_and_a_process_that_no_node_observes_is_not() {
    for tool in ["get_trace_stats", "graph_lifecycle"] {
        for [calls, _, worker, none] in notes(&[("gpu-a", &observing())], tool) {
            assert!(!calls.contains("observe"), "{calls}");
            assert!(
                worker.starts_with("observed, ") && worker.contains("feeds the GPU"),
                "{worker}"
            );
            assert!(none.starts_with("not observed: no node that answered observes"), "{none}");
        }
    }
    for [_, idle, ..] in notes(&[("gpu-a", &observing())], "get_trace_stats") {
        assert_eq!(idle, "", "it is exported");
    }
}

#[test]
fn a_process_may_be_a_worker_of_a_node_that_does_not_report_what_it_observes() {
    let silent = Nature { names: None, ..observing() };
    for [_, _, worker, none] in notes(&[("gpu-a", &observing()), ("b", &silent)], "get_trace_stats")
    {
        assert!(worker.starts_with("observed, "), "{worker}");
        assert!(none.contains("it is not observed, or it is a worker"), "{none}");
    }
}

#[test]
fn a_node_has_its_own_name_in_every_answer() {
    let tools = [
        "get_causal_chains",
        "query_fleet",
        "get_trace_stats",
        "get_data_quality",
        "graph_lifecycle",
        "graph_frequency",
        "run_sql",
    ];
    let sql = json!({"sql": "SELECT count(*) FROM nodes"});
    let calls = tools.map(|tool| (tool, if tool == "run_sql" { sql.clone() } else { json!({}) }));
    for (tool, own) in tools.iter().zip(answered(&[("gpu-a", &observing())], &calls)) {
        assert_eq!(own["observation"][0]["node"], "gpu-a", "{tool}: {own}");
    }
    let calls = [("get_trace_stats", json!({"node": "gpu-a"})), ("get_data_quality", json!({}))];
    let own = answered(&[("gpu-a", &observing()), ("gpu-a", &observing())], &calls);
    assert_eq!(own[0]["calls"].as_array().unwrap().len(), 1, "the other has another name: {own:?}");
    assert_eq!(own[1]["nodes"][0]["node"], "gpu-a");
    let second = own[1]["nodes"][1]["node"].as_str().unwrap();
    assert!(second.starts_with("gpu-a (http://127.0.0.1:"), "{second}");
}

#[test]
fn a_node_that_shares_its_name_has_the_same_name_in_every_answer_whichever_answers_first() {
    let slow = Nature { delay: Duration::from_millis(300), ..observing() };
    let sql = "SELECT name, (SELECT count(*) > 0 FROM processes WHERE node = nodes.id) FROM nodes";
    let calls = [
        ("get_causal_chains", json!({})),
        ("get_data_quality", json!({})),
        ("run_sql", json!({"sql": sql})),
    ];
    let own = answered(&[("gpu-a", &slow), ("gpu-a", &observing())], &calls);
    let address = own[0]["nodes"][1]["url"].as_str().unwrap();
    let names = [json!("gpu-a"), json!(format!("gpu-a ({address})"))];
    for (answer, (tool, _)) in own.iter().zip(&calls) {
        let observed = answer["observation"].as_array().unwrap().iter();
        let observed: Vec<_> = observed.map(|own| own["node"].clone()).collect();
        assert_eq!(observed, names, "{tool}: {answer}");
    }
    for answer in &own[..2] {
        let nodes = [&answer["nodes"][0]["node"], &answer["nodes"][1]["node"]];
        assert_eq!(nodes, [&names[0], &names[1]], "{answer}");
    }
    let rows = own[2]["rows"].as_array().unwrap();
    let of_second = rows.iter().find(|row| row[0] == names[1]);
    assert_eq!((rows.len(), of_second), (2, Some(&json!([names[1], 1]))), "{rows:?}");
}

#[test]
fn call_stacks_are_not_listed_for_live_nodes_and_who_asks_for_them_gets_what_to_do() {
    let nodes = run(async {
        let client = client_of(start("gpu-a", observing()).await);
        let host = Arc::new(Quiet { allow_demo: false });
        Assistant::new(Source::Nodes(vec![client]), host, Stores::default())
    });
    let said = run(answers(nodes.clone(), &[call(0, "get_stacks", &json!({}))], 1));
    let said = said[0]["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("start one with --db FILE"), "{said}");
    let listed = [nodes, super::of_memory(false)].map(|one| tools_of(one).contains("get_stacks"));
    assert_eq!(listed, [false, true]);
}
