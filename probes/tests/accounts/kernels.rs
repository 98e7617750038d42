//! Launches by kernel function, the names of handles, and the times of chosen kernels.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::ProcId;
use gpucause_abi::snapshot::{HandleName, ProcessSnapshot};
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload};

/// Probes on runtime and driver before the process that is observed maps them, so that nothing of it is missed. The
/// process that is returned keeps them.
fn attached(stand_ins: &StandIns) -> Result<(Observed, Workload)> {
    let keeper =
        stand_ins.start("--wait calls --calls 1 --mix cudaLaunchKernel=1,cuLaunchKernel=1")?;
    let observed = Observed::start_own(Options::default())?;
    observed.wait_for(stand_ins, "libcudart.so.12")?;
    observed.wait_for(stand_ins, "libcuda.so.1")?;
    Ok((observed, keeper))
}

fn launches(result: &Value, key: &str) -> BTreeMap<String, u64> {
    let kernels = result[key].as_object().into_iter().flatten();
    kernels.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
}

/// Launches of a process by the names that its handles were asked for by.
fn by_reported_name(
    observed: &Observed,
    process: &ProcessSnapshot,
) -> Result<BTreeMap<String, u64>> {
    let mut named = BTreeMap::new();
    for &(handle, launches) in &process.kernels {
        let mut name = observed.handle_name(process.id, handle)?;
        if let Some(HandleName::SameAs(other)) = name {
            name = observed.handle_name(process.id, other)?;
        }
        let Some(HandleName::Text(text)) = name else { continue };
        *named.entry(String::from_utf8(text.into_vec())?).or_default() += launches;
    }
    Ok(named)
}

#[test]
fn handles_have_the_names_that_they_were_asked_for_by() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (observed, _keeper) = attached(&stand_ins)?;
    for how in ["module", "library", "kernel"] {
        let mut workload = stand_ins.start(&format!(
            "--hold --kernels 12 --handles {how} calls --threads 2 --calls 600 --mix cuLaunchKernel"
        ))?;
        let truth = workload.result()?;
        let process = observed.process(workload.pid())?;
        let expected = launches(&truth, "driver_kernels");
        assert_eq!(by_reported_name(&observed, &process)?, expected, "{how}");
        ensure!(workload.end()?.success(), "the workload failed");
        observed.remove(&[process.id].into())?;
        assert_eq!(observed.handle_name(process.id, process.kernels[0].0)?, None, "{how}");
    }
    assert_eq!(observed.usage("kernel_names")?.entries, 0);
    Ok(())
}

#[test]
fn a_handle_for_a_function_of_the_host_stands_for_that_function() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (observed, _keeper) = attached(&stand_ins)?;
    let mix = "cudaLaunchKernel=1,cuLaunchKernel=1";
    let mut workload = stand_ins
        .start(&format!("--hold --kernels 3 --handles symbol calls --calls 600 --mix {mix}"))?;
    workload.result()?;
    let process = observed.process(workload.pid())?;
    let mut own = 0;
    for &(handle, launches) in &process.kernels {
        assert_eq!(launches, 100);
        match observed.handle_name(process.id, handle)? {
            Some(HandleName::SameAs(function)) => {
                assert!(process.kernels.iter().any(|&(known, _)| known == function));
            }
            None => own += 1,
            name => panic!("{handle:#x} is {name:?}"),
        }
    }
    assert_eq!((process.kernels.len(), own), (6, 3));
    Ok(())
}

#[test]
fn a_process_with_more_kernels_than_fit_loses_names_and_no_launch() -> Result<()> {
    const KERNELS: usize = 5000;
    let stand_ins = StandIns::lay_out()?;
    let (observed, _keeper) = attached(&stand_ins)?;
    let mut workload = stand_ins.start(&format!(
        "--hold --kernels {KERNELS} calls --threads 2 --calls 20000 --mix cudaLaunchKernel=1,cuLaunchKernel=1"
    ))?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!(process.kernel_launches(), 40_000);
    assert!(process.kernels.len() <= 4096 && process.measures.other_launches > 0, "{process:?}");
    assert_eq!(observed.usage("kernels")?.refused, process.measures.other_launches);
    let names = observed.usage("kernel_names")?;
    assert_eq!((names.entries, names.refused), (2048, KERNELS as u64 - 2048));
    let expected = launches(&truth, "driver_kernels");
    for (name, count) in by_reported_name(&observed, &process)? {
        assert_eq!(expected.get(&name), Some(&count), "{name}");
    }
    Ok(())
}

fn durations(process: &ProcessSnapshot, function: u64) -> Option<u64> {
    let times = process.launch_times.iter().find(|(timed, _)| *timed == function);
    times.map(|(_, durations)| durations.count())
}

fn launches_of(process: &ProcessSnapshot, function: u64) -> Result<u64> {
    let kernel = process.kernels.iter().find(|(known, _)| *known == function);
    Ok(kernel.context("the kernel is known")?.1)
}

#[test]
fn launches_of_a_chosen_kernel_are_timed_from_then_on() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (observed, _keeper) = attached(&stand_ins)?;
    for round in 0..2 {
        let mut workload = stand_ins.start(
            "--hold --kernels 2 --script cudaLaunchKernel:spin=50us \
             rate --per-second 2000 --seconds 2",
        )?;
        let pid = workload.pid();
        let before = until(
            || Ok(observed.images(pid)?.pop().filter(|process| process.kernel_launches() > 100)),
            || "its launches were not seen".into(),
        )?;
        let function = before.kernels[0].0;
        assert!(observed.time_kernel(before.id, function)?);
        assert!(observed.time_kernel(before.id, function)?, "its times start again");
        let after = observed.process(pid)?;
        workload.result()?;
        let end = observed.process(pid)?;
        let timed = durations(&end, function).context("it is timed")?;
        let last = launches_of(&end, function)?;
        let since = |process| Ok::<_, anyhow::Error>(last - launches_of(process, function)?);
        // One launch may have begun before it was chosen and return after.
        let (least, most) = (since(&after)?.saturating_sub(1), since(&before)?);
        assert!(least > 500, "too few launches to tell: {least}");
        assert!((least..=most).contains(&timed), "{timed} timed, {least} to {most} made");
        let (_, times) = &end.launch_times[0];
        assert!(times.quantile(0.5) >= Some(gpucause_abi::Nanos(50_000)), "{times:?}");
        assert_eq!(end.launch_times.len(), 1, "the other kernel is not timed");
        assert_eq!(observed.usage("kernel_hists")?.entries, 1, "round {round}");
        ensure!(workload.end()?.success(), "the workload failed");
        observed.remove(&[end.id].into())?;
        assert_eq!(observed.usage("kernel_hists")?.entries, 0);
    }
    Ok(())
}

#[test]
fn a_kernel_that_nobody_launched_cannot_be_timed() -> Result<()> {
    let observed = Observed::start_own(Options::default())?;
    assert!(!observed.time_kernel(ProcId(u32::MAX), 1)?);
    assert_eq!(observed.usage("kernel_hists")?.entries, 0);
    Ok(())
}

#[test]
fn a_launch_by_the_driver_for_the_runtime_is_one_launch() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let (observed, _keeper) = attached(&stand_ins)?;
    let mut workload = stand_ins.start("--hold --kernels 4 --script nest=1 calls --calls 20000")?;
    workload.result()?;
    let process = observed.process(workload.pid())?;
    assert_eq!((process.kernel_launches(), process.kernels.len()), (20_000, 4));
    let cold = process.calls.iter().filter(|call| call.cold).map(|call| call.durations.count());
    assert_eq!(cold.sum::<u64>(), 4);
    Ok(())
}
