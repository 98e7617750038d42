//! Calls at a steady rate.

use anyhow::{Result, bail};
use gpucause_fake_cuda::clock;
use serde_json::json;

use super::calls::totals;
use super::{Stage, join, ns, result};
use crate::cli::{Common, Rate};
use crate::process::thread_id;
use crate::session::Threads;

/// Calls that are due within one tick are made together, so that a thread sleeps at most this often.
const TICK_NS: u64 = 1_000_000;

pub(crate) fn run(common: &Common, options: &Rate) -> Result<()> {
    let share = options.per_second / options.threads.max(1) as u64;
    if share == 0 {
        bail!("--per-second {}: less than one call a second a thread", options.per_second);
    }
    let mix = options.mix.mix.as_deref().unwrap_or(&options.mix.op);
    let stage = Stage::set(common, mix)?;
    let head = join(
        result("rate", &stage.libraries),
        json!({ "per_second": options.per_second, "seconds": options.seconds }),
    );
    let length = ns(options.seconds);
    let interval = 1_000_000_000 / share;
    let threads = Threads::run(common, options.threads, &json!({}), move |gate| {
        let mut caller = stage.caller();
        gate.pass();
        let start = clock::monotonic_ns();
        let mut made = 0;
        loop {
            let passed = clock::monotonic_ns() - start;
            if passed >= length {
                break;
            }
            let due = u64::try_from(u128::from(passed) * u128::from(share) / 1_000_000_000)?;
            while made < due {
                caller.step();
                made += 1;
            }
            clock::sleep_until(start + passed + interval.max(TICK_NS));
        }
        let wall = clock::monotonic_ns() - start;
        Ok(json!({
            "tid": thread_id(),
            "name": format!("launcher-{}", gate.index),
            "wall_ns": wall,
            "truth": caller.truth(),
        }))
    })?;
    let report = join(head, totals(&threads.results()?));
    threads.finish(common, &report)
}
