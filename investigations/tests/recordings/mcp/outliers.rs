//! Ranks that stand off their job, as a Prometheus has them.

use serde_json::{Value, json};

use super::recording::HOSTILE;
use super::store::{Answering, samples, texts};

const RANKS: u32 = 4;

/// Labels of a rank of job 17, one on each node.
fn rank(rank: u32) -> Value {
    json!({"job": "gpucause", "instance": format!("gpu-{rank}:9400"), "pid": "7", "comm": "train.py", "slurm_job": "17",
        "rank": rank.to_string(), "world_size": "4"})
}

/// Rank 2 launches less, and loses time.
fn a_straggler(path: &str) -> (&'static str, String) {
    let each = |values: [&'static str; 4]| {
        let all: Vec<_> = (0..RANKS).zip(values).map(|(at, value)| (rank(at), value)).collect();
        samples(&all)
    };
    if path.contains("timestamp%28process") {
        samples(&[(json!({}), "4.5")])
    } else if path.contains("timestamp") {
        samples(&[(json!({}), "31")])
    } else if path.contains("up%7B") {
        samples(&[(json!({"instance": "gpu-9:9400"}), "0")])
    } else if path.contains("straggler") {
        samples(&[(rank(2), "1")])
    } else if path.contains("launches%3Arate1m") {
        each(["1000", "1010", "400", "990"])
    } else if path.contains("p99_1m") {
        each(["0.0002", "0.00021", "0.00022", "NaN"])
    } else if path.contains("host_delay") {
        each(["0.01", "0.02", "0.6", "0"])
    } else {
        each(["1", "1", "1", "1"])
    }
}

fn find(answering: Answering, arguments: Value) -> (bool, String, Vec<String>) {
    let (mut texts, paths) = texts("find_outlier_nodes", answering, &[arguments]);
    let (is_error, text) = texts.remove(0);
    (is_error, text, paths)
}

#[test]
fn a_rank_that_stands_off_is_named_with_source_and_age_and_so_is_a_node_without_scrapes() {
    let (is_error, text, paths) = find(a_straggler, json!({}));
    assert!(!is_error, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert!(answer["source"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{answer}");
    let ages = (&answer["newest_value_age_s"], &answer["oldest_scrape_age_s"]);
    assert_eq!(ages, (&json!(4.5), &json!(31.0)));
    assert_eq!(
        (&answer["ranks_compared"], &answer["outlier_nodes"]),
        (&json!(4), &json!(["gpu-2:9400"]))
    );
    assert_eq!(answer["failures"][0]["url"], "gpu-9:9400");
    let row = &answer["ranks"][0];
    assert_eq!((&row["node"], &row["rank"]), (&json!("gpu-2:9400"), &json!("2")));
    assert_eq!((&row["slurm_job"], &row["is_straggler_by_rules"]), (&json!("17"), &json!(true)));
    assert_eq!(row["by"]["launches_per_s"]["value"], 400.0);
    assert_eq!(row["by"]["launches_per_s"]["median_of_job"], 990.0);
    assert_eq!(row["by"]["lost_share"]["value"], 0.6);
    assert!(row["by"].get("launch_p99_s").is_none(), "{row}");
    assert_eq!(answer["ranks"].as_array().unwrap().len(), 1);
    assert_eq!(paths.len(), 8);
    let reads = |path: &String| path.starts_with("/prefix/api/v1/query?query=");
    assert!(paths.iter().all(reads), "{paths:?}");
    assert!(paths.iter().all(|path| path.ends_with("&timeout=10s")), "{paths:?}");
}

#[test]
fn of_a_job_and_a_program_only_those_are_asked_for() {
    let (is_error, text, paths) =
        find(a_straggler, json!({"job": "17", "comm": "train.py", "detail": true}));
    assert!(!is_error && text.contains("launch_p99_s"), "{text}");
    for path in &paths[..4] {
        assert!(path.contains("slurm_job%3D%2217%22%2Ccomm%3D%22train.py%22"), "{path}");
    }
    let (is_error, text, paths) = find(a_straggler, json!({"node": "gpu-1"}));
    assert!(is_error && paths.is_empty(), "{text}");
}

#[test]
fn a_rank_twice_makes_no_peers() {
    let twice = |path: &str| {
        let (status, body) = a_straggler(path);
        (status, body.replace(r#""rank":"3""#, r#""rank":"0""#))
    };
    let (is_error, text, _) = find(twice, json!({}));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert!(!is_error && answer["ranks"] == json!([]), "{text}");
    assert_eq!(
        (&answer["ranks_compared"], &answer["ranks_without_enough_peers"]),
        (&json!(0), &json!(4))
    );
}

#[test]
fn a_prometheus_that_lies_gets_no_further_than_a_short_answer() {
    let hostile = |path: &str| {
        let name = |at: u32| {
            let mut labels = rank(at);
            labels["instance"] = format!("{HOSTILE}{at}").into();
            labels
        };
        let values = if path.contains("rate1m") { ["1", "+Inf", "1000"] } else { ["1", "1", "1"] };
        let many: Vec<_> = (0..4000).map(|at| (name(at), values[at as usize % 3])).collect();
        samples(&many)
    };
    let (is_error, text, _) = find(hostile, json!({"limit": 200, "detail": true}));
    assert!(!is_error && text.len() <= 33 << 10, "{}", text.len());
    assert!(!text.contains(HOSTILE), "{text}");
    for (answering, said) in [
        ((|_: &str| samples(&[])) as Answering, "has no such ranks; it needs"),
        (|_| ("200 OK", "[".repeat(100_000)), "does not answer as Prometheus does"),
        (|_| ("200 OK", "x".repeat(5 << 20)), "larger than 4 MiB; ask for one job"),
        (|_| ("401 Unauthorized", String::new()), "answered 401"),
    ] {
        let (is_error, text, _) = find(answering, json!({}));
        assert!(is_error && text.contains(said), "{said}: {text:.200}");
    }
    let long =
        |_: &str| ("422 Unprocessable Entity", json!({"error": "é".repeat(2000)}).to_string());
    let (is_error, text, _) = find(long, json!({}));
    assert!(is_error && text.matches('é').count() == 300, "{text}");
}
