//! Calls at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use gpucause_fake_cuda::clock;
use serde_json::json;

use super::calls::totals;
use super::{Setup, join, ns, result};
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
    let setup = Setup::new(common, mix)?;
    let head = result("rate", &setup.libraries);
    let length = ns(options.seconds);
    let interval = 1_000_000_000 / share;
    let stopped = Arc::new(AtomicBool::new(false));
    let is_stopped = Arc::clone(&stopped);
    let threads = Threads::run(common, options.threads, move |barrier| {
        let mut caller = setup.caller();
        barrier.wait();
        let start = clock::monotonic_ns();
        let mut made = 0;
        loop {
            let passed = clock::monotonic_ns() - start;
            if passed >= length || is_stopped.load(Ordering::Relaxed) {
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
            "name": format!("launcher-{}", barrier.index),
            "wall_ns": wall,
            "truth": caller.truth(),
        }))
    })?;
    if options.stoppable {
        std::thread::spawn(move || {
            // The end of the input is a stop, too.
            let _ = std::io::stdin().read_line(&mut String::new());
            stopped.store(true, Ordering::Relaxed);
        });
    }
    let report = join(head, totals(&threads.results()?));
    threads.finish(common, &report)
}
