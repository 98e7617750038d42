//! Child processes that are older than the first call, as data-loader workers often are.

use std::io;

use anyhow::Result;
use serde_json::json;

use super::{Stage, join, result};
use crate::cli::{Common, Workers};
use crate::process::{end_with_parent, thread_id};
use crate::session;

pub(crate) fn run(common: &Common, options: &Workers) -> Result<()> {
    let mut children = Vec::new();
    for _ in 0..options.count {
        children.push(fork()?);
    }
    let stage = Stage::set(common, "cudaLaunchKernel")?;
    let mut caller = stage.caller();
    session::ready(common, &[thread_id()], &json!({ "children": children }))?;
    caller.step();
    let head = result("workers", &stage.libraries);
    session::finish(common, &join(head, json!({ "children": children })))
}

fn fork() -> Result<i32> {
    // SAFETY: no other thread exists yet, and the child ends with its parent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            end_with_parent();
            loop {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        pid => Ok(pid),
    }
}
