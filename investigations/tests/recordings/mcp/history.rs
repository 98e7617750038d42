//! Chains of the past, as a ClickHouse has them. `.ci/fleet/history.py` asks a real one.

use serde_json::{Value, json};

use super::recording::HOSTILE;
use super::store::{Answering, texts};

fn chain(node: &str, state: &str, last_seen: f64) -> Value {
    json!({
        "node": node, "id": "7f-1", "state": state, "severity": "high", "cause": "lock_wait", "effect": "launch_tail",
        "first_seen": 1000.0, "last_seen": last_seen, "now": 2000.0, "lost_seconds": 8.9, "explained": 0.934,
        "victim": HOSTILE, "victim_pid": 7, "culprit": "noisy", "culprit_pid": null, "culprit_owner": "noisy.service",
        "rank": 3, "slurm_job": "17", "namespace": "", "pod": "", "owner": "me", "sentence": "a lock was held.",
        "fix": "release it", "evidence": {"p99_seconds": 0.0041, "lie": null},
    })
}

fn answered(rows: &[Value]) -> (&'static str, String) {
    (
        "200 OK",
        json!({"meta": [{"name": "node", "type": "String"}], "data": rows, "rows": rows.len()})
            .to_string(),
    )
}

fn three(path: &str) -> (&'static str, String) {
    if path.contains("records%2C") {
        return answered(&[json!({"records": 6, "age": 61.5, "chains": 3, "lost": 26.7})]);
    }
    let mut silent = chain("gpu-2", "changed", 1500.0);
    silent["lost_seconds"] = Value::Null;
    answered(&[chain("gpu-1", "changed", 1990.0), silent, chain("gpu-1", "ended", 1400.0)])
}

fn ask(answering: Answering, arguments: &Value) -> (bool, String, Vec<String>) {
    let (mut texts, paths) = texts("event_history", answering, std::slice::from_ref(arguments));
    let (is_error, text) = texts.remove(0);
    (is_error, text, paths)
}

#[test]
fn chains_are_the_newest_first_with_source_age_and_what_became_of_them() {
    let (is_error, text, paths) = ask(three, &json!({}));
    assert!(!is_error && !text.contains(HOSTILE), "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert!(answer["source"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{answer}");
    assert_eq!((&answer["newest_record_age_s"], &answer["hours"]), (&json!(61.5), &json!(24)));
    assert_eq!(
        (&answer["chains_in_all"], &answer["lost_seconds_in_all"]),
        (&json!(3.0), &json!(26.7))
    );
    let chains = answer["chains"].as_array().unwrap();
    let states: Vec<_> = chains.iter().map(|chain| chain["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["ongoing", "silent", "ended"]);
    assert_eq!((&chains[0]["rank"], &chains[0]["slurm_job"]), (&json!(3), &json!("17")));
    assert_eq!(
        chains[0]["culprit"],
        json!({"pid": null, "comm": "noisy", "owner": "noisy.service"})
    );
    assert_eq!((&chains[1]["lost_seconds"], chains[0].get("fix")), (&json!(0.0), None));
    // It may only read, and not more than it may.
    assert_eq!(paths.len(), 2);
    for path in &paths {
        assert!(
            path.starts_with("/?readonly=2&max_execution_time=8&max_result_rows=100&"),
            "{path}"
        );
    }
    let (_, text, _) = ask(three, &json!({"detail": true}));
    assert!(text.contains(r#""evidence":{"lie":null,"p99_seconds":0.0041}"#), "{text}");
}

#[test]
fn numbers_that_json_does_not_have_hide_no_chain() {
    let strange = |path: &str| {
        if path.contains("records%2C") {
            return answered(&[json!({"records": 2, "age": 61.5, "chains": 2, "lost": null})]);
        }
        let mut row = chain("gpu-1", "changed", 1990.0);
        row["lost_seconds"] = "inf".into();
        row["evidence"] = json!({"calls": "9", "lie": "nan", "other": {"no": "number"}});
        answered(&[row])
    };
    let (is_error, text, _) = ask(strange, &json!({"detail": true}));
    assert!(!is_error, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["lost_seconds_in_all"], Value::Null);
    let chain = &answer["chains"][0];
    assert_eq!((&answer["chains_in_all"], &chain["lost_seconds"]), (&json!(2.0), &json!(0.0)));
    assert_eq!(chain["evidence"], json!({"calls": 9.0, "lie": null, "other": null}));
}

#[test]
fn what_is_asked_for_is_a_parameter_and_no_part_of_the_statement() {
    let asked = json!({"node": "gpu-1' OR 1", "job": "17", "comm": "a\\b", "cause": "lock_wait", "hours": 48, "until": 1700000000.5});
    let (is_error, text, paths) = ask(three, &asked);
    assert!(!is_error, "{text}");
    let (_, plain) = paths[1].split_once("&query=").unwrap();
    for part in [
        "&param_node=gpu-1%27%20OR%201&",
        "&param_job=17&",
        "&param_comm=a%5C%5Cb&",
        "&param_cause=lock_wait&",
        "&param_hours=48&",
        "&param_until=1700000000.5&",
    ] {
        assert!(paths[1].contains(part) && !plain.contains("gpu-1"), "{part}: {}", paths[1]);
    }
    for wrong in [
        json!({"hours": 0}),
        json!({"hours": 745}),
        json!({"until": -1}),
        json!({"until": 1e300}),
        json!({"sql": "DROP TABLE otel_logs"}),
    ] {
        let (is_error, text, paths) = ask(three, &wrong);
        assert!(is_error && paths.is_empty(), "{wrong}: {text}");
    }
}

#[test]
fn a_clickhouse_that_lies_gets_no_further_than_a_short_answer() {
    let many = |path: &str| {
        if path.contains("records%2C") {
            return answered(&[json!({"records": 9000, "age": 0, "chains": 2000, "lost": 1e300})]);
        }
        let mut rows: Vec<_> =
            (0..2000).map(|at| chain(&format!("{HOSTILE}{at}"), HOSTILE, f64::from(at))).collect();
        for row in &mut rows {
            row["sentence"] = HOSTILE.repeat(20).into();
        }
        answered(&rows)
    };
    let (is_error, text, _) = ask(many, &json!({"limit": 200, "detail": true}));
    assert!(!is_error && text.len() <= 33 << 10, "{}: {text:.200}", text.len());
    assert!(
        !text.contains(HOSTILE) && text.contains("only the newest 100 are here"),
        "{text:.900}"
    );
    for (answering, said) in [
        (
            (|_: &str| answered(&[json!({"records": 0, "age": 1.7e9, "chains": 0, "lost": 0})]))
                as Answering,
            "has no chains; exporters send them",
        ),
        (|_| ("200 OK", "[".repeat(100_000)), "does not answer as ClickHouse does"),
        (
            |_| ("200 OK", "Code: 159. DB::Exception: Timeout".into()),
            "does not answer as ClickHouse does",
        ),
        (|_| ("200 OK", "x".repeat(5 << 20)), "larger than 4 MiB"),
        (
            |_| ("404 Not Found", "Code: 60. DB::Exception: Unknown table\u{1b}[2J".into()),
            "create the tables of clickhouse.sql",
        ),
        (
            |_| ("500 Internal Server Error", "Code: 164. DB::Exception: readonly".into()),
            "readonly = 2, not 1",
        ),
        (|_| ("302 Found", String::new()), "answered 302"),
    ] {
        let (is_error, text, _) = ask(answering, &json!({}));
        assert!(is_error && text.contains(said) && !text.contains('\u{1b}'), "{said}: {text:.200}");
    }
}
