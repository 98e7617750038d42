//! Costs, as a Prometheus has them.

use serde_json::{Value, json};

use super::recording::HOSTILE;
use super::store::{Answering, samples, texts};

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

#[test]
fn costs_are_by_cause_with_source_and_age_the_dearest_first() {
    let (answers, paths) = texts("get_cost", a_day, &[json!({"hours": 48})]);
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
    let (answers, _) = texts("get_cost", ended, &[json!({})]);
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
    let (answers, paths) = texts("get_cost", a_day, &wrong);
    assert!(answers.iter().all(|(is_error, _)| *is_error), "{answers:?}");
    assert_eq!(paths, [""; 0]);
    let (answers, paths) = texts("get_cost", a_day, &[json!({"by": "slurm_job"})]);
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
    let (answers, _) = texts("get_cost", hostile, &[json!({"limit": 200, "detail": true})]);
    assert!(!answers[0].0 && answers[0].1.len() <= 33 << 10, "{}", answers[0].1.len());
    assert!(!answers[0].1.contains(HOSTILE) && answers[0].1.contains("left_out"));
    for (answering, said) in [
        ((|_: &str| samples(&[])) as Answering, "has no values of rules/cost.yaml"),
        (|_| ("200 OK", "[".repeat(100_000)), "does not answer as Prometheus does"),
        (|_| ("200 OK", "x".repeat(5 << 20)), "larger than 4 MiB"),
        (|_| ("422 Unprocessable Entity", r#"{"error":"bad\u001b[2J"}"#.into()), "422: bad?[2J"),
        (|_| ("302 Found", String::new()), "answered 302"),
    ] {
        let (answers, _) = texts("get_cost", answering, &[json!({})]);
        assert!(answers[0].0 && answers[0].1.contains(said), "{said}: {:.200}", answers[0].1);
    }
}
