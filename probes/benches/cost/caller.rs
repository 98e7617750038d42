//! The child process that makes the probed calls, and how it is started.

use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpucause_abi::Tgid;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::Series;

/// Parts that calls and switches are timed in.
pub(crate) const BATCHES: u64 = 50;

/// Two windows in which launches are counted, and time to change probes.
const WARM_UP: Duration = Duration::from_millis(2_500);

/// Stands for the library function; frame pointers give it the prologue that the real one has.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cudaLaunchKernel(function: usize) -> i32 {
    black_box(function);
    0
}

/// Makes the calls on request, and prints nanoseconds per call.
pub(crate) fn run(count: u64) -> Result<()> {
    only_on(0)?;
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let call: extern "C" fn(usize) -> i32 = black_box(cudaLaunchKernel);
    println!("{}", each(count, || black_box(call(0x5eed)))?);
    Ok(())
}

/// Stands for the driver's function.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cuLaunchKernel(function: usize) -> i32 {
    black_box(function);
    0
}

/// A launch as NVIDIA's runtime makes it, by the driver.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cudaLaunchKernelExC(function: usize) -> i32 {
    let driver: extern "C" fn(usize) -> i32 = black_box(cuLaunchKernel);
    black_box(driver(black_box(function)))
}

/// Launches until the launch step is decided, then prints nanoseconds per launch.
pub(crate) fn run_real(count: u64) -> Result<()> {
    only_on(0)?;
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let call: extern "C" fn(usize) -> i32 = black_box(cudaLaunchKernelExC);
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        for _ in 0..100 {
            call(0x5eed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{}", each(count, || black_box(call(0x5eed)))?);
    Ok(())
}

/// How long a call takes: the CPU time of the thread, as other load is not to count, in the median of many batches, as what the
/// host and its other guests do to a few of them is not either.
fn each(count: u64, call: impl Fn() -> i32) -> Result<f64> {
    let batch = count / BATCHES;
    let mut batches = Series::new("batches");
    for _ in 0..BATCHES {
        let start = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        for _ in 0..batch {
            call();
        }
        let end = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        batches.runs.push((end - start).num_nanoseconds() as f64 / batch as f64);
    }
    Ok(batches.median())
}

/// Binds the calling thread to one CPU.
pub(crate) fn only_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// A child of this program that waits for the word.
pub(crate) struct Child {
    process: std::process::Child,
    word: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(task: &str, count: u64) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([task, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let word = process.stdin.take().context("no stdin")?;
        let mut answer = BufReader::new(process.stdout.take().context("no stdout")?);
        answer.read_line(&mut String::new())?;
        Ok(Self { process, word, answer })
    }

    /// The process.
    pub(crate) fn tgid(&self) -> Tgid {
        Tgid(self.process.id())
    }

    /// Lets it work; the nanoseconds each call or switch took.
    pub(crate) fn go(mut self) -> Result<f64> {
        self.word.write_all(b"g")?;
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        self.process.wait()?;
        line.trim().parse().with_context(|| format!("the child said {line:?}"))
    }
}
