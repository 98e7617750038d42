//! Memory, page faults, reclaim and the out-of-memory killer against what the kernel and the workload say.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::state::{Fault, Reason};
use gpucause_probes::Options;

use crate::cgroup::Cgroup;
use crate::dispatcher::off;
use crate::observe::{Observed, until};
use crate::workload::{StandIns, Workload, number};

const MIB: u64 = 1 << 20;

fn ready(observed: &Observed, stand_ins: &StandIns, arguments: &str) -> Result<Workload> {
    let workload = stand_ins.start(&format!("{arguments} --wait --hold"))?;
    observed.wait_for_runtime(stand_ins)?;
    Ok(workload)
}

/// In which processes that want more than this must free some first.
fn with_memory(bytes: u64) -> Result<Cgroup> {
    let bytes = bytes.to_string();
    Cgroup::limited("memory", &[("memory.limit_in_bytes", &bytes)], &[("memory.max", &bytes)])
}

/// Minor and major faults of a process in `/proc`.
fn faults_in_proc(pid: u32) -> Result<[u64; 2]> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    Ok([fields[7].parse()?, fields[9].parse()?])
}

fn faults(process: &ProcessSnapshot) -> Result<[u64; 2]> {
    let of = |kind| process.host.page_faults(kind).context("no page faults");
    Ok([of(Fault::Minor)?, of(Fault::Major)?])
}

#[test]
fn touched_memory_is_allocated_memory_and_a_little_more() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["page_alloc"])?;
    let touched = 64 * MIB;
    let mut workload = ready(&observed, &stand_ins, &format!("host --touch {touched}"))?;
    workload.go()?;
    assert_eq!(number(&workload.result()?, "/touched_bytes"), touched);
    let allocated = observed.process(workload.pid())?.measures.page_alloc_bytes;
    ensure!((touched..=touched + touched / 5).contains(&allocated), "{allocated} of {touched}");
    Ok(())
}

#[test]
fn page_faults_are_those_that_the_kernel_counts_while_the_process_lives_and_after() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["report_threads", "process_exit"])?;
    // Threads that end while the process goes on are among them.
    let mut workload =
        ready(&observed, &stand_ins, "unwind --kind thread-exit --count 5 --calls 10")?;
    workload.go()?;
    workload.result()?;
    let reported = faults(&observed.process(workload.pid())?)?;
    assert_eq!(reported, faults_in_proc(workload.pid())?);
    let mut workload = ready(&observed, &stand_ins, &format!("host --touch {}", 8 * MIB))?;
    workload.go()?;
    let truth = workload.result()?;
    let live = faults(&observed.process(workload.pid())?)?;
    assert_eq!(live, faults_in_proc(workload.pid())?);
    let usage = [number(&truth, "/minor_faults"), number(&truth, "/major_faults")];
    ensure!(usage[0] >= 8 * MIB / 4096, "{usage:?}");
    ensure!(live[0] >= usage[0] && live[0] - usage[0] < 50, "{live:?}, by itself {usage:?}");
    ensure!(workload.end()?.success(), "the workload failed");
    let ended = faults(&observed.process(workload.pid())?)?;
    ensure!(ended[0] >= live[0] && ended[0] - live[0] < 100, "{ended:?} after {live:?}");
    ensure!(ended[1] >= live[1], "{ended:?} after {live:?}");
    Ok(())
}

#[test]
fn images_of_a_process_share_its_page_faults_out() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut workload = ready(&observed, &stand_ins, "unwind --kind exec --count 1 --calls 10")?;
    workload.go()?;
    for first_word in ["exec ", "ready "] {
        ensure!(workload.line()?.starts_with(first_word), "no line that begins with {first_word}");
    }
    workload.result()?;
    let images = observed.images(workload.pid())?;
    let [old, new] = &images[..] else { panic!("not two images: {images:?}") };
    let (old, new) = (faults(old)?, faults(new)?);
    let [minor, major] = faults_in_proc(workload.pid())?;
    assert_eq!([old[0] + new[0], old[1] + new[1]], [minor, major]);
    ensure!(old[0] > 0 && new[0] > 0, "{old:?} and {new:?}");
    Ok(())
}

#[test]
fn freeing_memory_for_a_cgroup_at_its_limit_takes_the_time_of_who_is_in_it() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["memcg_begin", "memcg_end", "reclaim_begin", "reclaim_end"])?;
    let cgroup = with_memory(16 * MIB)?;
    let arguments = format!("host --write {}", 32 * MIB);
    let mut limited = ready(&observed, &stand_ins, &arguments)?;
    let mut free = ready(&observed, &stand_ins, &arguments)?;
    cgroup.add(limited.pid())?;
    let started = Instant::now();
    limited.go()?;
    limited.result()?;
    let wall = u64::try_from(started.elapsed().as_nanos())?;
    let process = observed.process(limited.pid())?;
    let reclaim = process.measures.direct_reclaim.0;
    ensure!(reclaim > 0 && reclaim < wall, "{reclaim} ns in {wall} ns");
    // Its thread waits for a page, though it runs, or for a disk or a CPU.
    let time = &process.dispatchers[0].time;
    let reasons = [Reason::PageFault, Reason::Preempted, Reason::Runqueue];
    let waited: u64 = reasons.map(|reason| off(time, reason)).iter().sum();
    ensure!(off(time, Reason::PageFault) > 0, "{time:?}");
    ensure!(waited >= reclaim / 10 * 9, "{waited} of {reclaim} ns: {time:?}");
    // Its first touch of a page may also wait for the file of its program.
    let most = reclaim + reclaim / 10 + 20_000_000;
    ensure!(off(time, Reason::PageFault) <= most, "{reclaim} ns: {time:?}");
    free.go()?;
    free.result()?;
    assert_eq!(observed.process(free.pid())?.measures.direct_reclaim.0, 0);
    ensure!(limited.end()?.success(), "the workload failed in {}", cgroup.path().display());
    Ok(())
}

#[test]
#[ignore = "needs the memory controller of the unified hierarchy: make test-kernels has it"]
fn time_that_the_kernel_holds_a_process_up_above_its_high_limit_is_lack_of_memory() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let high = (8 * MIB).to_string();
    let cgroup = Cgroup::limited("memory", &[], &[("memory.high", &high)])?;
    let mut limited = ready(&observed, &stand_ins, &format!("host --write {}", 11 * MIB))?;
    cgroup.add(limited.pid())?;
    limited.go()?;
    let wrote = number(&limited.result()?, "/write_ns");
    let time = &observed.process(limited.pid())?.dispatchers[0].time;
    let [memory, io] = [Reason::PageFault, Reason::Io].map(|reason| off(time, reason));
    ensure!(wrote > 500_000_000, "it was not held up: {wrote} ns");
    ensure!(memory > wrote / 10 * 9 && io < wrote / 20, "{wrote} ns: {time:?}");
    Ok(())
}

#[test]
fn a_process_that_is_killed_for_lack_of_memory_is_counted_once() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["oom_victim"])?;
    let cgroup = with_memory(16 * MIB)?;
    let mut workload = ready(&observed, &stand_ins, &format!("host --touch {}", 64 * MIB))?;
    cgroup.add(workload.pid())?;
    let mut bystander = ready(&observed, &stand_ins, "host --touch 1048576")?;
    bystander.go()?;
    bystander.result()?;
    workload.go()?;
    ensure!(!workload.end()?.success(), "it was not killed");
    let process = until(
        || Ok(observed.process(workload.pid()).ok().filter(|process| process.ended.is_some())),
        || "the end of the victim".to_owned(),
    )?;
    assert_eq!(process.measures.oom_kills, 1);
    assert_eq!(observed.process(bystander.pid())?.measures.oom_kills, 0);
    Ok(())
}
