//! Each file is small and whole, and must not name anything else of its host than the demonstration.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;

use gpucause_investigations::any_format;
use gpucause_investigations::query::{QueryLimits, Value, query};
use regex::Regex;

use super::{Case, cases, folder, names};

/// So that they can be kept beside the source.
const MOST_BYTES: u64 = 200 << 10;

/// Other files beside them.
const OTHERS: [&str; 2] = ["record.py", "names.txt"];

/// `record.py` gives this name, as far as there is room, to whoever else ran on the host, with a number behind it.
const NEIGHBOUR: &str = "neighbour-unnamed";

/// Where the programs were, and the libraries that every program has.
const PLACES: &str =
    r"^(/opt/gpucause/(stand-ins/)?[\w.-]+|/(usr/)?lib(64)?/([\w-]+/)?[\w.+-]+|\[\w+\])$";

/// Returns true if a name reveals nothing, or is one of the demonstration or the kernel, as `names.txt` lists them.
fn is_known(name: &str, listed: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_it = |pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    NEIGHBOUR.starts_with(stem) || listed.split_whitespace().any(is_it)
}

fn texts(case: &Case, sql: &str) -> BTreeSet<String> {
    let answer =
        query(&case.db(), sql, &QueryLimits { rows: 100_000, ..QueryLimits::default() }).unwrap();
    assert!(!answer.more_rows, "{sql}");
    let text = |value: Value| match value {
        Value::Text(text) => Some(text),
        Value::Null => None,
        other => panic!("{sql}: {other:?}"),
    };
    answer.rows.into_iter().flatten().filter_map(text).collect()
}

#[test]
fn each_case_is_a_small_file_with_its_page_and_what_is_to_be_found() {
    let known = names("db");
    assert_eq!((names("md"), names("json")), (known.clone(), known));
    for entry in fs::read_dir(folder()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let bytes = entry.metadata().unwrap().len();
        assert!(bytes <= MOST_BYTES, "{name} has {bytes} bytes");
        let ending = name.rsplit('.').next().unwrap();
        assert!(["db", "md", "json"].contains(&ending) || OTHERS.contains(&&*name), "{name}");
    }
    for case in cases() {
        let recording = any_format::open(&case.db()).unwrap();
        let [session] = recording.sessions() else { panic!("{}: one session", case.name) };
        assert!(session.ended_ns.is_some(), "{} is whole", case.name);
        assert_eq!(session.lost_events, Some(0), "{}", case.name);
        assert!(recording.event_count().unwrap() > 0, "{} has events", case.name);
    }
}

#[test]
fn a_file_tells_of_the_demonstration_and_of_nothing_else_on_that_host() {
    let listed = fs::read_to_string(folder().join("names.txt")).unwrap();
    let place = Regex::new(PLACES).unwrap();
    for case in cases() {
        let mut found = texts(
            &case,
            "SELECT comm FROM processes UNION SELECT comm FROM parties UNION SELECT comm FROM waited_for
             UNION SELECT name FROM threads UNION SELECT victim_comm FROM chains UNION SELECT culprit_comm FROM chains",
        );
        any_format::open(&case.db())
            .unwrap()
            .snapshots(&mut |look| {
                for process in &look.input.snapshot.processes {
                    found.insert(process.comm.to_text());
                    found.extend(process.waits.iter().map(|wait| wait.on.to_text()));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        let foreign: Vec<_> = found.iter().filter(|name| !is_known(name, &listed)).collect();
        assert!(foreign.is_empty(), "{} names {foreign:?}: record it again", case.name);
        let places = texts(
            &case,
            "SELECT frame.value ->> 'module' FROM stacks, json_each(stacks.frames) AS frame
             WHERE frame.value ->> 'module' IS NOT NULL
             UNION SELECT frame.value ->> 'file' FROM stacks, json_each(stacks.frames) AS frame
             WHERE frame.value ->> 'file' IS NOT NULL
             UNION SELECT value FROM process_details WHERE name = 'exe'",
        );
        let foreign: Vec<_> = places.iter().filter(|own| !place.is_match(own)).collect();
        assert!(foreign.is_empty(), "{} tells of {foreign:?}", case.name);
        let facts = texts(
            &case,
            "SELECT name || '=' || value FROM process_details WHERE name NOT IN ('exe', 'ns_pid')
             UNION SELECT 'node=' || name FROM nodes",
        );
        let known = ["cgroup=/", "node=gpu-1", "user=root"].map(String::from);
        let foreign: Vec<_> = facts.iter().filter(|own| !known.contains(own)).collect();
        assert!(foreign.is_empty(), "{} tells of {foreign:?}", case.name);
        let session = texts(&case, "SELECT value FROM session_details");
        let is_number = |own: &str| own.chars().all(|c| c.is_ascii_digit() || ".,".contains(c));
        assert!(session.iter().all(|own| is_number(own)), "{}: {session:?}", case.name);
    }
}
