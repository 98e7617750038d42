//! Calls on another stack than that of the thread's open call: the program does what it does without probes, which the kernel's
//! return probes would end, and launches are counted exactly.

use anyhow::{Result, ensure};
use gpucause_abi::record::SelfCounter;

use crate::observe::counted;
use crate::unwinding::{CALLS, COUNT, assert_sane, run_with};
use crate::workload::op;

/// Inside `cudaStreamSynchronize`, calls `inner` on another stack, which makes so many launches of its own.
fn assert_unharmed(kind: &str, script: &str, inner: &str, launches: u64) -> Result<()> {
    let ops = format!("--op cudaStreamSynchronize --inner {inner}");
    let (observed, pid, _) = run_with(script, kind, &ops)?;
    let process = observed.process(pid)?;
    let counts = counted(&process);
    let count = |name| counts.get(&op(name)).copied().unwrap_or(0);
    ensure!(count("cudaStreamSynchronize") == COUNT + CALLS, "{process:?}");
    ensure!(count(inner) + count("cuLaunchKernel") == 0, "{process:?}");
    ensure!(process.launches.untimed == launches, "{process:?}");
    ensure!(process.measures.abandoned_calls == 0, "{process:?}");
    // Beside this run, one that was compared with a run without probes.
    ensure!(observed.counter(SelfCounter::OtherStack)? >= 2 * COUNT);
    assert_sane(&process);
    Ok(())
}

#[test]
fn a_call_on_a_higher_stack_within_a_call_harms_nobody() -> Result<()> {
    assert_unharmed("higher-stack", "", "cudaStreamQuery", 0)
}

#[test]
fn a_call_that_is_open_on_a_lower_stack_while_an_earlier_one_returns_harms_nobody() -> Result<()> {
    assert_unharmed("lower-stack", "", "cudaStreamQuery", 0)
}

#[test]
fn a_call_of_a_signal_handler_on_a_higher_stack_of_its_own_harms_nobody() -> Result<()> {
    assert_unharmed("signal-stack", "", "cudaStreamQuery", 0)
}

#[test]
fn launches_on_another_stack_are_counted() -> Result<()> {
    for kind in ["higher-stack", "lower-stack", "signal-stack"] {
        assert_unharmed(kind, "", "cudaLaunchKernel", COUNT)?;
    }
    Ok(())
}

#[test]
fn a_launch_on_another_stack_counts_once_in_whichever_layer_it_begins() -> Result<()> {
    for kind in ["higher-stack", "signal-stack"] {
        assert_unharmed(kind, "--script nest=1", "cudaLaunchKernel", COUNT)?;
    }
    Ok(())
}
