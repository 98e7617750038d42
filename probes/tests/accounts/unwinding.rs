//! Calls that do not return in the ordinary way: the process does what it does without probes, calls that returned are
//! counted exactly, and those that did not are counted as abandoned and leave no duration.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::{MemorySnapshot, ProcessSnapshot};
use gpucause_probes::Options;
use serde_json::Value;

use crate::guest::is_emulated;
use crate::observe::{Observed, counted};
use crate::shares::started;
use crate::workload::{StandIns, number, op};

pub(crate) const COUNT: u64 = 10;
pub(crate) const CALLS: u64 = 100;
/// No call in these tests takes this long, unless what came between two calls was taken for one.
fn sane_ns() -> u64 {
    if is_emulated() { 30_000_000_000 } else { 1_000_000_000 }
}

/// Returns what a process prints and how it ends, without what differs from run to run.
fn outcome(stand_ins: &StandIns, arguments: &str) -> Result<(String, ExitStatus)> {
    let output = stand_ins.command(arguments).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut lines = Vec::new();
    for line in text.lines() {
        let (head, json) = line.split_at(line.find('{').context("a line without JSON")?);
        let mut value: Value = serde_json::from_str(json)?;
        forget(&mut value);
        lines.push(format!("{head}{value}"));
    }
    Ok((lines.join("\n"), output.status))
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, _| !matches!(key.as_str(), "pid" | "tid" | "tids"));
            members.retain(|key, _| {
                !matches!(key.as_str(), "first_call_ns" | "wall_ns" | "ns_per_call")
            });
            members.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

fn run(kind: &str) -> Result<(Observed, u32, Value)> {
    run_with("", kind, "")
}

/// Runs a kind with more arguments, before and after the kind.
pub(crate) fn run_with(common: &str, kind: &str, more: &str) -> Result<(Observed, u32, Value)> {
    let stand_ins = StandIns::lay_out()?;
    let arguments = format!("{common} unwind --kind {kind} --count {COUNT} --calls {CALLS} {more}");
    let alone = outcome(&stand_ins, &arguments)?;
    assert!(alone.1.success(), "{kind} fails without probes, {}: {}", alone.1, alone.0);
    let _keeper = stand_ins.start("--hold --script nest=1 calls --calls 0")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    observed.wait_for(&stand_ins, "libcuda.so.1")?;
    assert_eq!(outcome(&stand_ins, &arguments)?, alone, "probes change what {kind} does");
    let mut workload = stand_ins.start(&arguments)?;
    let mut line = workload.line()?;
    if kind == "exec" {
        // The new image makes itself known as well.
        ensure!(line.starts_with("exec ") && workload.line()?.starts_with("ready "), "{line}");
        line = workload.line()?;
    }
    ensure!(workload.end()?.success(), "the workload failed");
    Ok((observed, workload.pid(), serde_json::from_str(&line)?))
}

pub(crate) fn assert_sane(process: &ProcessSnapshot) {
    for call in &process.calls {
        assert!(call.durations.max.0 < sane_ns(), "{call:?}");
    }
    assert!(process.ended.is_some(), "{process:?}");
}

fn assert_calls(process: &ProcessSnapshot, launches: u64, abandoned: u64) {
    let mut seen = counted(process);
    seen.retain(|_, count| *count > 0);
    let launches = Some((op("cudaLaunchKernel"), launches)).filter(|(_, count)| *count > 0);
    assert_eq!(seen, BTreeMap::from_iter(launches), "{process:?}");
    assert_eq!(process.measures.abandoned_calls, abandoned, "{process:?}");
    assert_sane(process);
}

/// The accounts of the processes that a workload forked.
fn children(observed: &Observed, truth: &Value) -> Result<Vec<ProcessSnapshot>> {
    let children = truth["children"].as_array().context("no children")?;
    assert_eq!(children.len() as u64, COUNT);
    children
        .iter()
        .map(|child| {
            assert_eq!(child["status"].as_u64().unwrap_or(0), 0, "{child}");
            observed.process(u32::try_from(number(child, "/pid"))?)
        })
        .collect()
}

// The workload leaves calls so on x86-64 only.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_left_by_a_long_jump_is_abandoned() -> Result<()> {
    let (observed, pid, truth) = run("longjmp")?;
    assert_eq!(number(&truth, "/returned"), CALLS);
    assert_calls(&observed.process(pid)?, CALLS, COUNT);
    Ok(())
}

// The workload leaves calls so on x86-64 only.
#[cfg(target_arch = "x86_64")]
#[test]
fn what_a_free_that_was_left_did_not_free_is_live_until_it_is_freed() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    for (kind, calls) in [("longjmp", 1), ("thread-exit", 1), ("longjmp", 0)] {
        let arguments = format!("unwind --kind {kind} --op cudaFree --count 3 --calls {calls}");
        let mut workload = started(&observed, &stand_ins, &arguments)?;
        let truth = workload.result()?;
        ensure!(number(&truth, "/returned") == calls, "{truth}");
        let process = observed.process(workload.pid())?;
        let MemorySnapshot { allocated, freed } = process.memory;
        ensure!(allocated > 0 && freed == allocated * calls, "{arguments}: {process:?}");
    }
    Ok(())
}

#[test]
fn a_call_whose_thread_exits_inside_it_is_abandoned() -> Result<()> {
    let (observed, pid, truth) = run("thread-exit")?;
    assert_eq!(number(&truth, "/returned"), CALLS);
    assert_calls(&observed.process(pid)?, CALLS, COUNT);
    Ok(())
}

#[test]
fn a_program_that_replaces_itself_during_a_call_is_a_new_process_in_the_accounts() -> Result<()> {
    let (observed, pid, truth) = run("exec")?;
    assert_eq!(number(&truth, "/calls/cudaLaunchKernel"), CALLS);
    let images = observed.images(pid)?;
    let [old, new] = &images[..] else { panic!("not two images: {images:?}") };
    assert!(old.id != new.id && old.execed && !new.execed, "{images:?}");
    assert_calls(old, 0, 1);
    assert_calls(new, CALLS, 0);
    Ok(())
}

#[test]
fn a_process_killed_inside_a_call_ends_in_the_accounts_too() -> Result<()> {
    let (observed, pid, truth) = run("kill")?;
    for child in children(&observed, &truth)? {
        assert_calls(&child, 0, 1);
    }
    assert_calls(&observed.process(pid)?, CALLS, 0);
    Ok(())
}

#[test]
fn a_process_forked_beside_a_call_has_accounts_of_its_own() -> Result<()> {
    let (observed, pid, truth) = run("fork")?;
    let parent = observed.process(pid)?;
    for child in children(&observed, &truth)? {
        assert_eq!(child.parent, Some(parent.id));
        assert_calls(&child, CALLS, 0);
    }
    // The call beside which they were forked goes on until the process ends.
    assert_calls(&parent, CALLS, 1);
    Ok(())
}

#[test]
fn a_call_that_forks_is_the_parents_although_both_return_from_it() -> Result<()> {
    let (observed, pid, truth) = run("fork-inside")?;
    let parent = observed.process(pid)?;
    for child in children(&observed, &truth)? {
        assert_eq!(child.parent, Some(parent.id));
        assert_calls(&child, CALLS, 0);
    }
    assert_calls(&parent, COUNT + CALLS, 0);
    Ok(())
}

#[test]
fn a_call_made_by_a_signal_handler_inside_a_call_is_counted_with_it() -> Result<()> {
    let (observed, pid, truth) = run("signal")?;
    assert_eq!(number(&truth, "/handler_calls/cudaStreamQuery"), COUNT);
    let process = observed.process(pid)?;
    let expected = [(op("cudaLaunchKernel"), COUNT + CALLS), (op("cudaStreamQuery"), COUNT)];
    assert_eq!(counted(&process), BTreeMap::from(expected));
    assert_eq!(process.measures.abandoned_calls, 0);
    assert_sane(&process);
    Ok(())
}
