//! Discovery of a child process that maps a library, on the real kernel with a pretended attach.

use super::*;
use crate::elf::ProbeSite;
use crate::elf::fixture::cuda_library;
use crate::launch_groups::{GROUPS, LaunchUsers};
use crate::registry::{LibraryStatus, Limits, LinkId};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

const DEADLINE: Duration = Duration::from_secs(30);

/// Held by each test that forks or maps: a child would inherit what another test has mapped.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock()
}

struct Fake;

impl Attach for Fake {
    type Links = ();
    type Error = &'static str;

    fn attach(
        &mut self,
        _: &File,
        _: LinkId,
        _: &[ProbeSite],
        _: &[LaunchUsers; GROUPS],
    ) -> Result<(), &'static str> {
        Ok(())
    }

    fn detach(&mut self, _: LinkId, (): ()) {}

    fn set_launch_users(
        &mut self,
        _: &File,
        (): &mut (),
        _: &[LaunchUsers; GROUPS],
    ) -> Result<(), &'static str> {
        Ok(())
    }
}

/// A process that maps a file and does nothing else.
struct Mapper(Pid);

impl Mapper {
    fn start(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        let length = NonZero::new(4096).unwrap();
        // SAFETY: until it is killed the child makes system calls only, and none that needs a lock of its parent.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Self(child),
            ForkResult::Child => {
                // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
                let _ = unsafe { mmap(None, length, access, MapFlags::MAP_PRIVATE, &file, 0) };
                loop {
                    // SAFETY: has no preconditions.
                    unsafe { libc::pause() };
                }
            }
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

fn library(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, cuda_library(&[7])).unwrap();
    path
}

type Update = (Vec<LibraryStatus>, DiscoveryStatus);

/// Runs `test` beside a running discovery; it gets what the discovery tells of.
fn beside(discovery: Discovery, test: impl FnOnce(&Receiver<Update>)) {
    let stop = StopSignal::new().unwrap();
    let (sender, updates) = channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        let running = scope.spawn(move || {
            let mut registry = Registry::new(Limits::default(), Fake);
            let report = |registry: &Registry<Fake>, status: DiscoveryStatus| {
                let _ = sender.send((registry.libraries().collect(), status));
            };
            discovery.run(&mut registry, stop, report);
        });
        struct Stop<'a>(&'a StopSignal);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let stopping = Stop(stop);
        test(&updates);
        let started = Instant::now();
        drop(stopping);
        running.join().unwrap();
        assert!(started.elapsed() < DEADLINE, "did not stop");
    });
}

fn until_found(updates: &Receiver<Update>, path: &Path) -> LibraryStatus {
    let started = Instant::now();
    while started.elapsed() < DEADLINE {
        let Ok((libraries, _)) = updates.recv_timeout(DEADLINE) else { break };
        if let Some(found) = libraries.into_iter().find(|library| library.path == path) {
            return found;
        }
    }
    panic!("{path:?} was not found")
}

#[test]
fn a_library_that_was_mapped_before_the_start_is_found_by_the_first_scan() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = library(directory.path(), "libcudart.so.12");
    let _mapper = Mapper::start(&path);
    // The child maps when it comes to run.
    let started = Instant::now();
    let mut discovery = Discovery::with(None);
    let mut registry = Registry::new(Limits::default(), Fake);
    while registry.libraries().all(|library| library.path != path) {
        assert!(started.elapsed() < DEADLINE);
        discovery.scan(&mut registry);
    }
    let status = discovery.status();
    assert!(status.scans > 0 && !status.watching, "{status:?}");
}

#[test]
fn without_events_a_library_is_found_by_a_later_scan() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = library(directory.path(), "train");
    beside(Discovery::with(None), |updates| {
        updates.recv_timeout(DEADLINE).unwrap();
        let _mapper = Mapper::start(&path);
        assert_eq!(until_found(updates, &path).gap, None);
    });
}

#[test]
fn a_file_loses_its_probes_soon_after_its_last_process_has_ended() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = library(directory.path(), "train");
    beside(Discovery::with(None), |updates| {
        let mapper = Mapper::start(&path);
        until_found(updates, &path);
        drop(mapper);
        let ended = Instant::now();
        let has_probes = |(libraries, _): Update| libraries.iter().any(|own| own.path == path);
        while updates.recv_timeout(DEADLINE).is_ok_and(has_probes) {}
        assert!(ended.elapsed() < DEADLINE, "{:?}", ended.elapsed());
    });
}

/// Events of the whole host take root.
mod as_root {
    use super::*;

    #[test]
    fn a_library_that_is_mapped_later_is_found_by_its_event() {
        let _alone = alone();
        let directory = tempfile::tempdir().unwrap();
        let path = library(directory.path(), "libcudart.so.12");
        let discovery = Discovery::with(Some(MmapEvents::open().unwrap()));
        beside(discovery, |updates| {
            let (libraries, status) = updates.recv_timeout(DEADLINE).unwrap();
            assert!(libraries.iter().all(|library| library.path != path));
            assert!(status.watching);
            let mapper = Mapper::start(&path);
            let found = until_found(updates, &path);
            assert!(found.gap.is_some_and(|gap| gap.0 < DEADLINE.as_nanos() as u64), "{found:?}");
            drop(mapper);
        });
    }

    #[test]
    fn what_this_process_maps_is_left_alone() {
        let _alone = alone();
        let directory = tempfile::tempdir().unwrap();
        let path = library(directory.path(), "libcuda.so.1");
        let file = File::open(&path).unwrap();
        let mut discovery = Discovery::with(Some(MmapEvents::open().unwrap()));
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        let length = NonZero::new(4096).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_PRIVATE, &file, 0) }.unwrap();
        let mut registry = Registry::new(Limits::default(), Fake);
        discovery.scan(&mut registry);
        discovery.follow(&mut registry);
        let mapped = executable_mappings(discovery.own).unwrap();
        // SAFETY: the mapping was made above and nothing refers to it.
        unsafe { munmap(base, 4096) }.unwrap();
        assert!(mapped.iter().any(|mapping| mapping.path == path));
        assert!(registry.libraries().all(|library| library.path != path));
    }
}
