//! Threads by the thousand that make a few calls and end.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gpucause_abi::record::MAX_NAMES;
use gpucause_abi::snapshot::MapUsage;
use gpucause_probes::Options;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, number, op};

#[test]
fn ten_thousand_threads_leave_their_calls_and_time_and_nothing_else() -> Result<()> {
    const THREADS: u64 = 10_000;
    const CALLS: u64 = 5;
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut bystander = stand_ins.start("--hold calls --calls 10")?;
    observed.wait_for_runtime(&stand_ins)?;
    bystander.result()?;
    let beside = observed.images(bystander.pid())?;
    let mut workload = stand_ins.start(&format!(
        "--hold --script cudaLaunchKernel:spin=20us churn --threads {THREADS} --calls {CALLS}"
    ))?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!(counted(&process), BTreeMap::from([(op("cudaLaunchKernel"), THREADS * CALLS)]));
    assert!(process.dispatchers.is_empty(), "threads that ended live on: {process:?}");
    assert_eq!(process.measures.abandoned_calls, 0);
    // Every thread has a name of its own.
    let others = process.waits.iter().filter(|wait| wait.on.to_text() == "other").count();
    assert!(process.waits.len() <= MAX_NAMES + others, "{} names", process.waits.len());
    assert!(others > 0, "too few threads waited for one another: {} names", process.waits.len());
    // The first of them have their own entries; all names are reported.
    let of_threads = process.waits.iter().filter(|wait| wait.tid.is_some()).count();
    assert!(of_threads > 0 && of_threads <= MAX_NAMES / 2, "{of_threads} entries of threads");
    assert!(of_threads < process.waits.len(), "all {of_threads} are of threads");
    // Ending a thread takes time that is in the account, but not in the truth.
    let (sum, wall) = (process.dispatcher_time.total().0, number(&truth, "/wall_ns"));
    assert!(sum >= wall - wall / 200, "{sum} ns in all cells, {wall} ns of calls alone");
    let of_threads: Vec<MapUsage> = observed.snapshot()?.maps;
    ensure!(workload.end()?.success(), "the workload failed");
    assert_eq!(observed.images(bystander.pid())?.len(), beside.len());
    observed.remove(&[process.id].into())?;
    for (before, after) in of_threads.iter().zip(observed.snapshot()?.maps) {
        // The ten thousand threads share these entries, or the bystander has them, or they are names of threads that others waited for.
        assert!(before.entries < 600, "{before:?}");
        assert!(after.entries <= before.entries && after.refused == 0, "{after:?}");
    }
    Ok(())
}
