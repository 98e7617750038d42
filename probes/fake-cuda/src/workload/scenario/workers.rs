//! Child processes that are older than the first call, as data-loader workers often are.

use anyhow::Result;
use serde_json::json;

use super::{Setup, join, result};
use crate::cli::{Common, Workers};
use crate::process::{end_with_parent, fork, thread_id};
use crate::session;

pub(crate) fn run(common: &Common, options: &Workers) -> Result<()> {
    let mut children = Vec::new();
    for _ in 0..options.count {
        children.push(fork(|| {
            end_with_parent();
            loop {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        })?);
    }
    let setup = Setup::new(common, "cudaLaunchKernel")?;
    let mut caller = setup.caller();
    session::ready(common, &[thread_id()], &json!({ "children": children }))?;
    caller.step();
    let head = result("workers", &setup.libraries);
    session::finish(common, &join(head, json!({ "children": children })))
}
