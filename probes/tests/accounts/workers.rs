//! Processes that work for a dispatcher: its children and theirs, whenever they were forked.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::Role;
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number};

const SOON: Duration = Duration::from_secs(2);

/// Stand-in processes that have made their calls.
struct Family {
    observed: Observed,
    workload: Workload,
    truth: Value,
    called: Instant,
}

impl Family {
    fn of(options: &str) -> Result<Self> {
        let stand_ins = StandIns::lay_out()?;
        let observed = Observed::start(Options::default())?;
        observed.expect_programs(&["adopt_workers"])?;
        let mut workload = stand_ins.start(&format!("workers --wait --hold {options}"))?;
        observed.wait_for_runtime(&stand_ins)?;
        ensure!(observed.images(workload.pid())?.is_empty(), "it made no call yet");
        workload.go()?;
        let truth = workload.result()?;
        Ok(Self { observed, workload, truth, called: Instant::now() })
    }

    fn children(&self) -> Result<Vec<u32>> {
        Ok(serde_json::from_value(self.truth["children"].clone())?)
    }

    /// The process with the PID that the result has under this name.
    fn process(&self, name: &str) -> Result<ProcessSnapshot> {
        self.observed.process(u32::try_from(number(&self.truth, name))?)
    }

    /// Waits until the children work for this process.
    fn expect_workers_of(&self, owner: &ProcessSnapshot) -> Result<()> {
        let children = self.children()?;
        ensure!(children.len() == 2, "{}", self.truth);
        for child in children {
            let is_known =
                |own: &ProcessSnapshot| own.parent == Some(owner.id) && !own.offcpu.is_empty();
            let process = until(
                || Ok(self.observed.process(child).ok().filter(is_known)),
                || format!("child {child} is {:?}", self.observed.process(child)),
            )?;
            ensure!(!process.dispatches, "it makes no calls");
            let roles: Vec<Role> = process.offcpu.iter().map(|&(role, ..)| role).collect();
            ensure!(roles.iter().all(|&role| role == Role::Worker), "{roles:?}");
        }
        ensure!(self.called.elapsed() < SOON, "known after {:?}", self.called.elapsed());
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        ensure!(self.workload.end()?.success(), "it failed");
        for child in self.children()? {
            until(
                || Ok(self.observed.process(child)?.ended),
                || format!("child {child} is still said to live"),
            )
            .context("children end with it")?;
        }
        Ok(())
    }
}

/// Starts processes in which the dispatcher is the first, and expects that the children are its workers.
fn children_work_for_the_dispatcher(options: &str) -> Result<()> {
    let family = Family::of(options)?;
    family.expect_workers_of(&family.process("/pid")?)?;
    family.end()
}

#[test]
fn children_forked_before_the_first_call_are_workers_of_their_parent() -> Result<()> {
    children_work_for_the_dispatcher("")
}

#[test]
fn children_of_a_server_are_workers_of_the_dispatcher_above_it() -> Result<()> {
    children_work_for_the_dispatcher("--server --late")
}

#[test]
fn children_of_a_server_that_are_older_than_the_first_call_are_workers_of_the_dispatcher()
-> Result<()> {
    children_work_for_the_dispatcher("--server")
}

#[test]
fn children_of_a_server_that_has_ended_stay_workers_of_the_dispatcher() -> Result<()> {
    children_work_for_the_dispatcher("--server --orphans --late")
}

#[test]
fn orphans_that_are_older_than_the_first_call_are_workers_of_the_leader_of_their_session()
-> Result<()> {
    children_work_for_the_dispatcher("--server --orphans --session")
}

#[test]
fn orphans_that_are_older_than_the_first_call_are_workers_of_who_reads_what_they_write()
-> Result<()> {
    children_work_for_the_dispatcher("--server --orphans --pipe")
}

#[test]
fn orphans_that_nothing_binds_to_the_dispatcher_work_for_nobody() -> Result<()> {
    let family = Family::of("--server --orphans")?;
    family.process("/pid")?;
    for child in family.children()? {
        ensure!(family.observed.images(child)?.is_empty(), "child {child} is observed");
    }
    Ok(())
}

#[test]
fn children_of_a_worker_that_makes_calls_are_its_own_workers() -> Result<()> {
    let family = Family::of("--server --calls --late")?;
    let server = until(
        || Ok(family.process("/server").ok().filter(|server| server.dispatches)),
        || "the server makes no calls".to_owned(),
    )?;
    family.expect_workers_of(&server)?;
    family.end()
}
