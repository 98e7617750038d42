//! CUDA graphs: every step counts, and its time is in the phase `graph`.

use anyhow::Result;
use gpucause_abi::op::{Class, OPS};
use gpucause_abi::state::{Phase, State};
use gpucause_probes::Options;

use crate::observe::{Observed, counted};
use crate::workload::{StandIns, op, true_calls};

#[test]
fn capturing_building_and_launching_a_graph_counts_as_graph() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let _keeper = stand_ins.start("--hold calls --calls 0 --mix cudaGraphLaunch,cuGraphLaunch")?;
    let observed = Observed::start(Options::default())?;
    for library in ["libcudart.so.12", "libcuda.so.1"] {
        observed.wait_for(&stand_ins, library)?;
    }
    let ops: Vec<&str> =
        OPS.iter().filter(|op| op.class == Class::Graph).map(|op| op.name).collect();
    assert!(ops.len() >= 18, "{ops:?}");
    let mut workload = stand_ins.start(&format!(
        "--hold --script cudaGraphLaunch:spin=300us;cudaGraphInstantiate:sleep=2ms;cuGraphLaunch:spin=100us \
         calls --calls 2000 --mix {}",
        ops.join(",")
    ))?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!(counted(&process), true_calls(&truth));
    let durations = |name: &str| process.call_durations(op(name));
    let launches = ["cudaGraphLaunch", "cuGraphLaunch"].map(|name| durations(name).count());
    // Between launches of graphs the GPU may starve, as between those of kernels.
    assert_eq!(process.launch_gap.count(), launches.iter().sum::<u64>() - 1);
    assert!(durations("cudaGraphLaunch").sum.0 >= launches[0] * 300_000);
    let all: u64 = ops.iter().map(|name| durations(name).sum.0).sum();
    let time = &process.dispatcher_time;
    let phase: u64 = State::all().map(|state| time.at(Phase::Graph, state).0).sum();
    assert!(phase.abs_diff(all) * 50 <= all, "{phase} ns in the phase, {all} ns of calls");
    let elsewhere: u64 = Phase::ALL
        .iter()
        .filter(|phase| !matches!(phase, Phase::Graph | Phase::Host))
        .flat_map(|&phase| State::all().map(move |state| time.at(phase, state).0))
        .sum();
    assert_eq!(elsewhere, 0, "{time:?}");
    Ok(())
}
