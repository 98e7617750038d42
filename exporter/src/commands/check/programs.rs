//! The eBPF programs and the libraries that processes map now: loads them as the exporter does.

use std::time::{Duration, Instant};

use gpucause_probes::registry::{LibraryStatus, LibraryVerdict};
use gpucause_probes::thread_records::ThreadRecords;
use gpucause_probes::verdict::ProgramVerdict;
use gpucause_probes::{Options, Probes, Status};

use super::{Point, State, installed};

/// Time for the discovery of mapped libraries.
const FIND_DEADLINE: Duration = Duration::from_secs(10);

/// A point for each program and library.
pub(super) fn report(options: Options) -> Vec<Point> {
    // Calibration makes calls, which need a record.
    let probes = match Probes::start(Options { calibrate: true, ..options }) {
        Ok(probes) => probes,
        Err(error) => return vec![Point::failed("eBPF programs", &error.to_string()).required()],
    };
    let start = Instant::now();
    while !probes.status().is_ready() && start.elapsed() < FIND_DEADLINE {
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = probes.status();
    let mut points = Vec::new();
    let mut attached = 0u32;
    for program in &status.programs {
        let (state, detail) = match &program.verdict {
            ProgramVerdict::Attached => {
                attached += 1;
                continue;
            }
            ProgramVerdict::Disabled => (State::Disabled, "not requested".to_owned()),
            ProgramVerdict::Unsupported(reason) => (State::Unsupported, reason.clone()),
            ProgramVerdict::Broken(reason) => (State::Failed, reason.clone()),
        };
        points.push(Point::new(state, format!("program {}", program.program), detail));
    }
    if attached > 0 {
        points.insert(0, Point::ok("eBPF programs", format!("{attached} loaded and attached")));
    }
    if status.thread_records != ThreadRecords::Granted {
        let detail = "the kernel refuses records of threads, so no call is counted";
        let point = Point::new(State::Failed, "thread records", detail);
        points.push(point.advise("use another kernel or processor").required());
    }
    points.extend(libraries(&status));
    points
}

fn libraries(status: &Status) -> Vec<Point> {
    let mut points = Vec::new();
    if !status.discovery.watching {
        let detail = "new libraries are found by periodic scans only";
        let point = Point::new(State::Disabled, "mmap events", detail);
        points.push(point.advise("grant CAP_PERFMON to attach as they are mapped"));
    }
    if status.libraries.is_empty() {
        let detail = "not mapped by any process now; probes are attached when one maps them";
        points.push(Point::ok("CUDA libraries", detail));
    }
    for library in &status.libraries {
        points.push(point_of(library));
        let slow = library.slow.iter().map(|symbol| &**symbol);
        points.extend(installed::slow_launch(&library.path, slow));
    }
    points
}

fn point_of(library: &LibraryStatus) -> Point {
    let mut detail = library.verdict.to_string();
    if library.sites > 0 {
        detail.push_str(&format!(": {} functions, {} operations", library.sites, library.ops));
    }
    if !library.slow.is_empty() {
        detail.push_str(&format!(
            "; a probe costs about 10 times as much at {}",
            library.slow.join(", ")
        ));
    }
    if !library.left_out.is_empty() {
        detail.push_str("; not probed: ");
        detail.push_str(&library.left_out.join(", "));
    }
    if !library.replaced.is_empty() {
        detail.push_str("; not probed while a process replaces their code, as UCX does: ");
        detail.push_str(&library.replaced.join(", "));
    }
    let path = library.path.to_string_lossy();
    match library.verdict {
        LibraryVerdict::Attached if !library.replaced.is_empty() => {
            Point::new(State::Disabled, path, detail)
                .advise("nothing is to be done: they are probed again when that process has ended")
        }
        LibraryVerdict::Attached if library.left_out.is_empty() => Point::ok(path, detail),
        LibraryVerdict::Attached | LibraryVerdict::SingleStepped => {
            Point::new(State::Disabled, path, detail).advise(
                "a single step can crash a program on real arm64 processors; probe.risky_single_steps probes these functions all the same",
            )
        }
        LibraryVerdict::NoSymbols | LibraryVerdict::Broken(_) => {
            Point::new(State::Unsupported, path, detail)
        }
        LibraryVerdict::Refused(_) => {
            Point::new(State::Failed, path, detail).advise("see the kernel's log: dmesg")
        }
        LibraryVerdict::OverLimit => Point::new(State::Failed, path, detail)
            .advise("end programs that map copies of the CUDA libraries"),
    }
}
