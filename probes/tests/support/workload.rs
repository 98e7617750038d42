//! The stand-in CUDA libraries in a folder of the test's own, and workloads that report what they did.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gpucause_abi::op::{OpId, op_of_symbol};
use gpucause_fake_cuda::LIBRARIES;
use gpucause_probes::elf::read_library;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::guest::is_emulated;

/// No step of a workload takes this long unless it hangs.
pub(crate) fn deadline() -> Duration {
    Duration::from_secs(if is_emulated() { 900 } else { 60 })
}

const WORKLOAD: &str = "gpucause-workload";

/// Where Cargo puts libraries and programs: the folder above that of the test program.
fn build_dir() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir =
        program.ancestors().nth(2).context("the test program has no build folder")?.to_owned();
    let built = LIBRARIES.map(|(_, file, _)| file).into_iter().chain([WORKLOAD]);
    let missing: Vec<&str> = built.filter(|file| !dir.join(file).exists()).collect();
    let profile = if dir.ends_with("release") { " --release" } else { "" };
    let packages: String = LIBRARIES.iter().map(|(package, ..)| format!(" -p {package}")).collect();
    ensure!(
        missing.is_empty(),
        "{} lacks {}: build the stand-ins first, with `cargo build{profile} -p gpucause-fake-cuda{packages}`",
        dir.display(),
        missing.join(", ")
    );
    Ok(dir)
}

/// The stand-in libraries under the names that programs open. No other test maps these files, but on an emulated processor: the
/// kernel takes about a tenth of a second to detach a function's perf uprobes.
pub(crate) struct StandIns {
    dir: Arc<TempDir>,
    program: PathBuf,
}

impl StandIns {
    pub(crate) fn lay_out() -> Result<Self> {
        static SHARED: Mutex<Option<Arc<TempDir>>> = Mutex::new(None);
        if !is_emulated() {
            return Self::of_its_own();
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = match shared.as_ref() {
            Some(dir) => Arc::clone(dir),
            None => Arc::clone(shared.insert(Self::of_its_own()?.dir)),
        };
        drop(shared);
        Ok(Self { dir, program: build_dir()?.join(WORKLOAD) })
    }

    fn of_its_own() -> Result<Self> {
        let build = build_dir()?;
        let dir = tempfile::Builder::new().prefix("gpucause-test-").tempdir()?;
        gpucause_fake_cuda::lay_out(&build, dir.path())?;
        Ok(Self { dir: Arc::new(dir), program: build.join(WORKLOAD) })
    }

    /// With a runtime that has no traced functions but these, as it takes the kernel long to detach perf uprobes.
    pub(crate) fn with_few_functions(functions: &[&str]) -> Result<Self> {
        let stand_ins = Self::of_its_own()?;
        let path = stand_ins.dir().join("libcudart.so.12");
        let traced = || -> Result<HashSet<String>> {
            let sites = read_library(&File::open(&path)?)?.sites;
            Ok(sites.into_iter().map(|site| site.symbol).collect())
        };
        let kept: HashSet<_> = functions.iter().map(|&name| name.to_owned()).collect();
        let all = traced()?;
        let renamed: HashSet<_> = all.difference(&kept).map(|symbol| symbol.as_bytes()).collect();
        let mut bytes = fs::read(&path)?;
        let names = bytes.split_mut(|byte| *byte == 0).filter(|name| renamed.contains(&**name));
        names.for_each(|name| name[0] = b'_');
        fs::write(&path, bytes)?;
        let left = traced()?;
        ensure!(left == kept, "{left:?}");
        Ok(stand_ins)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The workload on these libraries, with arguments separated by blanks.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--libs").arg(self.dir()).args(arguments.split_whitespace());
        command
    }

    /// Starts a workload and waits until it says that it is ready.
    pub(crate) fn start(&self, arguments: &str) -> Result<Workload> {
        Workload::start(self.command(arguments)).with_context(|| format!("workload `{arguments}`"))
    }

    /// Starts a workload that others on the CPUs hardly ever interrupt.
    pub(crate) fn start_favoured(&self, arguments: &str) -> Result<Workload> {
        if is_emulated() {
            return self.start(arguments);
        }
        let plain = self.command(arguments);
        let mut favoured = Command::new("nice");
        favoured.args(["-n", "-20"]).arg(plain.get_program()).args(plain.get_args());
        Workload::start(favoured).with_context(|| format!("workload `{arguments}`"))
    }

    /// Runs a workload to its end, from which it returns the truth.
    pub(crate) fn run(&self, arguments: &str) -> Result<Value> {
        let mut workload = self.start(arguments)?;
        let result = workload.result().with_context(|| format!("workload `{arguments}`"))?;
        let status = workload.end()?;
        ensure!(status.success(), "workload `{arguments}`: {status}");
        Ok(result)
    }
}

/// A running workload. It and its children are killed when this is dropped.
pub(crate) struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// How long a line of output may take.
    pub(crate) time_limit: Duration,
}

impl Workload {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own, so that its busy processes end with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} does not start", command.get_program().display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the workload has no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut workload = Self { child, input, lines, time_limit: deadline() };
        let line = workload.line()?;
        ensure!(line.starts_with("ready "), "it said `{line}` instead of being ready");
        Ok(workload)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of output.
    pub(crate) fn line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(self.time_limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("no output within {:?}", self.time_limit),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("it ended before its result, {}", self.child.wait()?)
            }
        }
    }

    /// Lets a workload that was started with `--wait` begin.
    pub(crate) fn go(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("the workload's input is closed")?;
        input.write_all(b"go\n").context("the workload does not listen")
    }

    /// The truth, once all is done.
    pub(crate) fn result(&mut self) -> Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("`{line}` is not a result"))
    }

    /// Closes its input, which ends a workload that holds, and waits until it has ended.
    pub(crate) fn end(&mut self) -> Result<ExitStatus> {
        self.input = None;
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(started.elapsed() < deadline(), "the workload does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).map(Pid::from_raw);
        // It may have ended by itself.
        let _ = group.map(|group| killpg(group, Signal::SIGKILL));
        let _ = self.child.wait();
    }
}

/// A number of a result, such as `/thread/wall_ns`.
pub(crate) fn number(result: &Value, pointer: &str) -> u64 {
    let value = result.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no number {pointer} in {result}"))
}

/// The op of a documented name.
pub(crate) fn op(name: &str) -> OpId {
    op_of_symbol(name).unwrap_or_else(|| panic!("{name} is not traced"))
}

/// Calls by op, as the result's `calls` has them.
pub(crate) fn true_calls(result: &Value) -> BTreeMap<OpId, u64> {
    let calls = result["calls"].as_object().into_iter().flatten();
    calls.map(|(name, count)| (op(name), count.as_u64().unwrap())).collect()
}
