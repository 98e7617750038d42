//! Other exporters of this host.

use std::fs;

use gpucause_http::port_owner::{Owner, names};

/// Warns of other exporters of this host, as far as this process may see them.
pub fn warn_of_other_exporters() {
    let own = std::process::id();
    let others: Vec<_> =
        pids().map(Owner::of).filter(|other| other.is_exporter() && other.pid != own).collect();
    if !others.is_empty() {
        let others = names(&others);
        tracing::warn!(%others, "another exporter runs on this host: calls that both observe are probed by both");
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
