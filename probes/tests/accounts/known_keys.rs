//! Maps are walked only after an entry was added. What is known of their keys must hide no entry, and keep none.

use anyhow::{Result, ensure};
use gpucause_probes::Options;

use crate::observe::{Observed, counted};
use crate::storm::ended;
use crate::workload::{StandIns, true_calls};

#[test]
fn what_is_added_between_snapshots_is_in_the_next_and_what_is_removed_is_in_none() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("idle")?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for_runtime(&stand_ins)?;
    for round in 1..=3 {
        // After the second, nothing is added until the workload starts.
        observed.snapshot()?;
        observed.snapshot()?;
        let mut workload = stand_ins
            .start("--hold calls --calls 600 --mix cudaLaunchKernel=1,cudaMalloc=1,cudaFree=1")?;
        let truth = true_calls(&workload.result()?);
        for read in ["walked", "known"] {
            let process = observed.process(workload.pid())?;
            assert_eq!(counted(&process), truth, "{read} in round {round}");
        }
        ensure!(workload.end()?.success(), "the workload failed");
        observed.remove(&ended(&observed.snapshot()?))?;
        let left = observed.snapshot()?.processes;
        assert!(left.iter().all(|process| process.tgid.0 != workload.pid()), "{left:?}");
    }
    Ok(())
}
