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
    pub(crate) mod guest;
    pub(crate) mod refused;
}

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpucause_abi::op::{Abi, Api, OpId, op_of_symbol};
use gpucause_probes::elf::{LibraryImage, ProbeSite, read_library, read_module};
use gpucause_probes::entry_points::entry_points;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _};
use support::built::built;
use support::daemon::Daemon;
use support::refused::{refusal, sounds_traced};

/// A library that `.ci/real-cuda` has fetched to `target/real-cuda` or where `GPUCAUSE_REAL_CUDA` says.
fn real(name: &str) -> PathBuf {
    let by_default = || built("..").join("real-cuda");
    let directory = std::env::var_os("GPUCAUSE_REAL_CUDA").map_or_else(by_default, PathBuf::from);
    let path = directory.join(name);
    assert!(path.exists(), "{} is missing: run `.ci/real-cuda`", path.display());
    fs::canonicalize(path).unwrap()
}

/// Calls or errors by op, as the workload reports them.
type Truth = BTreeMap<String, u64>;

/// A workload that waits for the start signal.
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

/// Returns true if a function has no probe on arm64 but one at its entry.
fn reads_stack(symbol: &str) -> bool {
    cfg!(target_arch = "aarch64")
        && op_of_symbol(symbol).and_then(OpId::op).is_some_and(|op| op.reads_stack(Abi::Aarch64))
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
        let slow = status.slow.iter().filter(|symbol| !reads_stack(symbol));
        assert_eq!(slow.count(), 0, "{:?}", status.slow);
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
    assert_eq!(process.measures.abandoned_calls, 0);
}

/// Every library, with the layer that it has.
#[cfg(target_arch = "x86_64")]
const LIBRARIES: [(&str, Api); 8] = [
    ("11/libcudart.so.11.0", Api::Runtime),
    ("12.1/libcudart.so.12", Api::Runtime),
    ("12/libcudart.so.12", Api::Runtime),
    ("13/libcudart.so.13", Api::Runtime),
    ("driver/libcuda.so.1", Api::Driver),
    ("nccl-2.18/libnccl.so.2", Api::Nccl),
    ("nccl-2.21/libnccl.so.2", Api::Nccl),
    ("nccl/libnccl.so.2", Api::Nccl),
];
#[cfg(target_arch = "aarch64")]
const LIBRARIES: [(&str, Api); 4] = [
    ("12/libcudart.so.12", Api::Runtime),
    ("13/libcudart.so.13", Api::Runtime),
    ("driver/libcuda.so.1", Api::Driver),
    ("nccl/libnccl.so.2", Api::Nccl),
];

/// Libraries that ask the newest drivers for their functions, by name.
const CALLERS_OF_NEWER_DRIVERS: [&str; 2] = ["13/libcudart.so.13", "cuda-bindings"];

/// Functions that crash when their arguments are null.
const CRASHING: [&str; 3] =
    ["cuGraphInstantiate", "cuGraphInstantiateWithParams", "ncclCommShrink"];

/// Functions of NCCL that others of its functions call.
const NESTED: [&str; 3] = ["ncclGroupStart", "ncclGroupEnd", "ncclBroadcast"];

fn image(path: &Path) -> LibraryImage {
    read_library(&fs::File::open(path).unwrap()).unwrap()
}

/// The contents of all files below a path.
fn contents(path: &Path) -> Vec<Vec<u8>> {
    if !path.is_dir() {
        return vec![fs::read(path).unwrap()];
    }
    fs::read_dir(path).unwrap().flat_map(|entry| contents(&entry.unwrap().path())).collect()
}

#[test]
fn every_operation_is_a_function_of_a_library_or_asked_for_by_name() {
    let images = LIBRARIES.map(|(library, _)| image(&real(library)));
    let exported: BTreeSet<OpId> =
        images.iter().flat_map(|image| image.sites.iter().map(|site| site.op)).collect();
    let callers: Vec<_> =
        CALLERS_OF_NEWER_DRIVERS.iter().flat_map(|caller| contents(&real(caller))).collect();
    let strings = callers.iter().flat_map(|file| file.split(|&byte| byte == 0));
    let asked: BTreeSet<_> = strings.filter(|string| string.starts_with(b"cu")).collect();
    for op in OpId::all().filter(|id| !exported.contains(id)).filter_map(OpId::op) {
        let known = op.api == Api::Driver && asked.contains(op.name.as_bytes());
        assert!(known, "no library has or asks for {}", op.name);
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn nearly_every_function_is_seen_without_a_single_step() {
    for (library, _) in LIBRARIES {
        let image = image(&real(library));
        let slow: Vec<_> =
            image.slow_sites().map(|own| &*own.symbol).filter(|own| !reads_stack(own)).collect();
        let most = if library.starts_with("nccl") { image.sites.len() / 20 } else { 0 };
        assert!(slow.len() <= most, "{library}: {slow:?} of {}", image.sites.len());
    }
}

/// Names of functions, without the suffixes of their versions.
fn exported(path: &Path) -> BTreeSet<String> {
    let bytes = fs::read(path).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let defined = file.dynamic_symbols().filter(object::ObjectSymbol::is_definition);
    let functions = defined.filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    functions.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

/// Names of driver functions that a program has as text, to ask the driver for them.
fn asked_for(path: &Path) -> BTreeSet<String> {
    let bytes = fs::read(path).unwrap();
    let texts = bytes.split(|&byte| byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let names = texts.map(|text| text.trim_start_matches('_'));
    let is_function = |name: &&str| {
        let rest = name.strip_prefix("cu").filter(|rest| rest.starts_with(char::is_uppercase));
        rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
    };
    names.filter(is_function).map(str::to_owned).collect()
}

#[test]
fn every_function_that_acts_is_traced_or_refused_with_a_reason() {
    let mut names: BTreeSet<String> =
        LIBRARIES.iter().flat_map(|(library, _)| exported(&real(library))).collect();
    names.extend(asked_for(&real("13/libcudart.so.13")));
    #[cfg(target_arch = "x86_64")]
    for file in fs::read_dir(real("cuda-bindings/cuda/bindings/_internal")).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("driver.") {
            names.extend(asked_for(&path));
        }
    }
    let of_cuda = |name: &&String| {
        let rest = ["cuda", "cu", "nccl"].iter().find_map(|layer| name.strip_prefix(layer));
        rest.is_some_and(|rest| rest.starts_with(char::is_uppercase))
    };
    let names: Vec<_> = names.iter().filter(of_cuda).collect();
    assert!(names.len() > 1000, "{}", names.len());
    let missing: Vec<_> = names
        .iter()
        .filter(|name| {
            op_of_symbol(name).is_none() && sounds_traced(name) && refusal(name).is_none()
        })
        .collect();
    assert!(missing.is_empty(), "neither in the table nor refused: {missing:?}");
}

#[test]
fn each_operation_of_every_library_is_counted_exactly() {
    let runtime = real("12/libcudart.so.12");
    for (name, api) in LIBRARIES {
        let library = real(name);
        let sites = image(&library).sites;
        let named = |site: &&ProbeSite| {
            site.op.op().is_some_and(|op| op.name == site.symbol && op.api == api)
                && !CRASHING.contains(&&*site.symbol)
                && !NESTED.contains(&&*site.symbol)
        };
        let mix: Vec<&str> = sites.iter().filter(named).map(|site| &*site.symbol).collect();
        assert!(mix.len() >= if api == Api::Nccl { 14 } else { 100 }, "{name}: {mix:?}");
        let calls = (3 * mix.len()).to_string();
        let arguments = ["--calls", &calls, "--mix", &mix.join(",")];
        let mut workload = match api {
            Api::Runtime => Workload::start(&library, None, &arguments),
            Api::Driver | Api::Nccl => Workload::start(&runtime, Some(&library), &arguments),
        };
        let daemon = Daemon::start();
        let status = daemon.await_attached(&library);
        println!("{name}: {} sites of {} ops", status.sites, status.ops);
        let (calls, errors) = workload.run();
        assert_eq!(calls, mix.iter().map(|&op| (op.to_owned(), 3)).collect(), "{name}");
        let counted = mix.iter().map(|&op| (op.to_owned(), daemon.calls(workload.pid(), op)));
        assert_eq!(counted.collect::<Truth>(), calls, "{name}");
        let mut seen = counted_errors(&daemon, workload.pid());
        seen.retain(|(op, _), _| calls.contains_key(op));
        assert_eq!(seen, errors, "{name}");
    }
}

#[test]
fn the_driver_hands_out_only_functions_that_are_probed() {
    let driver = real("driver/libcuda.so.1");
    let mut image = image(&driver);
    let found = entry_points(&driver, &image).unwrap();
    println!("libcuda: {} entry points compared", found.compared);
    assert!(found.compared > 1000 && found.not_probed.is_empty(), "{found:?}");
    // Functions whose probes are missing are named.
    image.sites.retain(|site| !site.symbol.starts_with("cuMemAlloc_v2"));
    let found = entry_points(&driver, &image).unwrap();
    assert_eq!(found.not_probed.into_iter().collect::<Vec<_>>(), ["cuMemAlloc"]);
}

/// A Python program that waits for the start signal; reports its calls by op.
struct Script {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Script {
    fn start(modules: &str, script: &str) -> Self {
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).env("PYTHONPATH", real(modules));
        command.env("LD_LIBRARY_PATH", real("driver"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        Self { child, output }
    }

    /// Lets it work until it says that it is done.
    fn run(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap(), "go").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_runtime_inside_a_module_of_cupy_is_counted_exactly() {
    let script = "
import cupy_backends.cuda.api.runtime as runtime
def call(times, function, *arguments):
    for _ in range(times):
        try: function(*arguments)
        except runtime.CUDARuntimeError: pass
print('ready', flush=True); input()
call(50, runtime.malloc, 100); call(30, runtime.deviceSynchronize); call(20, runtime.streamSynchronize, 0)
call(10, runtime.memGetInfo); call(5, runtime.eventCreate)
print('done', flush=True); input()
";
    let mut script = Script::start("cupy", script);
    let daemon = Daemon::start();
    let modules = fs::read_dir(real("cupy/cupy_backends/cuda/api")).unwrap();
    let mut modules = modules.map(|entry| entry.unwrap().path());
    let is_runtime = |path: &PathBuf| path.to_string_lossy().contains("/runtime.");
    let status = daemon.await_attached(&modules.find(is_runtime).unwrap());
    assert!(status.sites > 100, "{}", status.sites);
    script.run();
    let calls = |op| daemon.calls(script.child.id(), op);
    assert_eq!(calls("cudaMalloc"), 50);
    assert_eq!(calls("cudaDeviceSynchronize"), 30);
    assert_eq!(calls("cudaStreamSynchronize"), 20);
    assert_eq!(calls("cudaMemGetInfo"), 10);
    assert_eq!(calls("cudaEventCreate"), 5);
    let errors = counted_errors(&daemon, script.child.id());
    let failed = errors.iter().filter(|((op, _), _)| op == "cudaMalloc");
    assert_eq!(failed.map(|(_, count)| count).sum::<u64>(), 50);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn modules_of_jax_that_load_the_runtime_have_none() {
    let files = fs::read_dir(real("jax/jax_cuda13_plugin")).unwrap();
    let mut with_stubs = 0;
    for path in files.map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "so") {
            continue;
        }
        let file = fs::File::open(&path).unwrap();
        let stubs = read_library(&file).unwrap().sites.len();
        with_stubs += usize::from(stubs > 100);
        assert_eq!(read_module(&file).unwrap().sites, [], "{} of {stubs}", path.display());
    }
    assert!(with_stubs > 8, "{with_stubs}");
}

#[test]
fn calls_that_cuda_bindings_make_of_the_driver_are_counted_exactly() {
    let script = "
from cuda.bindings import driver
driver.cuInit(0)
print('ready', flush=True); input()
for _ in range(40): driver.cuInit(0)
for _ in range(30): driver.cuMemAlloc(100)
for _ in range(20): driver.cuMemGetInfo()
for _ in range(10): driver.cuStreamCreate(0)
print('done', flush=True); input()
";
    let mut script = Script::start("cuda-bindings", script);
    let daemon = Daemon::start();
    daemon.await_attached(&real("driver/libcuda.so.1"));
    script.run();
    let counted = ["cuInit", "cuMemAlloc", "cuMemGetInfo", "cuStreamCreate"]
        .map(|op| daemon.calls(script.child.id(), op));
    assert_eq!(counted, [40, 30, 20, 10]);
}

#[test]
fn functions_of_the_real_nccl_are_found_once_each() {
    for (library, _) in LIBRARIES.into_iter().filter(|&(_, api)| api == Api::Nccl) {
        let image = image(&real(library));
        println!("{library}: {} sites, {} slow", image.sites.len(), image.slow_sites().count());
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
}
