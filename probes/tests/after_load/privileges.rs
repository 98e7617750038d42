//! Which capabilities are needed once the programs are loaded, for libraries that are mapped later.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use caps::Capability::{self, *};
use caps::{CapSet, CapsHashSet};
use gpucause_abi::sample::{SampledThread, Within};
use gpucause_abi::{ProcId, Tgid, Tid};
use gpucause_probes::feature::AttachMode;
use gpucause_probes::registry::LibraryVerdict;
use gpucause_probes::{Options, Probes};

use crate::support::caller::Caller;
use crate::support::daemon::SOON;
use crate::support::fixture::Fixture;
use crate::support::libraries::PLAIN;

const NOBODY: u32 = 65_534;
/// Long enough for what happens within milliseconds where it does.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// A library of another user, in a folder that only that user can enter.
struct Private(Fixture);

impl Private {
    fn new() -> Self {
        let fixture = Fixture::with(PLAIN, &[]);
        for path in [fixture.directory.path(), &fixture.caller, &fixture.library] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(fixture.directory.path(), private).unwrap();
        Self(fixture)
    }

    fn user(&self) -> Caller {
        Caller::started_by(Command::new(&self.0.caller).uid(NOBODY).gid(NOBODY))
    }
}

/// Returns true once the probes come to a library, and false after a timeout.
fn is_attached(probes: &Probes, inode: u64, expected: bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < if expected { SOON } else { REFUSAL_TIMEOUT } {
        let libraries = probes.status().libraries;
        if libraries.iter().any(|l| l.file.inode == inode && l.verdict == LibraryVerdict::Attached)
        {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

thread_local! {
    static KEEP: RefCell<CapsHashSet> = RefCell::default();
}

fn confine() {
    KEEP.with_borrow(|keep| {
        for set in [CapSet::Effective, CapSet::Permitted] {
            caps::set(None, set, keep).unwrap();
        }
    });
}

/// Starts probes that keep these capabilities after they were loaded. Returns true for a library that was deleted before, and for
/// one that is opened later, if the probes come to it.
fn attached_with(mode: AttachMode, keep: &[Capability], expected: [bool; 2]) -> [bool; 2] {
    let (deleted, later) = (Private::new(), Private::new());
    let inodes = [&deleted, &later].map(|it| fs::metadata(&it.0.library).unwrap().ino());
    let (mut first, mut second) = (deleted.user(), later.user());
    first.open(&deleted.0.library);
    fs::remove_file(&deleted.0.library).unwrap();
    // The calling thread loses its capabilities for good.
    let keep = keep.iter().copied().collect();
    let started = thread::spawn(move || {
        KEEP.set(keep);
        let loaded: fn(AttachMode) = |_| confine();
        let options = Options { mode: Some(mode), loaded: Some(loaded), ..Options::default() };
        let probes = Probes::start(options).unwrap();
        while !probes.status().is_ready() {
            thread::sleep(Duration::from_millis(5));
        }
        probes
    });
    let probes = started.join().unwrap();
    second.open(&later.0.library);
    let is_attached = |which: usize| is_attached(&probes, inodes[which], expected[which]);
    [is_attached(0), is_attached(1)]
}

/// Starts probes that keep the capabilities needed after loading. Returns true if a thread is sampled while it is chosen, and
/// true if it still is afterwards.
fn is_sampled(samples_by_timers: bool) -> [bool; 2] {
    let (keep, _) = CASES[0];
    let sampled = thread::spawn(move || {
        KEEP.set(keep.iter().copied().collect());
        let loaded: fn(AttachMode) = |_| confine();
        let options = Options { loaded: Some(loaded), samples_by_timers, ..Options::default() };
        let probes = Probes::start(options).unwrap();
        let pid = std::process::id();
        let thread = SampledThread {
            process: ProcId(1),
            tgid: Tgid(pid),
            tid: Tid(nix::unistd::gettid().as_raw().cast_unsigned()),
            within: Within::Anywhere,
            python: None,
        };
        let spin = || {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(500) {}
            !probes.sampler().take().unwrap().is_empty()
        };
        probes.sampler().choose(&[thread]).unwrap();
        let while_chosen = spin();
        probes.sampler().choose(&[]).unwrap();
        probes.sampler().take().unwrap();
        [while_chosen, spin()]
    });
    sampled.join().unwrap()
}

#[test]
fn threads_are_sampled_without_the_privileges_that_loading_takes() {
    for by_timers in [false, true] {
        assert_eq!(is_sampled(by_timers), [true, false], "by timers: {by_timers}");
    }
}

/// Capabilities that the attacher thread keeps, and its result for a deleted and a private library.
const CASES: [(&[Capability], [bool; 2]); 5] = [
    (&[CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE], [true, true]),
    (&[CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH], [false, true]),
    (&[CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE], [false, false]),
    (&[CAP_BPF, CAP_PERFMON, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE], [false, false]),
    (&[], [false, false]),
];

#[test]
fn three_capabilities_are_needed_once_the_programs_are_loaded() {
    for (keep, attached) in CASES {
        let found = attached_with(AttachMode::Session, keep, attached);
        assert_eq!(found, attached, "{keep:?}");
    }
    let (keep, attached) = CASES[0];
    assert_eq!(attached_with(AttachMode::Multi, keep, attached), attached);
    let names: Vec<_> = keep.iter().map(ToString::to_string).collect();
    assert_eq!(AttachMode::Session.privileges(), names);
}
