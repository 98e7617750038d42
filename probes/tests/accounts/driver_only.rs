//! Programs that use the driver without the runtime.

use std::fs;

use anyhow::{Result, ensure};
use gpucause_abi::state::{Phase, State};
use gpucause_probes::Options;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, number, op, true_calls};

#[test]
fn a_process_without_the_runtime_is_fully_accounted() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let keeper = stand_ins.start("--driver-only --hold calls --calls 0 --op cuStreamQuery")?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", keeper.pid()))?;
    ensure!(maps.contains("libcuda.so.1") && !maps.contains("libcudart"), "{maps}");
    let observed = Observed::start(Options::default())?;
    observed.wait_for(&stand_ins, "libcuda.so.1")?;
    let mut workload = stand_ins.start(
        "--driver-only --hold --kernels 3 --script cuLaunchKernel:spin=20us calls --threads 2 --calls 3000 --mix \
         cuLaunchKernel=3,cuMemcpyHtoD=1,cuMemAlloc=1,cuMemFree=1,cuStreamSynchronize=1",
    )?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    let mut expected = true_calls(&truth);
    for (name, count) in truth["setup_calls"].as_object().into_iter().flatten() {
        expected.insert(op(name), count.as_u64().unwrap_or(0));
    }
    assert_eq!(counted(&process), expected);
    assert_eq!(process.copied.iter().sum::<u64>(), number(&truth, "/copied_bytes/h2d"));
    assert_eq!(process.memory.live(), number(&truth, "/live_bytes"));
    let launches = number(&truth, "/calls/cuLaunchKernel");
    let launched: u64 = process.kernels.iter().map(|(_, launches)| launches).sum();
    assert_eq!((process.kernels.len(), launched), (3, launches));
    let phase: u64 =
        State::all().map(|state| process.dispatcher_time.at(Phase::Launch, state).0).sum();
    assert!(phase >= launches * 20_000, "{phase} ns in {launches} launches of 20 us");
    Ok(())
}
