//! Fuzz targets for all parsers of foreign input: no bytes may cause a panic, a hang or unbounded memory. `make fuzz` searches
//! for such bytes; a test replays the corpus in `exporter/fuzz/corpus.tar.gz`.

#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use gpucause_investigations::explain::{Incident, render};
use gpucause_investigations::node::{Chains, snapshot_of};
use gpucause_observe::dcgm;
use gpucause_observe::kernel_launches::readable::readable;
use gpucause_observe::process_details::membership::Membership;
use gpucause_page::exposition::{Format, negotiate};
use gpucause_page::family::Exported;
use gpucause_page::foreign;
use gpucause_probes::elf::{kernel_handles, read_library, read_module, read_program, symbols_at};
use gpucause_probes::mapped::parse_maps_line;
use gpucause_trace::merge::Gathering;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::collector::{Collectors, Selection};
use crate::config::Config;
use crate::otlp::fuzzing as otlp;
use crate::peers::fuzzing as peers;
use crate::routes::fuzzing as routes;

/// Reads one input.
pub type Target = fn(&[u8]);

/// Every target, with the name of its folder in the corpus.
pub const TARGETS: [(&str, Target); 15] = [
    ("http", routes::http),
    ("request", request),
    ("config", config),
    ("web_config", routes::web_config),
    ("certificate", routes::certificate),
    ("dcgm", dcgm_page),
    ("elf", elf),
    ("proc", proc_files),
    ("kernel_name", kernel_name),
    ("node", node),
    ("snapshot", snapshot),
    ("prometheus", prometheus),
    ("clickhouse", clickhouse),
    ("otlp", otlp::answer),
    ("peers", peers::answer),
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

/// A line each of a scrape's query, `Accept` and `Accept-Encoding`.
fn request(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let known = Collectors::default().names();
    match Selection::parse(line(), &known) {
        Ok(selection) => {
            assert!(
                selection == Selection::All || known.iter().any(|name| selection.includes(name))
            );
        }
        Err(error) => assert!(error.to_string().len() < 4_096, "{error}"),
    }
    let _ = (negotiate::format(line()), negotiate::gzip(line()));
}

/// The text of a `--config.file`.
fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(complaints) = Config::parse(text) {
        assert!(!complaints.is_empty());
        complaints.iter().for_each(|complaint| drop(complaint.to_string()));
    }
}

/// A dcgm-exporter's page. What is accepted of it survives a round trip: no text breaks out of its label.
fn dcgm_page(data: &[u8]) {
    let written = |families: Vec<foreign::ForeignFamily>| {
        let families = families.into_iter().map(Arc::new).collect();
        let exported = Exported { foreign: families, ..Exported::default() };
        let [text, _, _] = Format::ALL.map(|format| format.encode(&exported));
        text
    };
    let Ok(families) = dcgm::parse(data) else { return };
    let page = written(families);
    assert_eq!(written(dcgm::parse(&page).unwrap()), page);
}

fn file_of(data: &[u8]) -> File {
    let mut file = File::from(memfd_create(c"fixture", MFdFlags::empty()).unwrap());
    file.write_all(data).unwrap();
    file
}

/// A file that a process has mapped to execute.
fn elf(data: &[u8]) {
    let file = file_of(data);
    if let Ok(image) = read_library(&file) {
        let offsets: Vec<_> = image.sites.iter().map(|site| site.offset).collect();
        assert!(offsets.is_sorted() && offsets.iter().all(|&at| at < data.len() as u64));
        drop(symbols_at(&file, &offsets));
    }
    drop(symbols_at(&file, &[0, 0x1000, 0x1010, u64::MAX]));
    drop((read_program(&file), read_module(&file), kernel_handles(&file)));
}

/// Parses text that a process can have in `/proc/PID/maps` and `/proc/PID/cgroup`.
fn proc_files(data: &[u8]) {
    for line in data.split(|&byte| byte == b'\n') {
        drop(parse_maps_line(line));
    }
    drop(Membership::of(&String::from_utf8_lossy(data)));
}

/// A symbol of a kernel.
fn kernel_name(data: &[u8]) {
    if let Some(name) = readable(data) {
        assert!(
            !name.is_empty() && name.chars().count() <= 128 && !name.contains(char::is_control)
        );
    }
}

/// Parses the answer of a node to `gpucause explain`.
fn node(data: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Chains>(data) else { return };
    let observed = answer.observed(
        f64::MAX,
        0.0,
        &gpucause_investigations::chain_filter::ChainFilter::default(),
    );
    let incident = Incident::of(answer.node, answer.chains, observed);
    let report = render(&incident, true);
    assert!(!report.contains(|c: char| c.is_control() && c != '\n'), "{report:?}");
    serde_json::to_string(&incident).unwrap();
}

/// Reads a node's snapshot, and copies it to those of other nodes.
fn snapshot(data: &[u8]) {
    let Ok(trace) = snapshot_of("node".as_ref(), data) else { return };
    let mut nodes = Gathering::new().unwrap();
    let added = nodes.add("0", "node".into(), Box::new(trace));
    let connection = nodes.finish().unwrap();
    let count: i64 =
        connection.query_row("SELECT count(*) FROM nodes", [], |row| row.get(0)).unwrap();
    assert_eq!(count, i64::from(added.is_ok()));
}

/// Parses the answer of a Prometheus to `gpucause mcp`.
fn prometheus(data: &[u8]) {
    let Ok(samples) = gpucause_investigations::prometheus::samples(data) else { return };
    // Each takes more of the answer than a label and its value.
    assert!(samples.len() < data.len());
}

/// Parses the answer of a ClickHouse to `gpucause mcp`.
fn clickhouse(data: &[u8]) {
    let Ok(rows) = gpucause_investigations::mcp::history_rows(data) else { return };
    // Each takes more of the answer than its separator.
    assert!(rows < data.len());
}

#[cfg(test)]
mod tests;
