//! Which kernel programs run on this kernel.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use gpucause_probes::feature::AttachMode;
use gpucause_probes::recorder::RingSize;
use gpucause_probes::verdict::ProgramVerdict;
use gpucause_probes::{Options, feature};

use crate::observe::Observed;

/// Programs that can be done without, by the tracepoint that each needs.
const OPTIONAL: [(&str, &str); 13] = [
    ("block_start", "block_io_start"),
    ("block_complete", "block_rq_complete"),
    ("lock_begin", "contention_begin"),
    ("lock_end", "contention_end"),
    ("page_alloc", "mm_page_alloc"),
    ("reclaim_begin", "mm_vmscan_direct_reclaim_begin"),
    ("reclaim_end", "mm_vmscan_direct_reclaim_end"),
    ("memcg_begin", "mm_vmscan_memcg_reclaim_begin"),
    ("memcg_end", "mm_vmscan_memcg_reclaim_end"),
    ("oom_victim", "mark_victim"),
    ("tcp_state", "inet_sock_set_state"),
    ("tcp_receive", "tcp_rcv_space_adjust"),
    ("tcp_retransmit", "tcp_retransmit_skb"),
];

#[test]
fn a_program_runs_where_the_kernel_has_its_tracepoint_and_is_unsupported_where_not() -> Result<()> {
    let types = std::fs::read(feature::BTF_PATH)?;
    let names: HashSet<&[u8]> = types
        .split(|&byte| byte == 0)
        .filter_map(|name| name.strip_prefix(b"btf_trace_"))
        .collect();
    let has = |tracepoint: &str| names.contains(tracepoint.as_bytes());
    let observed = Observed::start(Options::default())?;
    let programs = observed.programs();
    let verdict = |program: &str| programs.iter().find(|status| status.program == program);
    for (program, tracepoint) in OPTIONAL {
        let verdict = &verdict(program).with_context(|| format!("no program {program}"))?.verdict;
        match verdict {
            ProgramVerdict::Attached => ensure!(has(tracepoint), "{program} runs at nothing"),
            ProgramVerdict::Unsupported(reason) => {
                ensure!(!has(tracepoint) && reason.contains(tracepoint), "{program}: {reason}");
            }
            other => anyhow::bail!("{program}: {other:?}"),
        }
    }
    ensure!(verdict("block_issue").is_none() == has("block_io_start"), "{programs:?}");
    Ok(())
}

/// Returns the kernel's sum of verified instructions of all loaded programs of this process.
fn verified_instructions() -> Result<u64> {
    let mut sum = 0;
    for descriptor in std::fs::read_dir("/proc/self/fdinfo")? {
        // One that was closed meanwhile.
        let Ok(text) = std::fs::read_to_string(descriptor?.path()) else { continue };
        let steps = text.lines().find_map(|line| line.strip_prefix("verified_insns:"));
        sum += steps.map_or(Ok(0), |steps| steps.trim().parse::<u64>())?;
    }
    Ok(sum)
}

#[test]
fn the_kernel_verifies_all_programs_in_less_than_72_000_steps_with_and_without_the_recorder()
-> Result<()> {
    for mode in AttachMode::ALL {
        for recorder in [None, Some(RingSize::default())] {
            let options = Options { mode: Some(mode), recorder, ..Options::default() };
            let _observed = match Observed::start(options) {
                Ok(observed) => observed,
                Err(error) if format!("{error:#}").contains("has no uprobe") => continue,
                Err(error) => return Err(error),
            };
            let steps = verified_instructions()?;
            let case = format!("{}, recorder: {}", mode.label(), recorder.is_some());
            println!("{case}: {steps}");
            ensure!((10_000..72_000).contains(&steps), "{case}: {steps}");
        }
    }
    Ok(())
}

#[test]
fn a_daemon_that_observes_the_host_is_known_to_another_one() -> Result<()> {
    let observed = Observed::start_own(Options::default())?;
    ensure!(gpucause_probes::is_observed_by_another(), "{:?}", observed.programs());
    Ok(())
}
