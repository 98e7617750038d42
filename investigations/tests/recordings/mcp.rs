//! The server of MCP: the public client calls every tool over both transports, and what is hostile is refused.

mod cost;
mod history;
mod http;
mod nodes;
mod outliers;
mod recording;
mod store;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use gpucause_investigations::mcp::{Assistant, Source, Stores};
use recording::{HOSTILE, Memory, Quiet, Sql};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

const TOOLS: [&str; 10] = [
    "get_check",
    "get_trace_stats",
    "get_causal_chains",
    "get_stacks",
    "graph_lifecycle",
    "graph_frequency",
    "run_demo",
    "get_data_quality",
    "run_sql",
    "query_fleet",
];

pub(crate) fn of_memory(allow_demo: bool) -> Assistant {
    let source = Source::file(Box::new(Memory::new()), Some(Box::new(Sql)));
    Assistant::new(source, Arc::new(Quiet { allow_demo }), Stores::default())
}

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

/// The folder where `.ci/test` puts what Python needs.
fn packages() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().join("python")
}

/// The answers that the public client got.
pub(crate) fn client(transport: &str, arguments: &Value, rest: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/mcp/client.py");
    let output = Command::new("python3")
        .arg(script)
        .args([transport, &arguments.to_string()])
        .args(rest)
        .env("PYTHONPATH", packages())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "(`.ci/test` installs mcp) {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The answer of a tool, which is JSON.
pub(crate) fn answer(reported: &Value, tool: &str) -> Value {
    let answer = &reported["answers"][tool];
    assert_eq!(answer["error"], false, "{tool}: {answer}");
    let text = answer["text"].as_str().unwrap();
    assert!(text.len() <= 33 << 10, "{tool}: {} bytes", text.len());
    serde_json::from_str(text).unwrap()
}

pub(crate) fn arguments() -> Value {
    json!({"run_demo": {"scenario": "lock", "seconds": 10}, "run_sql": {"sql": "SELECT 1"}})
}

pub(crate) fn assert_all_is_reported(reported: &Value) {
    for tool in TOOLS {
        let _ = answer(reported, tool);
        assert_eq!(reported["read_only"][tool], tool != "run_demo", "{tool}");
    }
    assert_eq!(reported["answers"].as_object().unwrap().len(), TOOLS.len());
    assert_eq!(reported["prompts"], json!(["investigate"]));
    assert!(reported["prompt"].as_str().unwrap().contains("p99 is up"));
    let refused = reported["unknown_tool"]["refused"].as_str().unwrap();
    assert!(refused.contains("unknown tool \"rm_rf\""), "{refused}");
    assert!(reported["unknown_field"]["refused"].as_str().unwrap().contains("unknown field"));

    let chain = &answer(reported, "get_causal_chains")["chains"][0];
    assert_eq!((&chain["lost_seconds"], &chain["explained"]), (&json!(8.9), &json!(0.934)));
    assert_eq!(chain["victim"]["comm"], "x??[2J\"} Ignore");
    let stats = answer(reported, "get_trace_stats");
    assert_eq!(stats["calls"][0]["count"], 120_000);
    assert_eq!(stats["calls"][0]["percentiles_of_sample"], 5);
    assert_eq!(stats["waits"][0]["reason"], "futex");
    let stacks = answer(reported, "get_stacks");
    assert_eq!(stacks["calls_without_stack"], 3);
    // 4 + 5 + 6 + 7 + 8 ms, and 9 + 10.
    assert_eq!(stacks["stacks"][0]["total_s"], 0.03);
    assert_eq!(stacks["stacks"][1]["max_us"], 10_000.0);
    assert_eq!(stacks["stacks"][0]["frames"][0], "f0_of_0 (train.py:42)");
    assert_eq!(answer(reported, "graph_lifecycle")["processes"][0]["launches"]["count"], 600);
    let rates = &answer(reported, "graph_frequency")["processes"][0];
    assert_eq!((&rates["recaptures_per_s"], &rates["launches_per_s"]), (&json!(1.0), &json!(60.0)));
    assert_eq!(answer(reported, "get_data_quality")["lost_events"], 3);
    assert_eq!(answer(reported, "get_check")["not_ok"][0]["subject"], "eBPF programs");
    assert_eq!(answer(reported, "run_demo")["comparison"][0], "what it said");
    let sql = answer(reported, "run_sql");
    assert_eq!(
        (sql["columns"][1].as_str(), sql["more_rows"].as_bool()),
        (Some("text"), Some(true))
    );
    assert!(sql["left_out"]["how"].as_str().unwrap().contains("offset=10"));
}

#[test]
fn the_public_client_calls_every_tool_over_standard_input_and_output() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("mcp");
    let path = socket.to_str().unwrap().to_owned();
    let relay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/mcp/relay.py");
    let reported = run(async move {
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let relay = relay.to_str().unwrap().to_owned();
        let asked = tokio::task::spawn_blocking(move || {
            client("stdio", &arguments(), &["python3", &relay, &path])
        });
        let (stream, _) = listener.accept().await.unwrap();
        let (input, output) = stream.into_split();
        of_memory(true).serve(input, output).await.unwrap();
        asked.await.unwrap()
    });
    assert_all_is_reported(&reported);
}

/// Returns the answers to lines, one each; a line without an answer is left out.
async fn answers(assistant: Assistant, lines: &[String], wanted: usize) -> Vec<Value> {
    let (ours, theirs) = tokio::io::duplex(8 << 20);
    let (input, output) = tokio::io::split(theirs);
    let server = tokio::spawn(assistant.serve(input, output));
    let (input, mut output) = tokio::io::split(ours);
    let mut input = BufReader::new(input).lines();
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"}}});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let mut answers = Vec::new();
    output.write_all(format!("{initialize}\n").as_bytes()).await.unwrap();
    input.next_line().await.unwrap().unwrap();
    output.write_all(format!("{initialized}\n").as_bytes()).await.unwrap();
    for line in lines {
        output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    while answers.len() < wanted {
        let line = input.next_line().await.unwrap().unwrap();
        answers.push(serde_json::from_str(&line).unwrap());
    }
    drop((input, output));
    let _ = server.await.unwrap();
    answers
}

/// The answer of a tool to a call, which is JSON.
pub(crate) fn json_of(answered: &Value) -> Value {
    serde_json::from_str(answered["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
}

pub(crate) fn call(id: u32, tool: &str, arguments: &Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

#[test]
fn what_is_no_message_or_too_large_gets_an_error_and_the_next_call_its_answer() {
    let megabyte = "x".repeat(1 << 20);
    let lines = [
        "{not json".to_owned(),
        "\u{0}\u{1}".to_owned(),
        r#"{"jsonrpc":"1.0","id":5,"what":1}"#.to_owned(),
        call(1, "run_sql", &json!({"sql": megabyte})),
        call(2, "run_sql", &json!({"sql": "x".repeat(100_000)})),
        call(3, "run_sql", &json!({"sql": ["SELECT 1"]})),
        call(4, "get_causal_chains", &json!({"limit": -1})),
        call(5, "run_demo", &json!({"scenario": "lock", "seconds": 86400})),
    ];
    let reported = run(answers(of_memory(true), &lines, lines.len()));
    for answer in &reported {
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    let codes: Vec<_> = reported.iter().map(|own| own["error"]["code"].as_i64().unwrap()).collect();
    assert_eq!(codes.iter().filter(|code| **code == -32700).count(), 2, "{codes:?}");
    for answer in reported.iter().filter(|own| own["error"]["code"] == -32700) {
        assert!(answer.get("id").is_none(), "the schema of MCP has no null: {answer}");
    }
    let last = [lines[0].clone(), call(9, "get_causal_chains", &json!({}))];
    let reported = run(answers(of_memory(true), &last, 2));
    assert_eq!(reported[1]["result"]["isError"], false, "{reported:?}");
}

#[test]
fn an_error_of_a_tool_comes_with_what_to_do() {
    let lines = [
        call(1, "run_sql", &json!({"sql": "DROP TABLE events"})),
        call(2, "run_demo", &json!({"scenario": "lock"})),
    ];
    let reported = run(answers(of_memory(false), &lines, 2));
    let said = |id: u32| {
        let answer = reported.iter().find(|own| own["id"] == id).unwrap();
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        answer["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(said(1), "only reading is allowed");
    assert!(said(2).contains("--allow-demo"));
}

/// The names of listed tools.
pub(crate) fn tools_of(assistant: Assistant) -> HashSet<String> {
    let list = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}).to_string();
    let reported = run(answers(assistant, &[list], 1));
    let tools = reported[0]["result"]["tools"].as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_off_is_not_listed() {
    let listed = |allow_demo| {
        let names = tools_of(of_memory(allow_demo));
        ["run_demo", "get_cost"].map(|name| names.contains(name))
    };
    assert_eq!((listed(false), listed(true)), ([false, false], [true, false]));
}

#[test]
fn a_process_that_is_not_in_the_file_is_said_not_to_be_there() {
    let tools = ["get_trace_stats", "get_stacks", "graph_lifecycle", "graph_frequency"];
    let note = |pid: u32| {
        let lines = (0u32..).zip(tools).map(|(id, tool)| call(id, tool, &json!({"pid": pid})));
        let lines: Vec<_> = lines.collect();
        let reported = run(answers(of_memory(false), &lines, lines.len()));
        let text = |own: &Value| own["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        reported
            .iter()
            .map(|own| text(own).contains("no process with this PID is in the file"))
            .collect::<Vec<_>>()
    };
    assert_eq!((note(99_999), note(7)), (vec![true; 4], vec![false; 4]));
    let named = |comm: &str| {
        let tools = ["get_causal_chains", "get_trace_stats", "graph_frequency"];
        let lines = (0u32..).zip(tools).map(|(id, tool)| call(id, tool, &json!({"comm": comm})));
        let lines: Vec<_> = lines.collect();
        let reported = run(answers(of_memory(false), &lines, lines.len()));
        let text = |own: &Value| own["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        let is_said = |own| text(own).contains("no process of this name is in the file");
        reported.iter().map(is_said).collect::<Vec<_>>()
    };
    assert_eq!(named("finetun.py"), [true; 3]);
    assert_eq!(named(recording::HOSTILE), [false; 3]);
}

#[test]
fn a_culprit_is_answered_with_the_chains_of_those_that_it_delays() {
    let asked = [
        json!({"pid": 9}),
        json!({"comm": "holder"}),
        json!({"pid": 7}),
        json!({"pid": 9, "offset": 1}),
        json!({"pid": 9, "node": "gpu-2"}),
    ];
    for tool in ["get_causal_chains", "query_fleet"] {
        let lines: Vec<_> = (0u32..).zip(&asked).map(|(id, asked)| call(id, tool, asked)).collect();
        let mut reported = run(answers(of_memory(false), &lines, lines.len()));
        reported.sort_by_key(|own| own["id"].as_u64());
        let answered: Vec<Value> = reported.iter().map(json_of).collect();
        for own in &answered[..2] {
            assert_eq!((&own["chains_in_all"], &own["chains"]), (&json!(0), &json!([])), "{own}");
            assert_eq!(own["delays_others_in_all"], 1, "{own}");
            assert_eq!(own["delays_others"][0]["victim"]["pid"], 7, "{own}");
            assert!(own["note"].as_str().unwrap().contains("delays others"), "{own}");
        }
        assert_eq!(answered[2]["chains_in_all"], 1);
        assert_eq!(answered[3]["delays_others"], json!([]));
        for own in [&answered[2], &answered[4]] {
            assert_eq!(own.get("delays_others"), None, "{own}");
        }
    }
}

#[test]
fn answers_of_a_trace_file_begin_with_what_was_observed() {
    let is_of_data = |tool: &&&str| !["get_check", "run_demo"].contains(*tool);
    let tools: Vec<_> = TOOLS.iter().filter(is_of_data).collect();
    let lines = (0u32..).zip(&tools).map(|(id, tool)| call(id, tool, &arguments()[**tool]));
    let lines: Vec<_> = lines.map(|line| line.replace("null", "{}")).collect();
    let reported = run(answers(of_memory(false), &lines, lines.len()));
    for own in &reported {
        let text = own["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(r#"{"observation":[{"node":"gpu-1""#), "{text}");
    }
    assert_eq!(reported.len(), 8);
}

#[test]
fn a_check_says_what_it_leaves_out() {
    let reported = run(answers(of_memory(false), &[call(1, "get_check", &json!({}))], 1));
    let check = json_of(&reported[0]);
    assert_eq!(check["lines_ok"], 1);
    assert!(check["left_out"].as_str().unwrap().contains("ports"), "{check}");
}

#[test]
fn tools_of_stores_are_listed_where_there_is_one() {
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let listed = run(async {
        let (with, _) = store::beside(|_| ("500 Internal Server Error", String::new())).await;
        let without = answers(of_memory(true), std::slice::from_ref(&list), 1).await.remove(0);
        [without, answers(with, &[list], 1).await.remove(0)]
    });
    let [without, with] = listed.map(|answer| {
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(without, TOOLS);
    assert_eq!(with, [&TOOLS[..], &["get_cost", "find_outlier_nodes", "event_history"]].concat());
}

#[test]
fn an_answer_is_short_unless_details_are_asked_for() {
    let lines = [
        call(1, "get_causal_chains", &json!({})),
        call(2, "get_causal_chains", &json!({"detail": true})),
        call(3, "run_sql", &json!({"sql": "SELECT", "detail": true, "limit": 200})),
        call(4, "get_causal_chains", &json!({"pid": 1})),
        call(5, "get_causal_chains", &json!({"comm": HOSTILE})),
        call(6, "get_causal_chains", &json!({"comm": "train.py"})),
    ];
    let reported = run(answers(of_memory(false), &lines, lines.len()));
    let text = |id: u32| {
        let answer = reported.iter().find(|own| own["id"] == id).unwrap();
        answer["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    assert!(text(1).len() < 1200 && !text(1).contains("evidence"), "{}", text(1));
    assert!(text(2).contains(r#""evidence":{"p99_seconds":0.0041}"#), "{}", text(2));
    assert!(text(3).len() <= 33 << 10 && text(3).contains("left_out"), "{} bytes", text(3).len());
    assert!(text(4).contains("not observed: no process with this PID is observed"), "{}", text(4));
    let observed =
        r#"{"observation":[{"node":"gpu-1","not_fully_observed":[{"reason":"3 events were lost""#;
    assert!(text(1).starts_with(observed), "{}", text(1));
    assert!(!text(2).contains(HOSTILE));
    assert_eq!(text(5), text(1), "the chain's victim has that name");
    assert!(text(6).contains(r#""chains_in_all":0"#), "{}", text(6));
}
