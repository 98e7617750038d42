//! Child processes that make no calls, as data-loader workers are: children of the process that does, or of a server between them.

use std::io::{BufRead as _, BufReader, Write as _, pipe};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Setup, join, result};
use crate::cli::{Common, Workers};
use crate::process::{end_with_parent, fork, is_there, lead_session, thread_id, wait_for};
use crate::session;

const CALLS: &str = "cudaLaunchKernel";

pub(crate) fn run(common: &Common, options: &Workers) -> Result<()> {
    if !options.session {
        return work(common, options);
    }
    let leader = fork(|| {
        end_with_parent();
        lead_session()?;
        work(common, options)
    })?;
    wait_for(leader).map(drop)
}

fn work(common: &Common, options: &Workers) -> Result<()> {
    let early = if options.late { Value::Null } else { start(common, options)? };
    let setup = Setup::new(common, CALLS)?;
    let mut caller = setup.caller();
    session::ready(common, &[thread_id()], &early)?;
    caller.step();
    let family = if options.late { start(common, options)? } else { early };
    let head = result("workers", &setup.libraries);
    session::finish(common, &join(head, family))
}

/// Starts the children.
fn start(common: &Common, options: &Workers) -> Result<Value> {
    let caller = std::process::id();
    if !options.server {
        return Ok(json!({ "children": start_children(options.count, caller)? }));
    }
    let (reader, mut writer) = pipe()?;
    let server = fork(|| {
        for pid in start_children(options.count, caller)? {
            writeln!(writer, "{pid}")?;
        }
        if options.calls {
            Setup::new(common, CALLS)?.caller().step();
        }
        if !options.orphans {
            rest(caller);
        }
        Ok(())
    })?;
    drop(writer);
    if options.orphans {
        wait_for(server)?;
    }
    // The children keep the other end.
    let kept = options.pipe.then(|| reader.try_clone()).transpose()?;
    let lines = BufReader::new(reader).lines().take(options.count);
    let pid = |line: std::io::Result<String>| line?.parse::<u32>().context("no PID");
    let children = lines.map(pid).collect::<Result<Vec<_>>>()?;
    // Open until the process ends.
    std::mem::forget(kept);
    Ok(json!({ "server": server, "children": children }))
}

fn start_children(count: usize, caller: u32) -> Result<Vec<u32>> {
    let child = || {
        fork(|| {
            rest(caller);
            Ok(())
        })
    };
    (0..count).map(|_| child()).collect()
}

/// Does little until this process has ended.
fn rest(caller: u32) {
    while is_there(caller) {
        std::thread::sleep(Duration::from_millis(5));
    }
}
