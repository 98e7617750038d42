//! A call that has not returned yet: its age, and that what its thread waits for is reported while it waits.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::DispatcherSnapshot;
use gpucause_abi::state::{Phase, Reason, State};
use gpucause_probes::Options;

use crate::observe::{Observed, counted, until};
use crate::workload::{StandIns, op};

/// How long one call is watched, of the four seconds that it takes.
const WATCHED: Duration = Duration::from_secs(3);
/// Between the clocks of a snapshot and of the test.
const APART: u64 = 100_000_000;

fn in_call(dispatcher: &DispatcherSnapshot, op: OpId) -> Option<u64> {
    dispatcher.inflight.filter(|(inflight, _)| *inflight == op).map(|(_, age)| age.0)
}

#[test]
fn a_thread_blocked_for_seconds_in_a_call_is_seen_while_it_is() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let sync = op("cudaStreamSynchronize");
    let mut workload = stand_ins
        .start("--wait --hold block --kind lock --each 4s --count 1 --op cudaStreamSynchronize")?;
    observed.wait_for_runtime(&stand_ins)?;
    workload.go()?;
    let observe = || -> Result<Option<(Instant, DispatcherSnapshot)>> {
        let at = Instant::now();
        let Ok(process) = observed.process(workload.pid()) else { return Ok(None) };
        Ok(process.dispatchers.into_iter().next().map(|dispatcher| (at, dispatcher)))
    };
    let blocked = |at: &DispatcherSnapshot| at.time.at(Phase::Sync, State::Off(Reason::Lock)).0;
    let inside = || Ok(observe()?.filter(|(_, seen)| in_call(seen, sync) > Some(APART)));
    let (begin, first) = until(inside, || "no call is in flight".into())?;
    let calls = counted(&observed.process(workload.pid())?)[&sync];
    while begin.elapsed() < WATCHED {
        let (at, seen) = observe()?.context("the thread is gone")?;
        let passed = u64::try_from((at - begin).as_nanos())?;
        let age = in_call(&seen, sync).context("the call is over")?;
        let grown = age - in_call(&first, sync).context("no call")?;
        ensure!(grown.abs_diff(passed) < APART, "{grown} ns older after {passed} ns");
        let reported = blocked(&seen) - blocked(&first);
        ensure!(reported.abs_diff(passed) < APART, "{reported} ns blocked after {passed} ns");
        let (sum, wall) = (seen.time.total().0, seen.wall.0);
        ensure!(sum.abs_diff(wall) * 200 <= wall, "{sum} ns in all cells, {wall} ns of wall time");
    }
    workload.result()?;
    let process = observed.process(workload.pid())?;
    ensure!(counted(&process)[&sync] == calls + 1, "the call that was in flight is not counted");
    ensure!(process.dispatchers.iter().all(|thread| thread.inflight.is_none()), "{process:?}");
    Ok(())
}
