//! Child processes that are older than their parent's first call.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::state::Role;
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::{Observed, until};
use crate::workload::StandIns;

const SOON: Duration = Duration::from_secs(2);

#[test]
fn children_forked_before_the_first_call_are_workers_of_their_parent() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["adopt_workers"])?;
    let mut workload = stand_ins.start("workers --count 2 --wait --hold")?;
    observed.wait_for_runtime(&stand_ins)?;
    assert_eq!(observed.images(workload.pid())?.len(), 0);
    workload.go()?;
    let truth = workload.result()?;
    let called = Instant::now();
    let children: Vec<u32> = serde_json::from_value(truth["children"].clone())?;
    let parent = observed.process(workload.pid())?;
    for &child in &children {
        let process = until(
            || Ok(observed.process(child).ok().filter(|child| !child.offcpu.is_empty())),
            || format!("no account of child {child}"),
        )?;
        ensure!(process.parent == Some(parent.id), "{:?} is the parent", process.parent);
        ensure!(!process.dispatches, "it makes no calls");
        let roles: Vec<Role> = process.offcpu.iter().map(|&(role, ..)| role).collect();
        ensure!(roles.iter().all(|&role| role == Role::Worker), "{roles:?}");
    }
    ensure!(called.elapsed() < SOON, "known after {:?}", called.elapsed());
    ensure!(children.len() == 2 && truth["calls"] == Value::Null, "{truth}");
    ensure!(workload.end()?.success(), "the parent failed");
    for &child in &children {
        until(
            || Ok(observed.process(child)?.ended),
            || format!("child {child} is still said to live"),
        )
        .context("children end with their parent")?;
    }
    Ok(())
}
