//! The built libraries: what they export, how their functions begin, and that the workload's truth is the truth.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpucause_abi::op::{Api, OPS, op_of_symbol};
use gpucause_fake_cuda::{LIBRARIES, lay_out};
use object::{Object as _, ObjectSymbol as _};
use serde_json::{Value, json};

const WORKLOAD: &str = env!("CARGO_BIN_EXE_gpucause-workload");

/// The libraries under the names that programs open, built in this test's profile.
fn libraries() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let built = Path::new(WORKLOAD).parent().expect("a binary lies in a directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg("build").args(LIBRARIES.iter().flat_map(|(package, ..)| ["-p", package]));
        if built.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libraries");
        lay_out(built, &dir).expect("the libraries are built");
        dir
    })
}

fn workload(arguments: &[&str]) -> Command {
    let mut command = Command::new(WORKLOAD);
    command.arg("--libs").arg(libraries()).args(arguments);
    command
}

fn truth(arguments: &[&str]) -> Value {
    let output = workload(arguments).output().expect("the workload runs");
    let text = String::from_utf8(output.stdout).expect("the output is text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {errors}", output.status);
    let line = text.lines().last().expect("there is a result");
    serde_json::from_str(line).expect("the result is JSON")
}

/// Exported functions: address and first byte.
fn exports(file: &str) -> BTreeMap<String, (u64, u8)> {
    let data = std::fs::read(libraries().join(file)).expect("the library is there");
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(&*data).expect("is ELF");
    let text = elf.section_by_name(".text").expect("there is code");
    let code = object::ObjectSection::data(&text).expect("the code is in the file");
    let start = object::ObjectSection::address(&text);
    let functions = elf.dynamic_symbols().filter(object::ObjectSymbol::is_definition);
    functions
        .filter_map(|symbol| {
            let offset = usize::try_from(symbol.address().checked_sub(start)?).ok()?;
            let first = *code.get(offset)?;
            Some((symbol.name().ok()?.to_owned(), (symbol.address(), first)))
        })
        .collect()
}

#[test]
fn every_op_is_exported_and_begins_with_a_push() {
    const PUSH_RBP: u8 = 0x55;
    for (api, file) in [
        (Api::Runtime, "libcudart.so.12"),
        (Api::Driver, "libcuda.so.1"),
        (Api::Nccl, "libnccl.so.2"),
    ] {
        let exports = exports(file);
        for op in OPS.iter().filter(|op| op.api == api) {
            assert!(exports.contains_key(op.name), "{file} lacks {}", op.name);
        }
        for (name, &(_, first)) in exports.iter().filter(|(name, _)| op_of_symbol(name).is_some()) {
            assert!(!cfg!(target_arch = "x86_64") || first == PUSH_RBP, "{name}: {first:#x}");
        }
    }
}

#[test]
fn abi_variants_are_functions_of_their_own_and_nccl_aliases_are_not() {
    let runtime = exports("libcudart.so.12");
    for name in ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"] {
        assert_ne!(runtime[name].0, runtime[&format!("{name}_ptsz")].0, "{name}");
    }
    let driver = exports("libcuda.so.1");
    for name in ["cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoHAsync"] {
        assert_ne!(driver[name].0, driver[&format!("{name}_v2")].0, "{name}");
    }
    let nccl = exports("libnccl.so.2");
    for op in OPS.iter().filter(|op| op.api == Api::Nccl) {
        assert_eq!(nccl[op.name].0, nccl[&format!("p{}", op.name)].0, "{}", op.name);
    }
}

#[test]
fn calls_are_counted_exactly_by_op_and_thread() {
    let mix = "--mix=cudaLaunchKernel=3,cuLaunchKernel=1,ncclAllReduce=1,cudaMemcpyAsync=2";
    let script = "--script=cudaMemcpyAsync:ret=2@10";
    let truth = truth(&[
        "calls",
        "--threads=2",
        "--calls=7000",
        "--kernels=3",
        "--copy-bytes=64",
        mix,
        script,
    ]);
    assert_eq!(
        truth["calls"],
        json!({"cudaLaunchKernel": 6000, "cuLaunchKernel": 2000, "ncclAllReduce": 2000, "cudaMemcpyAsync": 4000})
    );
    assert_eq!(truth["errors"], json!({"cudaMemcpyAsync": {"2": 400}}));
    assert_eq!(truth["copied_bytes"], json!({"h2d": 3600 * 64}));
    assert_eq!(truth["nccl_bytes"], json!({"ncclAllReduce": 2000 * 64}));
    assert_eq!(truth["kernels"].as_object().map(serde_json::Map::len), Some(3));
    assert_eq!(truth["threads"].as_array().map(Vec::len), Some(2));
}

#[test]
fn memory_is_given_back_through_a_nested_driver() {
    let mix = "--mix=cudaMalloc=3,cudaFree=1,cudaMallocHost=1,cudaFreeHost=1";
    let arguments = ["calls", "--calls=600", "--alloc-bytes=1000", mix, "--script=nest=1"];
    let leaking = truth(&arguments);
    assert_eq!(leaking["live_bytes"], 200 * 1000);
    let clean = truth(&[&arguments[..], &["--free-all"]].concat());
    assert_eq!(clean["live_bytes"], 0);
    assert_eq!(clean["errors"], json!({}));
    assert_eq!(clean["calls"]["cudaFree"], 300);
}

#[test]
fn scripted_delays_are_measured() {
    let truth = truth(&["latency", "--delays=50us,2ms", "--repeat=20,3", "--way=sleep", "--list"]);
    for (delay, count) in [(50_000, 20), (2_000_000, 3)] {
        let measured = truth["delays"]
            .as_array()
            .and_then(|delays| delays.iter().find(|row| row["delay_ns"] == delay))
            .unwrap_or_else(|| panic!("{delay} ns is missing"));
        assert_eq!(measured["list_ns"].as_array().map(Vec::len), Some(count));
        assert!(measured["p50_ns"].as_u64() >= Some(delay));
    }
}

#[test]
fn odd_exits_leave_the_process_working() {
    for kind in ["longjmp", "panic", "thread-exit", "exec", "kill", "fork", "fork-inside", "signal"]
    {
        let truth = truth(&["unwind", "--kind", kind, "--count=3", "--calls=50"]);
        if kind == "exec" {
            assert_eq!(truth["calls"]["cudaLaunchKernel"], 50);
            continue;
        }
        let returned = if matches!(kind, "signal" | "fork-inside") { 53 } else { 50 };
        assert_eq!(truth["returned"], returned, "{kind}");
        let children = if kind.starts_with("fork") || kind == "kill" { 3 } else { 0 };
        assert_eq!(truth["children"].as_array().map(Vec::len), Some(children), "{kind}");
    }
}

#[test]
fn the_handshake_shows_the_threads_before_they_work() {
    let mut child = workload(&["calls", "--threads=2", "--calls=10", "--wait", "--hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the workload starts");
    let mut input = child.stdin.take().expect("is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let ready = lines.next().expect("a line comes").expect("is text");
    let ready: Value =
        serde_json::from_str(ready.strip_prefix("ready ").expect("says ready")).expect("is JSON");
    assert_eq!(ready["pid"], child.id());
    let tids = ready["tids"].as_array().expect("is a list");
    let mut names: Vec<String> = tids
        .iter()
        .map(|tid| std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", child.id())))
        .map(|name| name.expect("the thread exists").trim().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["launcher-0", "launcher-1"]);
    writeln!(input, "go").expect("the workload listens");
    let result = lines.next().expect("a line comes").expect("is text");
    assert!(result.starts_with('{'), "{result}");
    assert!(child.try_wait().expect("can be asked").is_none(), "it holds");
    drop(input);
    assert!(child.wait().expect("ends").success());
}

#[test]
fn a_wrong_script_ends_the_process_and_names_the_token() {
    let output = workload(&["calls", "--calls=1", "--script=cudaLunchKernel:spin=1us"])
        .output()
        .expect("the workload runs");
    assert_eq!(output.status.code(), Some(64));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cudaLunchKernel") && errors.contains("GPUCAUSE_FAKE"), "{errors}");
}

#[test]
fn a_missing_library_says_how_to_build_it() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let error = lay_out(&dir.join("nothing"), &dir.join("out")).expect_err("nothing is built");
    assert!(error.to_string().contains("cargo build -p gpucause-fake-cudart"), "{error}");
}

/// The parent of a process; `None` once it has ended.
fn parent_of(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    // Nobody may have waited for one that has.
    let is_over = matches!(fields.next(), Some("Z" | "X"));
    fields.next()?.parse().ok().filter(|_| !is_over)
}

#[test]
fn a_busy_neighbour_is_an_unrelated_process_that_ends_with_the_program_however_that_ends() {
    let mut child =
        workload(&["scenario", "incident", "--with-parent", "--baseline=0", "--seconds=60"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workload starts");
    let own = u64::from(child.id());
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    let injected = lines.find(|line| line.starts_with(r#"{"injected""#)).expect("it begins");
    let injected: Value = serde_json::from_str(&injected).expect("is JSON");
    assert_eq!(injected["injected"]["culprit"]["comm"], "fluent-bit");
    let neighbour = injected["injected"]["culprit"]["pids"][0].as_u64().expect("is a PID");
    let parent = parent_of(neighbour).expect("it runs");
    assert_ne!(parent, own);
    assert_ne!(parent_of(parent), Some(own), "no descendant either");
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    let deadline = Instant::now() + Duration::from_secs(20);
    while parent_of(neighbour).is_some() {
        assert!(Instant::now() < deadline, "it runs on");
    }
}
