//! The naming rules that every row obeys.

use super::*;

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn names_have_a_prefix_and_are_unique() {
    for (index, metric) in ALL.iter().enumerate() {
        let name = metric.name;
        assert!(is_name(name), "{name}");
        assert!(name.starts_with("gpucause_") || name.starts_with("process_"), "{name}");
        assert!(ALL[..index].iter().all(|other| other.name != name), "{name} twice");
    }
}

#[test]
fn a_unit_is_the_end_of_the_name_and_always_a_base_unit() {
    for metric in ALL {
        let name = metric.name;
        for unit in [Unit::Seconds, Unit::Bytes] {
            let ends = name.ends_with(&format!("_{}", unit.name()));
            assert_eq!(ends, metric.unit == Some(unit), "{name} and {unit:?}");
        }
        for other in
            ["_ns", "_nanoseconds", "_us", "_ms", "_milliseconds", "_kb", "_mb", "_percent"]
        {
            assert!(!name.ends_with(other), "{name}");
        }
    }
}

#[test]
fn suffixes_that_encoders_add_are_not_in_names() {
    for metric in ALL {
        let name = metric.name;
        for suffix in ["_total", "_created", "_bucket", "_sum", "_count"] {
            assert!(!name.ends_with(suffix), "{name}");
        }
        assert_eq!(name.ends_with("_info"), metric.kind == Kind::Info, "{name}");
    }
}

#[test]
fn no_two_metrics_share_a_sample_name() {
    let mut names: Vec<String> = Vec::new();
    for metric in ALL {
        names.push(metric.query_name());
        names.push(format!("{}_created", metric.name));
        if metric.kind == Kind::Histogram {
            names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name)));
        }
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn label_keys_are_unique_and_leave_reserved_ones_alone() {
    for metric in ALL {
        for (index, label) in metric.labels.iter().enumerate() {
            // Joins with DCGM's metrics need its own spelling.
            assert!(is_name(label) || *label == "UUID", "{}: {label}", metric.name);
            let reserved = ["le", "quantile", "job", "instance", "type"];
            assert!(!["kind", "operation"].contains(label), "{}: {label} of what?", metric.name);
            assert!(!reserved.contains(label), "{}: {label}", metric.name);
            assert!(!metric.labels[..index].contains(label), "{}: {label} twice", metric.name);
        }
    }
}

#[test]
fn help_is_one_sentence_on_one_line() {
    for metric in ALL {
        let help = metric.help;
        assert!(help.ends_with('.') && !help.trim_end_matches('.').contains(". "), "{help}");
        assert!(!help.contains(['\n', '\\', '"']), "{help}");
        assert!(help.starts_with(|c: char| c.is_ascii_uppercase()), "{help}");
    }
}

#[test]
fn per_process_metrics_lead_with_pid_and_comm() {
    for metric in ALL {
        if metric.labels.contains(&"pid") || metric.labels.contains(&"comm") {
            assert_eq!(metric.labels[..2], ["pid", "comm"], "{}", metric.name);
        }
    }
}

#[test]
fn the_markdown_has_one_row_a_metric() {
    let page = markdown();
    assert_eq!(page.lines().count(), ALL.len() + 2);
    assert!(page.contains(
        "| `gpucause_cuda_call_errors_total` | counter | standard | `pid`, `comm`, `api`, `op`, `error` |"
    ));
}

/// Compares the part of a document between two marks with what it should be; `GPUCAUSE_BLESS=1 cargo test` rewrites it.
fn assert_in_document(path: &str, mark: &str, expected: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let page = std::fs::read_to_string(&path).unwrap();
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->\n"));
    let (before, rest) = page.split_once(&open).unwrap();
    let (part, after) = rest.split_once(&close).unwrap();
    if std::env::var_os("GPUCAUSE_BLESS").is_some() {
        std::fs::write(path, format!("{before}{open}{expected}{close}{after}")).unwrap();
        return;
    }
    for (ours, expected) in part.lines().zip(expected.lines()) {
        assert_eq!(ours, expected);
    }
    assert_eq!(part.lines().count(), expected.lines().count());
}

#[test]
fn the_documents_have_the_tables_of_metrics_and_causes() {
    assert_in_document("../METRICS.md", "metrics", &markdown());
    assert_in_document("../../investigations/causes.md", "causes", &gpucause_engine::markdown());
}

#[test]
fn rules_read_metrics_that_there_are() {
    for rule in gpucause_engine::rules() {
        for name in rule.reads.iter().filter(|name| !name.starts_with("DCGM_")) {
            let known = ALL.iter().any(|metric| metric.query_name() == **name);
            assert!(known, "{}: {name}", rule.cause);
        }
    }
}
