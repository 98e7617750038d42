//! Nothing of the probes outlives them, and what they were on never notices. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

mod support {
    pub(crate) mod built;
    pub(crate) mod daemon;
    pub(crate) mod libraries;
    pub(crate) mod place;
    pub(crate) mod subject;
}

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpucause_probes::registry::Verdict;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use support::built::built;
use support::daemon::{Daemon, SOON, eventually};
use support::libraries::{PLAIN, code_at, probe_offset};
use support::place::Place;
use support::subject::Subject;

/// What a process holds of eBPF: kind and number of each program, map and link.
type Held = BTreeSet<(&'static str, u32)>;

fn held_by_us() -> Held {
    let mut held = Held::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap() {
        // The descriptor of the directory itself is closed by now.
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else { continue };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(":\t") else { continue };
            // A link tells of its program too, with a key that comes after its own.
            if let Some(kind) =
                ["link_id", "map_id", "prog_id"].into_iter().find(|kind| key == *kind)
            {
                held.insert((kind, value.parse().unwrap()));
            }
        }
    }
    held
}

fn in_the_kernel() -> Held {
    let links = LinkInfoIter::default().map(|link| ("link_id", link.id));
    let maps = MapInfoIter::default().map(|map| ("map_id", map.id));
    let programs = ProgInfoIter::default().map(|program| ("prog_id", program.id));
    links.chain(maps).chain(programs).collect()
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn place() -> Place {
    Place::with(PLAIN, &["-DSHIFT=3"])
}

#[test]
fn no_program_map_link_or_descriptor_outlives_the_probes() {
    let place = place();
    let mut subject = place.user();
    let (held_before, descriptors) = (held_by_us(), open_descriptors());
    let daemon = Daemon::start();
    daemon.await_attached(&place.library);
    subject.call("cudaLaunchKernel", 1_000);
    let ours: Held = held_by_us().difference(&held_before).copied().collect();
    for (kind, at_least) in [("prog_id", 6), ("map_id", 10), ("link_id", 7)] {
        let count = ours.iter().filter(|(held, _)| *held == kind).count();
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
    let place = place();
    let mut subject = place.user();
    let functions = ["cudaLaunchKernel", "cudaMalloc", "cudaFree", "cudaStreamSynchronize"];
    let code = |subject: &Subject| {
        functions.map(|function| {
            code_at(subject.pid(), &place.library, probe_offset(&place.library, function))
        })
    };
    let (before, (sum, fast)) = (code(&subject), subject.call("cudaMalloc", CALLS));
    assert!(before.iter().all(|[in_file, in_memory]| in_file == in_memory), "{before:x?}");
    let daemon = Daemon::start();
    daemon.await_attached(&place.library);
    assert!(
        code(&subject).iter().all(|[_, in_memory]| *in_memory == 0xcc),
        "{:x?}",
        code(&subject)
    );
    assert_eq!(subject.call("cudaMalloc", CALLS).0, sum);
    drop(daemon);
    assert_eq!(code(&subject), before);
    let (sum_after, after) = subject.call("cudaMalloc", CALLS);
    println!("{} ns a call before, {} after", fast / CALLS, after / CALLS);
    // A call with a probe takes more than 1000 ns, one without a few.
    assert!(sum_after == sum && after / CALLS < 200, "{after} ns for {CALLS} calls");
}

/// Also the calls of a process that goes on count no longer once that was asked for.
#[test]
fn the_probes_of_many_files_are_gone_within_two_seconds() {
    const FILES: u32 = 384;
    // As many of one user's files may have probes, whatever else runs here.
    const OF_ONE_OWNER: u32 = 128;
    let place = place();
    let daemon = Daemon::start();
    let (mut subject, mut busy) = (Subject::start(&place.caller), place.user());
    daemon.await_attached(&place.library);
    for number in 1..FILES {
        let library = place.directory.path().join(format!("{number}/libcudart.so.12"));
        fs::create_dir(library.parent().unwrap()).unwrap();
        fs::copy(&place.library, &library).unwrap();
        chown(&library, Some(1 + number / OF_ONE_OWNER), None).unwrap();
        subject.tell(&format!("map {}", library.display()));
    }
    let attached = || {
        let libraries = daemon.probes.status().libraries;
        libraries.iter().filter(|library| library.verdict == Verdict::Attached).count()
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

/// What the workload tells of itself, without what differs between any two runs.
fn run_workload(place: &Place) -> serde_json::Value {
    let libraries = place.directory.path().join("stand-ins");
    let output = Command::new(built("gpucause-workload"))
        .arg("--libs")
        .arg(&libraries)
        .args(["--script", "cudaMalloc:ret=2@7;cudaMemcpyAsync:ret=700@11;nest=1"])
        .args(["--kernels", "4", "calls", "--threads", "2", "--calls", "60000", "--mix"])
        .arg("cudaLaunchKernel=5,cudaMemcpyAsync=2,cudaMalloc=1,cudaFree=1,cudaStreamSynchronize=1")
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
    const ATTACHES: usize = 20;
    let place = place();
    let target = built("gpucause-workload");
    let laid_out = Command::new(&target)
        .arg("lay-out")
        .arg(place.directory.path().join("stand-ins"))
        .status()
        .unwrap();
    assert!(laid_out.success());
    let alone = run_workload(&place);
    assert_eq!(alone["calls"]["cudaLaunchKernel"], 60_000);
    let mut long_lived = place.user();
    let pid = long_lived.pid();
    let done = AtomicBool::new(false);
    let mut counted = 0;
    std::thread::scope(|scope| {
        let ends = Ends(&done);
        let short = scope.spawn(|| {
            let mut runs = 0;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(run_workload(&place), alone);
                runs += 1;
            }
            runs
        });
        let long = scope.spawn(|| {
            let mut rounds = 0u64;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(long_lived.call("cudaMalloc", 10_000).0, 30_000);
                rounds += 1;
            }
            rounds
        });
        for _ in 0..ATTACHES {
            let daemon = Daemon::start();
            daemon.await_attached(&place.library);
            eventually(SOON, "calls", || (daemon.calls(pid, "cudaMalloc") > 100).then_some(()));
            counted += daemon.calls(pid, "cudaMalloc");
        }
        drop(ends);
        let (runs, rounds) = (short.join().unwrap(), long.join().unwrap());
        println!("{runs} runs, and {rounds} rounds of which {counted} calls were counted");
        assert!(runs >= 2 && counted < rounds * 10_000);
    });
}
