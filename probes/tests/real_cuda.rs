//! NVIDIA's own libraries, on a host without a GPU: every call fails, is counted, and fails as it does without probes.
//! Needs root, and what `.ci/real-cuda` fetches.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test may panic"
)]

mod support {
    pub(crate) mod built;
    pub(crate) mod daemon;
}

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpucause_abi::op::op_of_symbol;
use gpucause_probes::elf::read_library;
use support::built::built;
use support::daemon::Daemon;

/// A library that `.ci/real-cuda` has fetched to `target/real-cuda` or where `GPUCAUSE_REAL_CUDA` says.
fn real(name: &str) -> PathBuf {
    let by_default = || built("..").join("real-cuda");
    let directory = std::env::var_os("GPUCAUSE_REAL_CUDA").map_or_else(by_default, PathBuf::from);
    let path = directory.join(name);
    assert!(path.exists(), "{} is missing: run `.ci/real-cuda`", path.display());
    fs::canonicalize(path).unwrap()
}

/// Calls or errors by op, as the workload tells them.
type Truth = BTreeMap<String, u64>;

/// A workload that waits to be told to begin.
struct Workload {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Workload {
    fn start(cudart: &Path, driver: Option<&Path>, calls: &[&str]) -> Self {
        let mut command = Command::new(built("gpucause-workload"));
        command.arg("--cudart").arg(cudart).args(["--wait", "--hold", "calls"]).args(calls);
        if let Some(driver) = driver {
            command.arg("--libs").arg(driver.parent().unwrap());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut workload = Self { child, output };
        assert!(workload.line().starts_with("ready "));
        workload
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it work; returns its calls by op, and its errors by op and code.
    fn run(&mut self) -> (Truth, BTreeMap<(String, u32), u64>) {
        writeln!(self.child.stdin.as_ref().unwrap(), "go").unwrap();
        let result: serde_json::Value = serde_json::from_str(&self.line()).unwrap();
        let numbers = |object: &serde_json::Value| -> Vec<(String, u64)> {
            let object = object.as_object().unwrap();
            object.iter().map(|(key, value)| (key.clone(), value.as_u64().unwrap())).collect()
        };
        let errors = result["errors"].as_object().unwrap().iter().flat_map(|(op, codes)| {
            let of_op = numbers(codes).into_iter();
            of_op.map(|(code, count)| ((op.clone(), code.parse().unwrap()), count))
        });
        (numbers(&result["calls"]).into_iter().collect(), errors.collect())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The errors of a process by op and code.
fn counted_errors(daemon: &Daemon, pid: u32) -> BTreeMap<(String, u32), u64> {
    let mut errors = BTreeMap::new();
    for (op, code, count) in daemon.accounts(pid).into_iter().flat_map(|process| process.errors) {
        *errors.entry((op.op().unwrap().name.to_owned(), code)).or_default() += count;
    }
    errors
}

const MIX: &str =
    "cudaLaunchKernel=8,cudaMemcpyAsync=3,cudaMalloc=2,cudaStreamSynchronize=1,cudaEventRecord=1";

#[test]
fn calls_of_the_real_runtimes_and_their_errors_are_counted_exactly() {
    for (name, threads) in [("12/libcudart.so.12", 1), ("13/libcudart.so.13", 3)] {
        let library = real(name);
        let mut early = Workload::start(&library, None, &["--calls", "30000", "--mix", MIX]);
        let daemon = Daemon::start();
        let status = daemon.await_attached(&library);
        println!("{name}: {} sites of {} ops", status.sites, status.ops);
        assert!(status.sites > 60, "{}", status.sites);
        assert_eq!(status.slow, [""; 0], "all begin with a push");
        let count = threads.to_string();
        let late = ["--threads", &count, "--calls", "15000", "--mix", MIX];
        let mut late = Workload::start(&library, None, &late);
        for workload in [&mut early, &mut late] {
            let (calls, errors) = workload.run();
            assert_eq!(calls.len(), 5);
            for (op, count) in calls {
                assert_eq!(daemon.calls(workload.pid(), &op), count, "{op}");
                // cudaErrorInsufficientDriver: there is no driver at all.
                assert_eq!(errors.get(&(op.clone(), 35)), Some(&count), "{op}");
            }
            assert_eq!(counted_errors(&daemon, workload.pid()), errors);
        }
    }
}

#[test]
fn calls_of_the_real_driver_and_its_errors_are_counted_exactly() {
    let (runtime, driver) = (real("12/libcudart.so.12"), real("driver/libcuda.so.1"));
    let calls = ["--calls", "40", "--mix", "cuInit=1,cuMemAlloc=2,cuStreamSynchronize=1"];
    let mut workload = Workload::start(&runtime, Some(&driver), &calls);
    let daemon = Daemon::start();
    let status = daemon.await_attached(&driver);
    println!("libcuda: {} sites of {} ops, {} slow", status.sites, status.ops, status.slow.len());
    assert_eq!(status.slow, [""; 0], "all begin with a check for a debugger");
    assert!(status.sites > 80, "{}", status.sites);
    let (calls, errors) = workload.run();
    assert_eq!(calls["cuInit"], 10);
    // CUDA_ERROR_NO_DEVICE and, without it, CUDA_ERROR_NOT_INITIALIZED.
    assert_eq!(errors[&("cuInit".to_owned(), 100)], 10);
    assert_eq!(errors[&("cuMemAlloc".to_owned(), 3)], 20);
    for (op, count) in calls {
        assert_eq!(daemon.calls(workload.pid(), &op), count, "{op}");
    }
    assert_eq!(counted_errors(&daemon, workload.pid()), errors);
}

#[test]
fn a_runtime_call_and_the_driver_call_within_are_both_counted() {
    let (runtime, driver) = (real("12/libcudart.so.12"), real("driver/libcuda.so.1"));
    let calls = ["--calls", "10", "--mix", "cudaMalloc=1,cuMemAlloc=1"];
    let mut workload = Workload::start(&runtime, Some(&driver), &calls);
    let daemon = Daemon::start();
    daemon.await_attached(&driver);
    let (calls, errors) = workload.run();
    assert_eq!(calls["cudaMalloc"], 5);
    assert_eq!(daemon.calls(workload.pid(), "cudaMalloc"), 5);
    // The first one initialises the driver, which fails.
    assert_eq!(daemon.calls(workload.pid(), "cuInit"), 1);
    let mut all = counted_errors(&daemon, workload.pid());
    assert_eq!(all.remove(&("cuInit".to_owned(), 100)), Some(1));
    assert_eq!(all, errors);
    let [process] = &daemon.accounts(workload.pid())[..] else { panic!("one process") };
    let longest = |op| process.call_durations(op_of_symbol(op).unwrap()).quantile(1.0);
    assert!(longest("cudaMalloc") >= longest("cuInit"));
    assert_eq!(process.abandoned_calls, 0);
}

#[test]
#[ignore = "needs what `.ci/real-cuda --with-nccl` fetches: 300 MB"]
fn functions_of_the_real_nccl_are_found_once_each() {
    let library = real("nccl/libnccl.so.2");
    let image = read_library(&fs::File::open(&library).unwrap()).unwrap();
    println!("libnccl: {} sites, {} slow", image.sites.len(), image.slow_sites().count());
    // It has the CUDA runtime linked in.
    let symbols = image.sites.iter().map(|site| site.symbol.as_str());
    let mut symbols: Vec<_> = symbols.filter(|symbol| symbol.contains("nccl")).collect();
    symbols.sort_unstable();
    for function in ["ncclAllReduce", "ncclBroadcast", "ncclSend", "ncclRecv", "ncclGroupEnd"] {
        assert!(symbols.contains(&function), "{function}: {symbols:?}");
    }
    assert!(symbols.is_sorted_by(|a, b| a < b), "{symbols:?}");
    let traced = |symbol: &&str| symbol.starts_with("nccl") && *symbol != "ncclGetVersion";
    assert!(symbols.iter().all(traced), "{symbols:?}");
}
