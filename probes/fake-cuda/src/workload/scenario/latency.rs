//! One op with known delays, each call timed.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{Setup, join, result, timed};
use crate::caller::Caller;
use crate::cli::{Common, Latency};
use crate::process::thread_id;
use crate::quantiles;
use crate::session::Threads;

pub(crate) fn run(common: &Common, options: &Latency) -> Result<()> {
    let repeat = match options.repeat.as_slice() {
        [all] => vec![*all; options.delays.len()],
        each if each.len() == options.delays.len() => each.to_vec(),
        _ => bail!("--repeat: write one number, or as many as --delays has"),
    };
    let plan: Vec<(u64, u64)> = options.delays.iter().copied().zip(repeat).collect();
    let setup = Setup::new(common, &options.op)?;
    let head = result("latency", &setup.libraries);
    let (op, way, list) = (options.op.clone(), options.way, options.list);
    let kernels = u64::from(common.kernels);
    let threads = Threads::run(common, 1, move |barrier| {
        let mut caller = setup.caller();
        setup.libraries.set_thread(&op, &format!("{}=0ns", way.name()))?;
        barrier.wait();
        warm_up(&mut caller, kernels);
        let mut all = Vec::new();
        let mut delays = Vec::new();
        for &(delay, count) in &plan {
            setup.libraries.set_thread(&op, &format!("{}={delay}ns", way.name()))?;
            let durations: Vec<u64> = (0..count).map(|_| timed(&mut caller)).collect();
            delays.push(measured(&durations, list, json!({ "delay_ns": delay })));
            all.extend(durations);
        }
        Ok(json!({
            "op": op,
            "way": way.name(),
            "tid": thread_id(),
            "calls": caller.truth()["calls"],
            "delays": delays,
            "all": quantiles::of(&all),
        }))
    })?;
    let report = threads.results()?.into_iter().fold(head, join);
    threads.finish(common, &report)
}

fn measured(durations: &[u64], list: bool, head: Value) -> Value {
    let mut value = join(head, quantiles::of(durations));
    if list {
        value["list_ns"] = json!(durations);
    }
    value
}

/// Launches each kernel function once, so that none of the calls to come is a first launch.
pub(super) fn warm_up(caller: &mut Caller, kernels: u64) {
    for _ in 0..kernels {
        caller.step();
    }
}
