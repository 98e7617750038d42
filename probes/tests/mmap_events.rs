//! Executable mappings on the real kernel. Needs CAP_PERFMON.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpucause_abi::{Nanos, Tgid};
use gpucause_probes::mapped::{Mapping, open_mapped};
use gpucause_probes::mmap_events::{MmapEvent, MmapEvents};
use gpucause_probes::stop::StopSignal;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::time::{ClockId, clock_gettime};

const DEADLINE: Duration = Duration::from_secs(20);

/// Locked by each test: one of them makes more events than fit, and every test would lose some.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Result<Nanos> {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(Nanos(u64::try_from(time.as_nanos())?))
}

/// Maps a page of a file and unmaps it again.
fn map_page(file: &File, access: ProtFlags, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let length = NonZero::new(4096).context("a page")?;
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { mmap(None, length, access, MapFlags::MAP_PRIVATE, file, 0) }?;
    let result = meanwhile();
    // SAFETY: the mapping was made above and nothing refers to it.
    unsafe { munmap(base, 4096) }?;
    result
}

fn executable() -> ProtFlags {
    ProtFlags::PROT_READ | ProtFlags::PROT_EXEC
}

fn page_file(directory: &Path, name: &str) -> Result<(PathBuf, File)> {
    let path = directory.join(name);
    File::create(&path)?.write_all(&[0x90; 4096])?;
    Ok((path.clone(), File::open(path)?))
}

/// The events of `tgid` up to the first for `last`.
fn events_until(events: &mut MmapEvents, tgid: Tgid, last: &Path) -> Result<Vec<MmapEvent>> {
    let started = Instant::now();
    let mut seen = Vec::new();
    while started.elapsed() < DEADLINE {
        events.wait(Duration::from_millis(500), None)?;
        events.drain(|event| {
            if event.tgid == tgid {
                seen.push(event);
            }
        });
        if seen.iter().any(|event| event.path == last) {
            return Ok(seen);
        }
    }
    anyhow::bail!("no event for {last:?} within {DEADLINE:?}, saw {seen:?}")
}

#[test]
fn an_executable_mapping_is_reported_with_its_file_and_time() -> Result<()> {
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let (path, file) = page_file(directory.path(), "libcuda name\nwith everything.so.1")?;
    let own = Tgid(std::process::id());
    let mut events = MmapEvents::open()?;
    let before = now()?;
    map_page(&file, executable(), || {
        let seen = events_until(&mut events, own, &path)?;
        let event = seen.into_iter().find(|event| event.path == path).context("the event")?;
        assert!(before <= event.at && event.at <= now()?, "{event:?} since {before:?}");
        assert_eq!((event.len, event.offset), (4096, 0));
        assert_eq!((event.inode, event.deleted), (file.metadata()?.ino(), false));
        let opened = open_mapped(own, &Mapping::from(event))?;
        assert_eq!(opened.metadata()?.ino(), file.metadata()?.ino());
        Ok(())
    })
}

#[test]
fn a_mapping_for_data_is_not_reported() -> Result<()> {
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let (data_path, data) = page_file(directory.path(), "data")?;
    let (code_path, code) = page_file(directory.path(), "code")?;
    let mut events = MmapEvents::open()?;
    map_page(&data, ProtFlags::PROT_READ, || Ok(()))?;
    map_page(&code, executable(), || Ok(()))?;
    let seen = events_until(&mut events, Tgid(std::process::id()), &code_path)?;
    assert!(seen.iter().all(|event| event.path != data_path), "{seen:?}");
    Ok(())
}

#[test]
fn a_program_that_starts_is_reported_by_its_own_process_id() -> Result<()> {
    let _alone = alone();
    let mut events = MmapEvents::open()?;
    let program = std::fs::canonicalize("/proc/self/exe")?;
    // Lists no tests and ends.
    let mut child = Command::new(&program).args(["--list", "--exact", "none"]).spawn()?;
    let seen = events_until(&mut events, Tgid(child.id()), &program);
    child.wait()?;
    assert!(seen?.iter().all(|event| event.tgid == Tgid(child.id())));
    Ok(())
}

#[test]
fn events_that_do_not_fit_are_counted_and_the_rest_arrives() -> Result<()> {
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let (_, many) = page_file(directory.path(), "many")?;
    let (last_path, last) = page_file(directory.path(), "last")?;
    let mut events = MmapEvents::open()?;
    for _ in 0..5_000 {
        map_page(&many, executable(), || Ok(()))?;
    }
    let mut received = 0u64;
    events.drain(|_| received += 1);
    assert!(received > 100, "{received}");
    // The kernel reports a loss with the next record that fits.
    for _ in 0..2 {
        map_page(&last, executable(), || Ok(()))?;
    }
    let own = Tgid(std::process::id());
    received += events_until(&mut events, own, &last_path)?.len() as u64;
    let started = Instant::now();
    while events.lost() == 0 && started.elapsed() < DEADLINE {
        map_page(&last, executable(), || Ok(()))?;
        events.wait(Duration::from_millis(100), None)?;
        events.drain(|_| received += 1);
    }
    assert!(events.lost() > 0, "lost none of 5000 with {received} received");
    assert!(received + events.lost() >= 5_000, "{received} + {}", events.lost());
    Ok(())
}

#[test]
fn a_stop_signal_ends_the_wait() -> Result<()> {
    let _alone = alone();
    let mut events = MmapEvents::open()?;
    let stop = StopSignal::new()?;
    stop.stop();
    let started = Instant::now();
    events.drain(|_| {});
    assert!(events.wait(Duration::from_secs(60), Some(stop.as_fd()))?);
    assert!(started.elapsed() < Duration::from_secs(30));
    Ok(())
}
