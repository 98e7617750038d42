//! Short-lived threads that make a few calls each.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, bail};
use gpucause_fake_cuda::clock;
use serde_json::{Value, json};

use super::{Setup, join, result};
use crate::caller::sum;
use crate::cli::{Churn, Common};
use crate::process::thread_id;
use crate::session;

/// Calls and wall time from the first of them.
type Truth = (Value, u64);

pub(crate) fn run(common: &Common, options: &Churn) -> Result<()> {
    let mix = options.mix.mix.as_deref().unwrap_or(&options.mix.op);
    let setup = Arc::new(Setup::new(common, mix)?);
    session::ready(common, &[thread_id()], &json!({}))?;
    let mut running: Vec<JoinHandle<Truth>> = Vec::new();
    let (mut calls, mut wall) = (json!({}), 0);
    let mut end = |thread: JoinHandle<Truth>| -> Result<()> {
        let Ok((own_calls, own_wall)) = thread.join() else { bail!("a thread panicked") };
        calls = sum(&[calls.take(), own_calls]);
        wall += own_wall;
        Ok(())
    };
    for number in 0..options.threads {
        if running.len() >= options.parallel.max(1) {
            end(running.remove(0))?;
        }
        let (setup, count) = (Arc::clone(&setup), options.calls);
        running.push(Builder::new().name(format!("brief-{number}")).spawn(move || {
            let mut caller = setup.caller();
            let start = clock::monotonic_ns();
            (0..count).for_each(|_| {
                caller.step();
            });
            let wall = clock::monotonic_ns() - start;
            (caller.truth()["calls"].take(), wall)
        })?);
    }
    running.into_iter().try_for_each(&mut end)?;
    let truth = json!({ "threads": options.threads, "calls": calls, "wall_ns": wall });
    session::finish(common, &join(result("churn", &setup.libraries), truth))
}
