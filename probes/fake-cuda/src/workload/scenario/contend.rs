//! A dispatcher thread that shares its CPU with busy processes.

use anyhow::Result;
use gpucause_fake_cuda::clock;
use serde_json::json;

use super::latency::warm_up;
use super::{Setup, join, ns, result, timed};
use crate::cli::{Common, Contend};
use crate::process::{Burners, pin, run_ns, thread_id};
use crate::quantiles;
use crate::session::Threads;
use crate::thread_stats::ThreadStats;

pub(crate) fn run(common: &Common, options: &Contend) -> Result<()> {
    let setup = Setup::new(common, &options.op)?;
    let burners = Burners::start(options.burners, options.cpu, &options.burner_name, 0)?;
    let head =
        join(result("contend", &setup.libraries), json!({ "op": options.op, "cpu": options.cpu }));
    let rivals = burners.pids();
    let (op, cpu, spin, length) =
        (options.op.clone(), options.cpu, options.spin, ns(options.seconds));
    let kernels = u64::from(common.kernels);
    let threads = Threads::run(common, 1, move |barrier| {
        pin(cpu)?;
        let mut caller = setup.caller();
        let scripted = setup.libraries.is_scripted(&op)?;
        if scripted {
            setup.libraries.set_thread(&op, &format!("spin={spin}ns"))?;
        }
        barrier.wait();
        warm_up(&mut caller, kernels);
        let mut durations = Vec::with_capacity(1 << 20);
        let (start, burnt) = (ThreadStats::now()?, run_ns(&rivals)?);
        let end = clock::monotonic_ns() + length;
        while clock::monotonic_ns() < end {
            durations.push(timed(&mut caller));
        }
        let thread = ThreadStats::now()?.since(&start);
        let burnt = run_ns(&rivals)? - burnt;
        Ok(json!({
            "tid": thread_id(),
            "scripted": scripted,
            "spin_ns": spin,
            "calls": caller.truth()["calls"],
            "burners_run_ns": burnt,
            "thread": thread,
            "latency": quantiles::of(&durations),
        }))
    })?;
    let report = threads.results()?.into_iter().fold(head, join);
    drop(burners);
    threads.finish(common, &report)
}
