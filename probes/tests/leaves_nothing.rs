//! Nothing of the probes outlives them, and what they were on never notices. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

mod support {
    pub(crate) mod built;
    pub(crate) mod caller;
    pub(crate) mod daemon;
    pub(crate) mod fixture;
    pub(crate) mod guest;
    pub(crate) mod libraries;
}

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpucause_probes::registry::LibraryVerdict;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use support::built::built;
use support::caller::Caller;
use support::daemon::{Daemon, SOON, eventually};
use support::fixture::Fixture;
use support::guest::is_emulated;
use support::libraries::{PLAIN, code_at, probe_offset};

/// A process holds these resources of eBPF: kind and number of each program, map and link.
type Resources = BTreeSet<(&'static str, u32)>;

fn our_resources() -> Resources {
    let mut resources = Resources::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap() {
        // The descriptor of the directory itself is closed by now.
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else { continue };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(":\t") else { continue };
            // A link also lists its program, with a key after its own.
            if let Some(kind) =
                ["link_id", "map_id", "prog_id"].into_iter().find(|kind| key == *kind)
            {
                resources.insert((kind, value.parse().unwrap()));
            }
        }
    }
    resources
}

fn in_the_kernel() -> Resources {
    let links = LinkInfoIter::default().map(|link| ("link_id", link.id));
    let maps = MapInfoIter::default().map(|map| ("map_id", map.id));
    let programs = ProgInfoIter::default().map(|program| ("prog_id", program.id));
    links.chain(maps).chain(programs).collect()
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn fixture() -> Fixture {
    Fixture::with(PLAIN, &["-DSHIFT=3"])
}

#[test]
fn no_program_map_link_or_descriptor_outlives_the_probes() {
    let fixture = fixture();
    let mut caller = fixture.user();
    let (resources_before, descriptors) = (our_resources(), open_descriptors());
    let daemon = Daemon::start();
    daemon.await_attached(&fixture.library);
    caller.call("cudaLaunchKernel", 1_000);
    let ours: Resources = our_resources().difference(&resources_before).copied().collect();
    for (kind, at_least) in [("prog_id", 6), ("map_id", 10), ("link_id", 7)] {
        let count = ours.iter().filter(|(resource, _)| *resource == kind).count();
        println!("{count} of {kind}");
        assert!(count >= at_least, "{count} of {kind}");
    }
    assert!(ours.is_subset(&in_the_kernel()));
    drop(daemon);
    // The kernel frees them a little later. Their numbers are not used again.
    eventually(SOON, "the end of all programs, maps and links", || {
        in_the_kernel().is_disjoint(&ours).then_some(())
    });
    assert_eq!(open_descriptors(), descriptors);
}

#[test]
fn code_in_running_processes_is_as_it_was_and_as_fast() {
    const CALLS: u64 = 20_000;
    let fixture = fixture();
    let mut caller = fixture.user();
    let functions = ["cudaLaunchKernel", "cudaMalloc", "cudaFree", "cudaStreamSynchronize"];
    let code = |caller: &Caller| {
        functions.map(|function| {
            code_at(caller.pid(), &fixture.library, probe_offset(&fixture.library, function))
        })
    };
    let (before, (sum, fast)) = (code(&caller), caller.call("cudaMalloc", CALLS));
    assert!(before.iter().all(|[in_file, in_memory]| in_file == in_memory), "{before:x?}");
    let daemon = Daemon::start();
    daemon.await_attached(&fixture.library);
    assert!(code(&caller).iter().all(|[_, in_memory]| *in_memory == 0xcc), "{:x?}", code(&caller));
    assert_eq!(caller.call("cudaMalloc", CALLS).0, sum);
    drop(daemon);
    assert_eq!(code(&caller), before);
    let (sum_after, after) = caller.call("cudaMalloc", CALLS);
    println!("{} ns a call before, {} after", fast / CALLS, after / CALLS);
    // A call with a probe takes more than 1000 ns, one without a few.
    assert!(sum_after == sum && after / CALLS < 200, "{after} ns for {CALLS} calls");
}

/// Also the calls of a process that goes on count no longer once that was asked for.
#[test]
fn the_probes_of_many_files_are_gone_within_two_seconds() {
    const FILES: u32 = 384;
    // So many files of one user may have probes, whatever else runs here.
    const OF_ONE_OWNER: u32 = 128;
    let fixture = fixture();
    let daemon = Daemon::start();
    let (mut caller, mut busy) = (Caller::start(&fixture.caller), fixture.user());
    daemon.await_attached(&fixture.library);
    for number in 1..FILES {
        let library = fixture.directory.path().join(format!("{number}/libcudart.so.12"));
        fs::create_dir(library.parent().unwrap()).unwrap();
        fs::copy(&fixture.library, &library).unwrap();
        chown(&library, Some(1 + number / OF_ONE_OWNER), None).unwrap();
        caller.request(&format!("map {}", library.display()));
    }
    let attached = || {
        let libraries = daemon.probes.status().libraries;
        libraries.iter().filter(|library| library.verdict == LibraryVerdict::Attached).count()
    };
    eventually(3 * SOON, "probes on all files", || (attached() >= FILES as usize).then_some(()));
    let (done, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let (took, made, counted) = std::thread::scope(|scope| {
        let ends = Ends(&done);
        let pid = busy.pid();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                busy.call("cudaMalloc", 100);
                made.fetch_add(100, Ordering::Relaxed);
            }
        });
        eventually(SOON, "calls", || (daemon.calls(pid, "cudaMalloc") > 100).then_some(()));
        let counted = daemon.calls(pid, "cudaMalloc");
        let before = made.load(Ordering::Relaxed);
        let began = Instant::now();
        daemon.probes.set_enabled(false);
        eventually(3 * SOON, "the end of all probes", || {
            (!daemon.probes.status().enabled).then_some(())
        });
        let took = began.elapsed();
        drop(ends);
        let made = made.load(Ordering::Relaxed) - before;
        (took, made, daemon.calls(pid, "cudaMalloc") - counted)
    });
    println!("{FILES} files in {took:?}; of {made} calls {counted} counted");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(counted < made / 5, "of {made} calls {counted} counted");
}

/// Tells other threads that they are not needed any more, also where their work ends by a failed assertion: whoever waits for
/// them would wait for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The workload's report, without what differs between runs.
fn run_workload(fixture: &Fixture, calls: u64) -> serde_json::Value {
    let libraries = fixture.directory.path().join("stand-ins");
    // With the CPUs that the daemon leaves: attaching takes long where it competes for them.
    let output = Command::new("nice")
        .arg(built("gpucause-workload"))
        .arg("--libs")
        .arg(&libraries)
        .args(["--script", "cudaMalloc:ret=2@7;cudaMemcpyAsync:ret=700@11;nest=1"])
        .args(["--kernels", "4", "calls", "--threads", "2", "--mix"])
        .arg("cudaLaunchKernel=5,cudaMemcpyAsync=2,cudaMalloc=1,cudaFree=1,cudaStreamSynchronize=1")
        .args(["--calls", &calls.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut result: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for what_differs in ["pid", "threads"] {
        result.as_object_mut().unwrap().remove(what_differs).unwrap();
    }
    result
}

#[test]
fn a_workload_that_is_attached_to_again_and_again_does_what_it_does_without() {
    let (attaches, calls, few) = if is_emulated() { (3, 600, 100) } else { (12, 60_000, 10_000) };
    let fixture = fixture();
    let target = built("gpucause-workload");
    let laid_out = Command::new(&target)
        .arg("lay-out")
        .arg(fixture.directory.path().join("stand-ins"))
        .status()
        .unwrap();
    assert!(laid_out.success());
    let alone = run_workload(&fixture, calls);
    assert_eq!(alone["calls"]["cudaLaunchKernel"], calls);
    let mut long_lived = fixture.user();
    let pid = long_lived.pid();
    let done = AtomicBool::new(false);
    let mut counted = 0;
    std::thread::scope(|scope| {
        let ends = Ends(&done);
        let short = scope.spawn(|| {
            let mut runs = 0;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(run_workload(&fixture, calls), alone);
                runs += 1;
            }
            runs
        });
        let long = scope.spawn(|| {
            let mut rounds = 0u64;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(long_lived.call("cudaMalloc", few).0, 3 * few);
                rounds += 1;
            }
            rounds
        });
        for _ in 0..attaches {
            let daemon = Daemon::start();
            daemon.await_attached(&fixture.library);
            eventually(SOON, "calls", || (daemon.calls(pid, "cudaMalloc") > 100).then_some(()));
            counted += daemon.calls(pid, "cudaMalloc");
        }
        drop(ends);
        let (runs, rounds) = (short.join().unwrap(), long.join().unwrap());
        println!("{runs} runs; {counted} calls of {rounds} rounds were counted");
        assert!(runs >= 2 && counted < rounds * few);
    });
}
