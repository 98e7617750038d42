//! Short-lived processes that make a few calls each.

use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::clock;
use serde_json::{Value, json};

use crate::caller::sum;
use crate::cli::{Common, Spawn};
use crate::process::{again, thread_id};
use crate::session;

pub(crate) fn run(common: &Common, options: &Spawn) -> Result<()> {
    let mut arguments = vec!["calls".to_owned(), format!("--calls={}", options.calls)];
    match &options.mix.mix {
        Some(mix) => arguments.push(format!("--mix={mix}")),
        None => arguments.push(format!("--op={}", options.mix.op)),
    }
    let passed = [("libs", &common.libs), ("cudart", &common.cudart)];
    for (name, path) in passed {
        if let Some(path) = path {
            arguments.push(format!("--{name}={}", path.display()));
        }
    }
    for (name, text) in [("script", &common.script), ("comm", &common.comm)] {
        if let Some(text) = text {
            arguments.push(format!("--{name}={text}"));
        }
    }
    session::ready(common, &[thread_id()], &json!({}))?;
    let start = clock::monotonic_ns();
    let mut running: Vec<Child> = Vec::new();
    let mut truths = Vec::new();
    let mut pids = Vec::new();
    for _ in 0..options.processes {
        if running.len() >= options.parallel.max(1) {
            truths.push(end(running.remove(0))?);
        }
        let child = again(arguments.iter().map(String::as_str))?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        pids.push(child.id());
        running.push(child);
    }
    for child in running {
        truths.push(end(child)?);
    }
    let total = sum(&truths);
    session::finish(
        common,
        &json!({
            "scenario": "spawn",
            "pid": std::process::id(),
            "processes": options.processes,
            "pids": pids,
            "calls": total["calls"],
            "errors": total["errors"],
            "wall_ns": clock::monotonic_ns() - start,
        }),
    )
}

/// Waits for a child and returns what it counted.
fn end(child: Child) -> Result<Value> {
    let pid = child.id();
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("process {pid}: {}", output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().with_context(|| format!("process {pid}: no result"))?;
    let result: Value = serde_json::from_str(line)?;
    Ok(json!({ "calls": result["calls"], "errors": result["errors"] }))
}
