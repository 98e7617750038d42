//! Blocking in one named way.

use anyhow::Result;
use gpucause_fake_cuda::{block, clock};
use serde_json::json;

use super::latency::warm_up;
use super::{Setup, join, result, timed};
use crate::cli::{Block, Common};
use crate::process::thread_id;
use crate::quantiles;
use crate::session::Threads;
use crate::thread_stats::{RunQueue, ThreadStats};

pub(crate) fn run(common: &Common, options: &Block) -> Result<()> {
    let setup = Setup::new(common, &options.op)?;
    block::set_dir(options.dir.clone());
    if !options.between_calls {
        setup.libraries.set_in("dir", &options.op, &options.dir.to_string_lossy())?;
    }
    let head = join(
        result("block", &setup.libraries),
        json!({
            "kind": options.kind.name(),
            "where": if options.between_calls { "between_calls" } else { "inside_call" },
            "op": options.op,
            "each_ns": options.each,
        }),
    );
    let (op, way, each) = (options.op.clone(), options.kind, options.each);
    let (count, between) = (options.count, options.between_calls);
    let kernels = u64::from(common.kernels);
    let threads = Threads::run(common, 1, move |barrier| {
        let mut caller = setup.caller();
        if between {
            block::prepare(way)?;
        } else {
            setup.libraries.set_thread(&op, &format!("{}=0ns", way.name()))?;
        }
        // Before the first call: to make it may block.
        let queue = RunQueue::of_this_thread()?;
        barrier.wait();
        warm_up(&mut caller, kernels);
        if !between {
            setup.libraries.set_thread(&op, &format!("{}={each}ns", way.name()))?;
        }
        let (mut blocks, mut off_cpu_ns) = (Vec::new(), 0);
        let start = ThreadStats::now()?;
        for _ in 0..count {
            let before = queue.now()?;
            if between {
                let start = clock::monotonic_ns();
                block::block(way, each)?;
                blocks.push(clock::monotonic_ns() - start);
            } else {
                blocks.push(timed(&mut caller));
            }
            off_cpu_ns += queue.now()?.off_cpu_since(&before);
            if between {
                caller.step();
            }
        }
        let thread = ThreadStats::now()?.since(&start);
        Ok(json!({
            "tid": thread_id(),
            "calls": caller.truth()["calls"],
            "blocks": quantiles::of(&blocks),
            "blocked_offcpu_ns": off_cpu_ns,
            "thread": thread,
        }))
    })?;
    let report = threads.results()?.into_iter().fold(head, join);
    threads.finish(common, &report)
}
