//! Block I/O of tracked processes against what they read themselves.

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::snapshot::{BlockIo, ProcessSnapshot};
use gpucause_abi::state::BlockOperation;
use gpucause_probes::Options;

use crate::observe::Observed;
use crate::workload::{StandIns, Workload, number};

const READ_BYTES: u64 = 12 << 20;

fn read(process: &ProcessSnapshot) -> Vec<BlockIo> {
    let io = process.host.block_io.iter().copied();
    io.filter(|io| io.operation == BlockOperation::Read).collect()
}

/// A workload that has the library with probes and does not work yet.
fn ready(observed: &Observed, stand_ins: &StandIns, arguments: &str) -> Result<Workload> {
    let workload = stand_ins.start(&format!("{arguments} --wait --hold"))?;
    observed.wait_for_runtime(stand_ins)?;
    Ok(workload)
}

#[test]
fn bytes_read_past_the_cache_are_counted_exactly_and_their_time_is_the_readers() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&["block_start", "block_complete"])?;
    let mut workload = ready(&observed, &stand_ins, &format!("host --read {READ_BYTES}"))?;
    workload.go()?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    let io = read(&process);
    let bytes: u64 = io.iter().map(|io| io.bytes).sum();
    assert_eq!(number(&truth, "/read_bytes"), READ_BYTES);
    // Code that had to be fetched again is among them.
    assert_eq!(bytes, number(&truth, "/fetched_bytes"), "{io:?}");
    ensure!((READ_BYTES..READ_BYTES * 2).contains(&bytes), "{bytes} bytes");
    // The reader waits for one read at a time, but the disk may take it in parts.
    let requests: u64 = io.iter().map(|io| io.requests).sum();
    let (time, truth) = (io.iter().map(|io| io.time.0).sum::<u64>(), number(&truth, "/read_ns"));
    ensure!(requests * 131_072 >= READ_BYTES, "{requests} requests");
    ensure!(time * 10 >= truth * 3 && time <= truth * 4, "{time} ns in {truth} ns of reading");
    for io in &io {
        let name = io.device.to_text();
        let known = std::path::Path::new("/sys/block").join(&name);
        ensure!(!name.is_empty() && known.exists(), "`{name}` is no disk");
    }
    ensure!(observed.usage("block_io")?.refused == 0, "entries were refused");
    Ok(())
}

#[test]
fn what_an_untracked_process_reads_is_in_no_account() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let entries_of = |pid: u32| -> Result<usize> { Ok(observed.images(pid)?.len()) };
    let mut workload =
        ready(&observed, &stand_ins, &format!("host --no-call --read {READ_BYTES}"))?;
    let mut tracked = ready(&observed, &stand_ins, "host")?;
    workload.go()?;
    tracked.go()?;
    assert_eq!(number(&workload.result()?, "/read_bytes"), READ_BYTES);
    tracked.result()?;
    assert_eq!(entries_of(workload.pid())?, 0);
    let other = observed.process(tracked.pid())?;
    ensure!(read(&other).iter().all(|io| io.bytes < READ_BYTES / 4), "{:?}", other.host);
    Ok(())
}

#[test]
fn the_accounts_of_a_process_go_with_it() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    let mut workload = ready(&observed, &stand_ins, "host --read 131072")?;
    workload.go()?;
    workload.result()?;
    let process = observed.process(workload.pid())?;
    ensure!(!process.host.block_io.is_empty(), "{:?}", process.host);
    let entries = observed.usage("block_io")?.entries;
    ensure!(workload.end()?.success(), "the workload failed");
    let ended = observed.process(workload.pid())?;
    let kept = read(&ended).first().context("its I/O went before it was removed")?.bytes;
    ensure!(kept >= 131_072, "{kept} bytes are left");
    observed.remove(&[ended.id].into())?;
    ensure!(observed.usage("block_io")?.entries < entries, "entries are left");
    Ok(())
}
