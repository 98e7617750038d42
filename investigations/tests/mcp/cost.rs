//! Costs, as a Prometheus has them.

use std::sync::Arc;

use gpucause_investigations::http::{Address, Client};
use gpucause_investigations::mcp::{Assistant, Source};
use gpucause_investigations::prometheus::Prometheus;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::recording::{HOSTILE, Memory, Quiet, Sql};
use crate::{answers, call, run};

/// What a fake Prometheus answers to a path, with its status.
type Answering = fn(&str) -> (&'static str, String);

/// An assistant that asks a fake Prometheus, and the paths that were asked.
async fn beside(answering: Answering) -> (Assistant, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let paths = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = answering(&path);
            paths.lock().push(path);
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let client = Client::new(Address::parse(&url, [80, 443]).unwrap(), None).unwrap();
    let source = Source::file(Box::new(Memory::new()), Some(Box::new(Sql)));
    let host = Arc::new(Quiet { allow_demo: false });
    (Assistant::new(source, host, Some(Prometheus::new(client))), asked)
}

fn samples(samples: &[(Value, &str)]) -> (&'static str, String) {
    let result: Vec<_> = samples
        .iter()
        .map(|(labels, value)| json!({"metric": labels, "value": [1.0, value]}))
        .collect();
    ("200 OK", json!({"status": "success", "data": {"result": result}}).to_string())
}

/// Two causes and idle GPUs.
fn a_day(path: &str) -> (&'static str, String) {
    let causes = [json!({"cause": "lock_wait"}), json!({"cause": "block_io"})];
    let costs = [
        json!({"cause": "lock_wait", "currency": "EUR"}),
        json!({"cause": "block_io", "currency": "EUR"}),
    ];
    let [first, second] = causes;
    let [first_cost, second_cost] = costs;
    if path.contains("timestamp") {
        samples(&[(json!({}), "12.5")])
    } else if path.contains("lost_seconds") {
        samples(&[(first, "7200"), (second, "1800")])
    } else if path.contains("idle_seconds") {
        samples(&[(json!({}), "3600")])
    } else if path.contains("lost_cost") {
        samples(&[(first_cost, "8"), (second_cost, "9.5")])
    } else {
        samples(&[(json!({"currency": "EUR"}), "4")])
    }
}

/// The texts of answers to calls, and whether each is an error.
fn texts(answering: Answering, arguments: &[Value]) -> (Vec<(bool, String)>, Vec<String>) {
    run(async {
        let (assistant, asked) = beside(answering).await;
        let mut texts = Vec::new();
        for arguments in arguments {
            let lines = [call(1, "get_cost", arguments)];
            let answer = answers(assistant.clone(), &lines, 1).await.remove(0);
            let text = match &answer["error"]["message"] {
                Value::String(text) => (true, text.clone()),
                _ => {
                    let result = &answer["result"];
                    let text = result["content"][0]["text"].as_str().unwrap().to_owned();
                    (result["isError"] == true, text)
                }
            };
            texts.push(text);
        }
        let paths = asked.lock().clone();
        (texts, paths)
    })
}

#[test]
fn costs_are_by_cause_with_source_and_age_the_dearest_first() {
    let (answers, paths) = texts(a_day, &[json!({"hours": 48})]);
    assert!(!answers[0].0, "{answers:?}");
    let answer: Value = serde_json::from_str(&answers[0].1).unwrap();
    assert_eq!((&answer["newest_value_age_s"], &answer["last_hours"]), (&json!(12.5), &json!(48)));
    assert!(answer["source"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{answer}");
    assert_eq!(
        answer["rows"],
        json!([
            {"cause": "block_io", "lost_gpu_hours": 0.5, "lost_cost": {"EUR": 9.5}, "idle_gpu_hours": 0.0, "idle_cost": {}},
            {"cause": "lock_wait", "lost_gpu_hours": 2.0, "lost_cost": {"EUR": 8.0}, "idle_gpu_hours": 0.0, "idle_cost": {}},
            {"cause": null, "lost_gpu_hours": 0.0, "lost_cost": {}, "idle_gpu_hours": 1.0, "idle_cost": {"EUR": 4.0}},
        ])
    );
    assert_eq!(paths.len(), 5);
    let reads = |path: &String| path.starts_with("/prefix/api/v1/query?query=");
    assert!(paths.iter().all(reads), "{paths:?}");
    assert!(paths[1].contains("sum%20by%20%28cause%29") && paths[1].contains("%5B48h%5D"));
}

#[test]
fn costs_of_the_past_are_there_while_no_process_runs() {
    let ended = |path: &str| {
        if path.contains("timestamp") { samples(&[]) } else { a_day(path) }
    };
    let (answers, _) = texts(ended, &[json!({})]);
    assert!(!answers[0].0, "{answers:?}");
    let answer: Value = serde_json::from_str(&answers[0].1).unwrap();
    assert_eq!(answer["newest_value_age_s"], Value::Null);
    assert_eq!(answer["rows"].as_array().unwrap().len(), 3);
}

#[test]
fn only_listed_labels_and_times_reach_the_server() {
    let wrong = [
        json!({"hours": 0}),
        json!({"hours": 745}),
        json!({"by": "instance) or vector(1"}),
        json!({"query": "up"}),
    ];
    let (answers, paths) = texts(a_day, &wrong);
    assert!(answers.iter().all(|(is_error, _)| *is_error), "{answers:?}");
    assert_eq!(paths, [""; 0]);
    let (answers, paths) = texts(a_day, &[json!({"by": "slurm_job"})]);
    assert!(!answers[0].0 && paths[4].contains("%28slurm_job%2C%20currency%29"), "{paths:?}");
}

#[test]
fn a_server_that_lies_gets_no_further_than_a_short_answer() {
    let hostile = |path: &str| {
        if path.contains("timestamp") {
            return samples(&[(json!({}), "NaN")]);
        }
        let many = |n| (json!({"cause": format!("{HOSTILE}{n}"), "currency": HOSTILE}), "+Inf");
        let many: Vec<_> = (0..5000).map(many).collect();
        samples(&many)
    };
    let (answers, _) = texts(hostile, &[json!({"limit": 200, "detail": true})]);
    assert!(!answers[0].0 && answers[0].1.len() <= 33 << 10, "{}", answers[0].1.len());
    assert!(!answers[0].1.contains(HOSTILE) && answers[0].1.contains("left_out"));
    for (answering, said) in [
        ((|_: &str| samples(&[])) as Answering, "has no values of rules/cost.yaml"),
        (|_| ("200 OK", "[".repeat(100_000)), "does not answer as Prometheus does"),
        (|_| ("200 OK", "x".repeat(5 << 20)), "larger than 4 MiB"),
        (|_| ("422 Unprocessable Entity", r#"{"error":"bad\u001b[2J"}"#.into()), "422: bad?[2J"),
        (|_| ("302 Found", String::new()), "answered 302"),
    ] {
        let (answers, _) = texts(answering, &[json!({})]);
        assert!(answers[0].0 && answers[0].1.contains(said), "{said}: {:.200}", answers[0].1);
    }
}
