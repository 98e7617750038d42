//! CUDA libraries are found and their calls counted exactly, whatever happens to their files. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

mod support {
    pub(crate) mod built;
    pub(crate) mod caller;
    pub(crate) mod container;
    pub(crate) mod daemon;
    pub(crate) mod fixture;
    pub(crate) mod guest;
    pub(crate) mod libraries;
}
#[path = "after_load/privileges.rs"]
mod privileges;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{LaunchStep, ProcessSnapshot};
use gpucause_probes::Options;
use gpucause_probes::elf::read_program;
use gpucause_probes::feature::AttachMode;
use gpucause_probes::registry::{LibraryStatus, LibraryVerdict};
use support::built::built;
use support::caller::{Caller, build_caller};
use support::daemon::{Daemon, SOON, eventually};
use support::fixture::Fixture;
use support::libraries::{PLAIN, build_library, code_at, probe_offset};

const CALLS: u64 = 1_000;
const LIBRARY: &str = "libcudart.so.12";

impl Fixture {
    fn new() -> Self {
        Self::with(PLAIN, &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Other functions at other places of the file.
    fn build_another(&self, path: &Path) {
        let before = probe_offset(&self.library, "cudaMalloc");
        build_library(path, PLAIN, &["-DPADDING=77", "-DSHIFT=3"]);
        assert_ne!(probe_offset(path, "cudaMalloc"), before);
    }

    fn caller(&self) -> Caller {
        Caller::start(&self.caller)
    }
}

impl Daemon {
    /// The library, once it has been examined.
    fn await_library(&self, path: &Path) -> LibraryStatus {
        eventually(SOON, "the library", || self.library(path))
    }

    /// Returns a counter that the programs keep about themselves.
    fn counter(&self, counter: SelfCounter) -> u64 {
        let snapshot = self.probes.snapshot().expect("readable maps");
        snapshot
            .counters
            .iter()
            .filter(|(which, _)| *which == counter)
            .map(|(_, count)| count)
            .sum()
    }
}

/// Makes calls and checks that they are counted, once each, and on top of those before.
fn assert_counted(daemon: &Daemon, caller: &mut Caller) {
    for function in ["cudaLaunchKernel", "cudaMalloc", "cudaFree"] {
        let before = daemon.calls(caller.pid(), function);
        caller.call(function, CALLS);
        assert_eq!(daemon.calls(caller.pid(), function) - before, CALLS, "{function}");
    }
}

#[test]
fn a_library_in_memory_without_a_file_is_observed() {
    let fixture = Fixture::new();
    let daemon = Daemon::start();
    let mut caller = fixture.caller();
    caller.request(&format!("memfd {}", fixture.library.display()));
    let in_memory = format!("/memfd:{LIBRARY}");
    eventually(SOON, "probes on memory", || {
        let libraries = daemon.probes.status().libraries;
        let attached = |library: &LibraryStatus| {
            library.path == Path::new(&in_memory) && library.verdict == LibraryVerdict::Attached
        };
        libraries.iter().any(attached).then_some(())
    });
    caller.call("cudaMalloc", CALLS);
    assert_eq!(daemon.calls(caller.pid(), "cudaMalloc"), CALLS);
}

#[test]
fn a_library_opened_after_the_start_is_counted_from_the_attach_on() {
    let fixture = Fixture::new();
    let mut caller = fixture.caller();
    let daemon = Daemon::start();
    caller.open(&fixture.library);
    let library = daemon.await_attached(&fixture.library);
    assert_counted(&daemon, &mut caller);
    let gap = library.gap.expect("found by an event");
    println!("attached {} us after the mapping", gap.0 / 1_000);
    assert!(gap.0 < 1_000_000_000, "{gap:?}");
    assert_eq!((library.sites, library.ops, library.slow), (4, 4, vec![]));
}

#[test]
fn a_library_in_another_mount_namespace_is_counted() {
    for before_the_daemon in [true, false] {
        let fixture = Fixture::new();
        let hidden = fixture.path("hidden");
        fs::create_dir(&hidden).unwrap();
        let script = "mount -t tmpfs none \"$0\"; cp \"$1\" \"$0\"; exec \"$2\"";
        let arguments = [&hidden, &fixture.library, &fixture.caller];
        let early = before_the_daemon.then(|| {
            let mut caller = Caller::in_mount_namespace(script, &arguments);
            caller.open(&hidden.join(LIBRARY));
            caller
        });
        let daemon = Daemon::start();
        let mut caller = early.unwrap_or_else(|| Caller::in_mount_namespace(script, &arguments));
        if !before_the_daemon {
            caller.open(&hidden.join(LIBRARY));
        }
        assert!(!hidden.join(LIBRARY).exists(), "the host must not see it");
        daemon.await_attached(&caller.sees(&hidden.join(LIBRARY)));
        assert_counted(&daemon, &mut caller);
    }
}

/// Duplicates are counted for the whole host.
static OVERLAYS: Mutex<()> = Mutex::new(());
/// So are files that are overwritten.
static OVERWRITTEN: Mutex<()> = Mutex::new(());

/// Two containers with the same layer, with links of their own to the one real file.
fn assert_counted_once_on_overlays(mode: AttachMode, step: Option<LaunchStep>) {
    let _alone = OVERLAYS.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = Fixture::new();
    let layer = fixture.path("layer");
    fs::create_dir(&layer).unwrap();
    fs::copy(&fixture.library, layer.join(LIBRARY)).unwrap();
    let script = "mount -t tmpfs none \"$0\"; mkdir \"$0/empty\" \"$0/root\"; \
                  mount -t overlay none -o \"lowerdir=$0/empty:$1\" \"$0/root\"; exec \"$2\"";
    let scratch = fixture.path("scratch");
    fs::create_dir(&scratch).unwrap();
    let library = scratch.join("root").join(LIBRARY);
    let daemon = Daemon::start_with(Options { mode: Some(mode), step, ..Options::default() });
    let mut containers = [0, 1].map(|_| {
        let mut caller = Caller::in_mount_namespace(script, &[&scratch, &layer, &fixture.caller]);
        caller.open(&library);
        caller
    });
    let files =
        containers.each_ref().map(|caller| daemon.await_attached(&caller.sees(&library)).file);
    assert_ne!(files[0], files[1], "two mounts, two files");
    if step.is_some() {
        for caller in &mut containers {
            caller.call("cudaLaunchKernel", CALLS);
            let launches: u64 =
                daemon.accounts(caller.pid()).iter().map(ProcessSnapshot::launches).sum();
            assert_eq!(launches, CALLS);
        }
        return;
    }
    let before = daemon.counter(SelfCounter::DuplicateHit);
    for caller in &mut containers {
        assert_counted(&daemon, caller);
    }
    // Both at the same time.
    for caller in &mut containers {
        caller.send(&format!("call cudaMalloc {}", 50 * CALLS));
    }
    for caller in &mut containers {
        caller.await_ok();
        assert_eq!(daemon.calls(caller.pid(), "cudaMalloc"), 51 * CALLS);
        assert!(
            daemon
                .accounts(caller.pid())
                .iter()
                .all(|process| process.measures.abandoned_calls == 0)
        );
    }
    let made = 2 * (3 + 50) * CALLS;
    assert_eq!(daemon.counter(SelfCounter::DuplicateHit) - before, made);
}

#[test]
fn a_call_through_one_of_two_overlay_mounts_of_a_layer_is_counted_once() {
    assert_counted_once_on_overlays(AttachMode::Session, None);
}

#[test]
fn a_call_through_one_of_two_overlay_mounts_is_counted_once_on_older_kernels_too() {
    assert_counted_once_on_overlays(AttachMode::Multi, None);
    assert_counted_once_on_overlays(AttachMode::Perf, None);
}

#[test]
fn a_launch_through_one_of_two_overlay_mounts_is_counted_once_while_one_in_so_many_is_timed() {
    let sampled = Some(LaunchStep::Sampled { one_in: 64 });
    assert_counted_once_on_overlays(AttachMode::Session, sampled);
    assert_counted_once_on_overlays(AttachMode::Multi, sampled);
}

#[test]
fn a_library_that_is_already_deleted_is_counted() {
    let fixture = Fixture::new();
    let mut caller = fixture.user();
    let mapped = fs::metadata(&fixture.library).unwrap();
    fs::remove_file(&fixture.library).unwrap();
    let daemon = Daemon::start();
    let library = daemon.library_of(&mapped).expect("attached by the first scan");
    assert_eq!((library.verdict, library.path), (LibraryVerdict::Attached, fixture.library));
    assert_counted(&daemon, &mut caller);
}

#[test]
fn a_library_deleted_after_the_attach_is_counted_on() {
    let fixture = Fixture::new();
    let mut caller = fixture.user();
    let daemon = Daemon::start();
    assert_counted(&daemon, &mut caller);
    fs::remove_file(&fixture.library).unwrap();
    assert_counted(&daemon, &mut caller);
}

#[test]
fn a_library_replaced_by_rename_is_counted_in_old_and_new_processes() {
    let _alone = OVERWRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = Fixture::new();
    let mut old = fixture.user();
    let daemon = Daemon::start();
    assert_counted(&daemon, &mut old);
    fixture.build_another(&fixture.library);
    let mut new = fixture.user();
    daemon.await_attached(&fixture.library);
    assert_counted(&daemon, &mut old);
    assert_counted(&daemon, &mut new);
    assert_eq!(old.call("cudaMalloc", CALLS).0, 0);
    assert_eq!(new.call("cudaMalloc", CALLS).0, 3 * CALLS);
    assert_eq!(daemon.probes.status().counts.overwritten, 0);
}

#[test]
fn a_library_overwritten_in_place_is_detached_and_reattached() {
    let _alone = OVERWRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = Fixture::new();
    let another = fixture.path("another");
    fixture.build_another(&another);
    let stale = probe_offset(&fixture.library, "cudaMalloc");
    let daemon = Daemon::start();
    let mut first = fixture.user();
    daemon.await_attached(&fixture.library);
    assert_counted(&daemon, &mut first);
    first.kill();
    let written = Instant::now();
    let mut writer = fs::OpenOptions::new().write(true).open(&fixture.library).unwrap();
    writer.write_all(&fs::read(&another).unwrap()).unwrap();
    let is_attached = |library: LibraryStatus| library.verdict == LibraryVerdict::Attached;
    let detached = || (!daemon.library(&fixture.library).is_some_and(is_attached)).then_some(());
    eventually(SOON, "the detach", detached);
    println!("detached {} ms after the first write", written.elapsed().as_millis());
    // From now on the new contents may be mapped.
    let mut second = fixture.user();
    drop(writer);
    daemon.await_attached(&fixture.library);
    assert_eq!(daemon.probes.status().counts.overwritten, 1);
    assert_counted(&daemon, &mut second);
    assert_eq!(second.call("cudaFree", CALLS).0, 3 * CALLS);
    let [in_file, in_memory] = code_at(second.pid(), &fixture.library, stale);
    assert_eq!(
        in_file, in_memory,
        "a leftover of the old probe at {stale:#x}; if another gpucause runs, it may be from that"
    );
}

#[test]
fn a_library_opened_and_closed_in_a_loop_is_counted() {
    let fixture = Fixture::new();
    let daemon = Daemon::start();
    let mut caller = fixture.user();
    let before = daemon.await_attached(&fixture.library);
    caller.request("close");
    caller.request(&format!("cycle {} cudaFree 200 5", fixture.library.display()));
    assert_eq!(daemon.calls(caller.pid(), "cudaFree"), 1_000);
    let now = daemon.await_attached(&fixture.library);
    assert_eq!((now.link, now.gap), (before.link, before.gap), "the same probes");
}

#[test]
fn a_program_with_the_runtime_linked_in_is_counted() {
    let fixture = Fixture::new();
    let program = build_caller(fixture.directory.path(), "trainer", &["-DLINKED", "-rdynamic"]);
    let mut early = Caller::start(&program);
    let daemon = Daemon::start();
    assert_eq!(daemon.await_attached(&program).sites, 1);
    let mut late = Caller::start(&program);
    for caller in [&mut early, &mut late] {
        caller.call("cudaLaunchKernel", CALLS);
        assert_eq!(daemon.calls(caller.pid(), "cudaLaunchKernel"), CALLS);
    }
}

/// A function with a landing pad, one that begins with `sub`, one with `mov`, and one with a push.
#[cfg(target_arch = "x86_64")]
const PROLOGUES: &str = r#"
#define FUNCTION(name, code) __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
	code "\n.size " #name ", .-" #name "\n");
FUNCTION(cudaLaunchKernel, "endbr64\npush %rbp\nmov %rsp, %rbp\nmov $5, %eax\npop %rbp\nret")
FUNCTION(cudaMalloc, "sub $8, %rsp\nmov $6, %eax\nadd $8, %rsp\nret")
FUNCTION(cudaFree, "mov $7, %eax\nret")
FUNCTION(cudaMemset, "push %rbx\nmov $8, %eax\npop %rbx\nret")
FUNCTION(cudaMemcpy, "endbr64\nmov $9, %eax\nret")
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn every_kind_of_first_instruction_is_counted_and_slow_ones_are_reported() {
    let fixture = Fixture::with(PROLOGUES, &[]);
    let mut caller = fixture.user();
    let daemon = Daemon::start();
    let mut slow = daemon.library(&fixture.library).unwrap().slow;
    slow.sort();
    assert_eq!(slow, ["cudaFree", "cudaMalloc", "cudaMemcpy"]);
    let functions = ["cudaLaunchKernel", "cudaMalloc", "cudaFree", "cudaMemset", "cudaMemcpy"];
    for (function, result) in functions.into_iter().zip(5..) {
        let (sum, ns) = caller.call(function, CALLS);
        assert_eq!(
            (sum, daemon.calls(caller.pid(), function)),
            (result * CALLS, CALLS),
            "{function}"
        );
        println!("{function}: {} ns a call", ns / CALLS);
    }
    let bytes = fs::read(&fixture.library).unwrap();
    let offset = usize::try_from(probe_offset(&fixture.library, "cudaLaunchKernel")).unwrap();
    assert_eq!(
        bytes[offset - 4..=offset],
        [0xf3, 0x0f, 0x1e, 0xfa, 0x55],
        "behind the landing pad"
    );
}

/// `cudaMemset` ends by a jump to `cudaFree`, which returns for both.
#[cfg(target_arch = "x86_64")]
const TAIL_CALL: &str = r#"
#define FUNCTION(NAME, CODE) \
    asm(".globl " #NAME "\n.type " #NAME ", @function\n" #NAME ":\n" CODE "\n.size " #NAME ", . - " #NAME "\n");
FUNCTION(cudaFree, "push %rbp\nmov $7, %eax\npop %rbp\nret")
FUNCTION(cudaMemset, "push %rbp\npop %rbp\njmp cudaFree@PLT")
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_that_ends_in_another_by_a_jump_is_counted_and_so_is_the_other() {
    let fixture = Fixture::with(TAIL_CALL, &[]);
    let mut caller = fixture.user();
    let daemon = Daemon::start();
    daemon.await_attached(&fixture.library);
    assert_eq!(caller.call("cudaMemset", CALLS).0, 7 * CALLS);
    assert_eq!(caller.call("cudaFree", CALLS).0, 7 * CALLS);
    let counted = |function| daemon.calls(caller.pid(), function);
    assert_eq!((counted("cudaMemset"), counted("cudaFree")), (CALLS, 2 * CALLS));
    let abandoned: u64 =
        daemon.accounts(caller.pid()).iter().map(|p| p.measures.abandoned_calls).sum();
    assert_eq!(abandoned, 0);
}

#[test]
fn functions_that_hand_their_calls_to_a_loaded_library_have_no_probes() {
    let directory = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O1", "-O2", "-Os"] {
        let sites = |name: &str, source: &str| {
            let path = directory.path().join(format!("{name}{level}"));
            build_library(&path, source, &[level]);
            read_program(&fs::File::open(&path).unwrap()).unwrap().sites
        };
        assert_eq!(sites("forwarders", include_str!("support/forwarders.c")), [], "{level}");
        assert_eq!(sites("runtime", PLAIN).len(), 4, "{level}");
    }
}

#[test]
fn a_truncated_library_is_reported_and_harms_nothing_else() {
    let fixture = Fixture::new();
    let whole = fs::read(&fixture.library).unwrap();
    let broken = fixture.path("broken").join(LIBRARY);
    fs::create_dir(fixture.path("broken")).unwrap();
    let daemon = Daemon::start();
    let mut good = fixture.user();
    daemon.await_attached(&fixture.library);
    for length in [20, 64, 4096, whole.len() - 1] {
        // Another file each time, since one that is mapped must not change.
        let _ = fs::remove_file(&broken);
        fs::write(&broken, &whole[..length]).unwrap();
        let mut bad = fixture.caller();
        bad.request(&format!("map {}", broken.display()));
        let verdict = daemon.await_library(&broken).verdict;
        assert!(
            matches!(&verdict, LibraryVerdict::Broken(why) if why.contains("truncated")),
            "{verdict:?}"
        );
        assert_counted(&daemon, &mut good);
    }
}

#[test]
fn a_library_of_that_name_without_cuda_functions_is_reported() {
    let fixture = Fixture::with("int nothing(void) { return 0; }", &[]);
    let daemon = Daemon::start();
    let _subject = fixture.user();
    let library = daemon.await_library(&fixture.library);
    assert_eq!((library.verdict, library.sites), (LibraryVerdict::NoSymbols, 0));
}

#[test]
fn a_function_with_two_names_is_counted_once() {
    let fixture = Fixture::new();
    let library = fixture.path("libnccl.so.2");
    fs::copy(built("libnccl.so"), &library).unwrap();
    let mut caller = fixture.caller();
    caller.open(&library);
    let daemon = Daemon::start();
    let status = daemon.await_attached(&library);
    assert_eq!(status.sites, status.ops);
    caller.call("ncclAllReduce", CALLS);
    caller.call("pncclAllReduce", 2 * CALLS);
    caller.call("ncclGetVersion", 1);
    assert_eq!(daemon.calls(caller.pid(), "ncclAllReduce"), 3 * CALLS);
    assert_eq!(daemon.accounts(caller.pid())[0].calls.len(), 1);
}

#[test]
fn processes_killed_right_after_they_mapped_a_library_harm_nothing() {
    let fixture = Fixture::new();
    let daemon = Daemon::start();
    for number in 0..40 {
        let library = fixture.path(&number.to_string()).join(LIBRARY);
        fs::create_dir(library.parent().unwrap()).unwrap();
        fs::copy(&fixture.library, &library).unwrap();
        let mut caller = fixture.caller();
        caller.open(&library);
        if number % 4 == 0 {
            daemon.await_attached(&library);
        }
        caller.kill();
        fs::remove_file(library).unwrap();
    }
    let mut caller = fixture.user();
    daemon.await_attached(&fixture.library);
    assert_counted(&daemon, &mut caller);
    let counts = daemon.probes.status().counts;
    println!("{counts:?}");
    assert!(counts.vanished > 0, "no process vanished before it was scanned: {counts:?}");
    assert_eq!((counts.refused, counts.unreachable), (0, 0), "{counts:?}");
}

#[test]
fn a_process_that_dies_within_a_call_is_closed_and_others_are_counted() {
    let fixture = Fixture::new();
    let daemon = Daemon::start();
    let mut caller = fixture.user();
    daemon.await_attached(&fixture.library);
    assert_counted(&daemon, &mut caller);
    let entered = daemon.counter(SelfCounter::HitCall);
    caller.send("call cudaStreamSynchronize 1");
    let is_in_call = || (daemon.counter(SelfCounter::HitCall) > entered).then_some(());
    eventually(SOON, "the call", is_in_call);
    caller.kill();
    let account = eventually(SOON, "the end of the process", || {
        daemon.accounts(caller.pid()).pop().filter(|process| process.ended.is_some())
    });
    assert_eq!(account.measures.abandoned_calls, 1);
    assert_eq!(daemon.calls(caller.pid(), "cudaStreamSynchronize"), 0);
    assert_eq!(daemon.calls(caller.pid(), "cudaFree"), CALLS);
    let mut next = fixture.user();
    assert_counted(&daemon, &mut next);
}
