//! Many processes that have made calls, forked so that they share the mapped libraries: as cheap as processes can be.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};

use anyhow::{Result, ensure};
use gpucause_fake_cuda::clock;
use serde_json::json;

use crate::caller::{Caller, Launchable};
use crate::cli::{Common, Crowd};
use crate::libraries::Libraries;
use crate::operation::Pattern;
use crate::process::{end_with_parent, fork, thread_id, wait_for};
use crate::session;

/// Reports of a child: calls done, or failed.
const DONE: u8 = b'd';
const FAILED: u8 = b'f';

pub(crate) fn run(common: &Common, options: &Crowd) -> Result<()> {
    let mix = options.mix.mix.as_deref().unwrap_or(&options.mix.op);
    // Nothing is called here: children of a process that has made a call would be its workers.
    let libraries = Libraries::open(common)?;
    let pattern = Pattern::new(mix, &libraries, common)?;
    let (mut reports, report) = pipe()?;
    session::ready(common, &[thread_id()], &json!({}))?;
    let start = clock::monotonic_ns();
    let mut pids = Vec::new();
    let (mut working, mut ended) = (0, 0);
    for _ in 0..options.processes {
        if working == options.parallel.max(1) {
            until_done(&mut reports)?;
            working -= 1;
        }
        pids.push(fork(|| {
            end_with_parent();
            let lived = live(common, options, &libraries, &pattern, &report);
            if lived.is_err() {
                (&report).write_all(&[FAILED])?;
            }
            lived
        })?);
        working += 1;
        while options.end && pids.len() - ended > options.parallel.max(1) {
            wait_for(pids[ended])?;
            ended += 1;
        }
    }
    for _ in 0..working {
        until_done(&mut reports)?;
    }
    if options.end {
        pids[ended..].iter().try_for_each(|&pid| wait_for(pid).map(drop))?;
    }
    let of_each = pattern.operations.iter().map(|op| op.name).collect::<Vec<_>>();
    session::finish(
        common,
        &json!({
            "scenario": "crowd",
            "pid": std::process::id(),
            "library": libraries.runtime_path(),
            "pids": pids,
            "ops": of_each,
            "calls_each": options.calls,
            "wall_ns": clock::monotonic_ns() - start,
        }),
    )
}

/// Waits until one more child has made its calls.
fn until_done(reports: &mut PipeReader) -> Result<()> {
    let mut word = [FAILED];
    reports.read_exact(&mut word)?;
    ensure!(word == [DONE], "a process of the crowd failed");
    Ok(())
}

/// The life of one child.
fn live(
    common: &Common,
    options: &Crowd,
    libraries: &Libraries,
    pattern: &Pattern,
    mut report: &PipeWriter,
) -> Result<()> {
    let launchable = Launchable::new(pattern, libraries, common)?;
    let mut caller = Caller::new(pattern, &launchable);
    for _ in 0..options.calls {
        caller.step();
    }
    report.write_all(&[DONE])?;
    if options.end {
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}
