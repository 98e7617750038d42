//! Ingero's public traces, in `shared/ingero-dbs` beside the checkout: they are not part of it. `make test` runs these where the
//! folder is there, and says so where it is not.

use std::path::PathBuf;

use gpucause_abi::state::Reason;
use gpucause_engine::chain::{Cause, Effect};
use gpucause_ingero::Ingero;
use gpucause_trace::recording::{CallStatistics, Completeness, Recording as _};

use super::chains::assert_numbers_are_evidence;
use super::statistics::agree;

fn public(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/ingero-dbs").join(name);
    assert!(path.exists(), "{} is not there", path.display());
    path
}

fn loader() -> PathBuf {
    public("pytorch-dataloader-starvation.db")
}

fn node_01() -> PathBuf {
    public("sample-gpu-node-01.db")
}

#[test]
#[ignore = "reads Ingero's public traces beside the checkout"]
fn statistics_of_the_public_traces_are_those_of_sql() {
    assert_eq!(agree(&loader()), (8, 10));
    assert_eq!(agree(&node_01()), (0, 1));
}

#[test]
#[ignore = "reads Ingero's public traces beside the checkout"]
fn the_data_loaders_launches_are_a_sample() {
    let calls = Ingero::open(&loader()).unwrap().calls().unwrap();
    let of = |op: &str| -> &CallStatistics { calls.iter().find(|call| &*call.op == op).unwrap() };
    let launches = of("cudaLaunchKernel").durations;
    assert_eq!((launches.count, launches.sum_ns), (30, 28_029_230));
    assert_eq!((launches.p99_ns, launches.max_ns), (Some(25_799_899), 25_799_899));
    assert_eq!(launches.completeness, Completeness::Sample { stored: 16 });
    assert_eq!(of("cudaMalloc").durations.completeness, Completeness::Exact);
}

#[test]
#[ignore = "reads Ingero's public traces beside the checkout"]
fn the_waits_of_node_01_are_for_the_disk() {
    let waits = Ingero::open(&node_01()).unwrap().waits().unwrap();
    let total: u64 = waits.iter().map(|wait| wait.durations.sum_ns).sum();
    let disk = waits.iter().filter(|wait| wait.reason == Some(Reason::Io));
    let disk: u64 = disk.map(|wait| wait.durations.sum_ns).sum();
    assert!(disk * 100 >= total * 95, "{disk} of {total}");
}

#[test]
#[ignore = "reads Ingero's public traces beside the checkout"]
fn the_data_loaders_slow_launch_is_cold_and_its_slow_copies_are_large() {
    let chains = Ingero::open(&loader()).unwrap().chains().unwrap();
    for chain in &chains {
        assert_numbers_are_evidence(&chain.chain);
    }
    let find = |effect| {
        let mut of = chains.iter().filter(|chain| chain.chain.effect == effect);
        let only = of.next().map(|chain| &chain.chain).unwrap();
        assert!(of.next().is_none(), "{chains:#?}");
        only
    };
    let launches = find(Effect::LaunchTail);
    assert_eq!((launches.cause, launches.culprit.as_ref()), (Cause::ColdStart, None));
    assert_eq!(launches.evidence.get("slow_calls"), Some(1.0));
    assert_eq!(launches.evidence.get("cold_launches"), Some(1.0));
    let copies = find(Effect::CopyTail);
    assert_eq!(copies.cause, Cause::LargeCopy);
    assert_eq!(copies.evidence.get("slow_calls"), Some(9.0));
    assert_eq!(copies.evidence.get("large_copies"), Some(9.0));
    let gap = find(Effect::LaunchGap);
    assert_eq!((gap.victim.tid, gap.culprit.as_ref()), (2233, None));
    assert!(gap.evidence.get("host_gap_share").unwrap() > 0.9);
    assert!(gap.evidence.get("off_cpu_share").unwrap() < 0.025);
}

#[test]
#[ignore = "reads Ingero's public traces beside the checkout"]
fn the_chain_of_node_01_is_its_disk() {
    let chains = Ingero::open(&node_01()).unwrap().chains().unwrap();
    assert_eq!(chains.len(), 1, "{chains:#?}");
    assert_numbers_are_evidence(&chains[0].chain);
    assert_eq!((chains[0].chain.cause, chains[0].chain.victim.pid), (Cause::BlockIo, 1887));
}
