//! Device memory: what each family of functions takes and gives back is counted to the byte.

use anyhow::Result;
use gpucause_abi::record::{MAX_ALLOCATIONS, SelfCounter};
use gpucause_abi::snapshot::{MemorySnapshot, ProcessSnapshot};
use gpucause_probes::Options;
use serde_json::Value;

use crate::observe::Observed;
use crate::workload::{StandIns, Workload, number};

/// Each family has an op that allocates, one that frees, and the bytes of one allocation in [`SHAPE`]: rows padded to 512 bytes
/// in pitched memory, elements of 8 bytes in arrays.
const FAMILIES: [(&str, &str, u64); 16] = [
    ("cudaMalloc", "cudaFree", 1000),
    ("cudaMallocManaged", "cudaFree", 1000),
    ("cudaMallocAsync", "cudaFreeAsync", 1000),
    ("cudaMallocFromPoolAsync", "cudaFreeAsync", 1000),
    ("cudaMallocPitch", "cudaFree", 1024 * 3),
    ("cudaMalloc3D", "cudaFree", 1024 * 3 * 2),
    ("cudaMallocArray", "cudaFreeArray", 1000 * 3),
    ("cudaMalloc3DArray", "cudaFreeArray", 1000 * 3 * 2),
    ("cuMemAlloc", "cuMemFree", 1000),
    ("cuMemAllocManaged", "cuMemFree", 1000),
    ("cuMemAllocAsync", "cuMemFreeAsync", 1000),
    ("cuMemAllocFromPoolAsync", "cuMemFreeAsync", 1000),
    ("cuMemAllocPitch", "cuMemFree", 1024 * 3),
    ("cuMemCreate", "cuMemRelease", 1000),
    ("cuArrayCreate", "cuArrayDestroy", 1000 * 3),
    ("cuArray3DCreate", "cuArrayDestroy", 1000 * 3 * 2),
];
const SHAPE: &str = "--alloc-bytes 1000 --alloc-rows 3 --alloc-slices 2";

/// Workloads that wait for the word, and probes on both libraries.
fn observe(stand_ins: &StandIns, arguments: &[String]) -> Result<(Vec<Workload>, Observed)> {
    let start = |arguments: &String| stand_ins.start(&format!("--wait --hold {SHAPE} {arguments}"));
    let workloads = arguments.iter().map(start).collect::<Result<Vec<_>>>()?;
    let observed = Observed::start(Options::default())?;
    observed.wait_for(stand_ins, "libcudart.so.12")?;
    if arguments.iter().any(|arguments| arguments.contains("--mix cuMem")) {
        observed.wait_for(stand_ins, "libcuda.so.1")?;
    }
    Ok((workloads, observed))
}

/// Lets a workload make its calls. Returns its truth and its account.
fn work(observed: &Observed, workload: &mut Workload) -> Result<(Value, ProcessSnapshot)> {
    workload.go()?;
    let truth = workload.result()?;
    Ok((truth, observed.process(workload.pid())?))
}

fn ended(observed: &Observed, workload: &mut Workload) -> Result<ProcessSnapshot> {
    assert!(workload.end()?.success());
    observed.process(workload.pid())
}

/// One free in three fails, and one allocation in five. 90 calls of each family: 60 allocations and 30 frees, then as many
/// frees as it takes.
#[test]
fn every_family_of_allocations_is_counted_to_the_byte_and_live_is_zero_when_all_is_freed()
-> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let arguments = FAMILIES.map(|(allocate, free, _)| {
        let script = format!("--script {allocate}:ret=2@5;{free}:ret=1@3");
        format!("{script} calls --calls 90 --free-all --mix {allocate}=2,{free}=1")
    });
    let (mut workloads, observed) = observe(&stand_ins, &arguments)?;
    for ((allocate, _, each), workload) in FAMILIES.iter().zip(&mut workloads) {
        let (truth, process) = work(&observed, workload)?;
        let bytes = (60 - 60 / 5) * each;
        assert_eq!(number(&truth, "/allocated_bytes"), bytes, "{allocate} as the workload does it");
        assert_eq!(number(&truth, "/live_bytes"), 0, "{allocate} as the workload does it");
        assert_eq!(process.memory, MemorySnapshot { allocated: bytes, freed: bytes }, "{allocate}");
    }
    Ok(())
}

#[test]
fn what_is_never_freed_is_live_until_the_process_ends() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let arguments = FAMILIES.map(|(allocate, ..)| format!("calls --calls 40 --mix {allocate}"));
    let (mut workloads, observed) = observe(&stand_ins, &arguments)?;
    for ((allocate, _, each), workload) in FAMILIES.iter().zip(&mut workloads) {
        let (_, process) = work(&observed, workload)?;
        let leaked = MemorySnapshot { allocated: 40 * each, freed: 0 };
        assert_eq!(process.memory, leaked, "{allocate}");
        assert_eq!(process.memory.live(), 40 * each, "{allocate}");
        let process = ended(&observed, workload)?;
        assert_eq!((process.memory.allocated, process.memory.live()), (40 * each, 0), "{allocate}");
    }
    Ok(())
}

#[test]
fn host_memory_and_failed_allocations_are_no_device_memory() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let mixes = [
        "calls --calls 40 --free-all --mix cudaMallocHost=2,cudaHostAlloc=1,cudaFreeHost=1",
        "calls --calls 40 --free-all --mix cuMemAllocHost=2,cuMemHostAlloc=1,cuMemFreeHost=1",
        "--script cudaMalloc:ret=2;cudaMallocArray:ret=2;cudaMalloc3D:ret=2 calls --calls 40 \
         --mix cudaMalloc=1,cudaMallocArray=1,cudaMalloc3D=1",
    ]
    .map(String::from);
    let (mut workloads, observed) = observe(&stand_ins, &mixes)?;
    for (mix, workload) in mixes.iter().zip(&mut workloads) {
        let (_, process) = work(&observed, workload)?;
        assert_eq!(process.memory, MemorySnapshot::default(), "{mix}");
    }
    Ok(())
}

/// It is unknown what a reset or the end of a context frees, as it concerns one device only.
#[test]
fn memory_that_went_with_its_device_counts_as_freed_when_its_address_is_given_out_again()
-> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let mix = "calls --calls 50 --mix cudaMalloc=4,cudaDeviceReset=1".into();
    let (mut workloads, observed) = observe(&stand_ins, &[mix])?;
    let (truth, process) = work(&observed, &mut workloads[0])?;
    assert_eq!(number(&truth, "/allocated_bytes"), 40 * 1000);
    assert_eq!(process.memory.allocated, 40 * 1000);
    assert_eq!(process.memory.live(), 4 * 1000, "{truth}");
    Ok(())
}

#[test]
fn a_process_that_never_frees_has_a_bounded_part_of_the_map_and_takes_nothing_from_others()
-> Result<()> {
    const ALLOCATIONS: u64 = 70_000;
    let remembered = u64::try_from(MAX_ALLOCATIONS)?;
    let stand_ins = StandIns::lay_out()?;
    let mixes = [
        format!("calls --calls {ALLOCATIONS} --mix cudaMalloc=1"),
        "calls --calls 300 --free-all --mix cudaMalloc=2,cudaFree=1".into(),
    ];
    let (mut workloads, observed) = observe(&stand_ins, &mixes)?;
    let (_, greedy) = work(&observed, &mut workloads[0])?;
    assert_eq!(greedy.memory.allocated, ALLOCATIONS * 1000);
    assert_eq!(greedy.memory.live(), remembered * 1000, "what finds no room counts as freed");
    assert_eq!(observed.counter(SelfCounter::FullAllocations)?, ALLOCATIONS - remembered);
    let (truth, modest) = work(&observed, &mut workloads[1])?;
    assert_eq!(modest.memory.allocated, number(&truth, "/allocated_bytes"));
    assert_eq!(modest.memory.live(), 0);
    assert_eq!(observed.counter(SelfCounter::FullAllocations)?, ALLOCATIONS - remembered);
    Ok(())
}
