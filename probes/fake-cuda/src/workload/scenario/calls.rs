//! Exact numbers of calls, as fast as possible.

use anyhow::Result;
use gpucause_fake_cuda::clock;
use serde_json::{Value, json};

use super::{Setup, join, result};
use crate::caller::{Caller, sum};
use crate::cli::{Calls, Common};
use crate::process::thread_id;
use crate::session::Threads;

pub(crate) fn run(common: &Common, options: &Calls) -> Result<()> {
    let mix = options.mix.mix.as_deref().unwrap_or(&options.mix.op);
    let setup = Setup::new(common, mix)?;
    let head = result("calls", &setup.libraries);
    let setup_calls = Caller::setup_calls(&setup.launchable);
    let (calls, free_all) = (options.calls, options.free_all);
    let threads = Threads::run(common, options.threads, move |barrier| {
        let mut caller = setup.caller();
        barrier.wait();
        let start = clock::monotonic_ns();
        for _ in 0..calls {
            caller.step();
        }
        if free_all {
            caller.free_all();
        }
        let wall = clock::monotonic_ns() - start;
        Ok(json!({
            "tid": thread_id(),
            "name": format!("launcher-{}", barrier.index),
            "first_call_ns": start,
            "wall_ns": wall,
            "ns_per_call": wall / calls.max(1),
            "truth": caller.truth(),
        }))
    })?;
    let of_threads = threads.results()?;
    let report = join(join(head, totals(&of_threads)), json!({ "setup_calls": setup_calls }));
    threads.finish(common, &report)
}

/// The sum over the threads, with each thread's own calls.
pub(super) fn totals(threads: &[Value]) -> Value {
    let truths: Vec<Value> = threads.iter().map(|thread| thread["truth"].clone()).collect();
    let mut total = sum(&truths);
    let number = |key: &str| total[key].as_u64().unwrap_or(0);
    let live = number("allocated_bytes") - number("freed_bytes");
    total["live_bytes"] = json!(live);
    let distinct = |key: &str| total[key].as_object().map_or(0, serde_json::Map::len);
    total["cold_launches"] = json!(distinct("kernels") + distinct("driver_kernels"));
    let threads: Vec<Value> = threads
        .iter()
        .map(|thread| {
            let mut thread = thread.clone();
            thread["calls"] = thread["truth"]["calls"].take();
            if let Value::Object(thread) = &mut thread {
                thread.remove("truth");
            }
            thread
        })
        .collect();
    total["threads"] = json!(threads);
    total
}
