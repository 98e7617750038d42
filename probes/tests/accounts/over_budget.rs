//! Each call of a process over the budget is counted once and with its bytes, through whatever library it goes.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gpucause_abi::Nanos;
use gpucause_abi::hist::slot_of;
use gpucause_abi::record::SelfCounter;
use gpucause_abi::snapshot::{LaunchStep, ProcessSnapshot};
use gpucause_probes::Options;
use gpucause_probes::registry::LibraryVerdict;
use tempfile::TempDir;

use crate::compile::compile;
use crate::observe::{Observed, until};
use crate::workload::{StandIns, number, op};

/// Launches by a program without our stand-ins, and more than some batches of the programs.
const LAUNCHES: u64 = 3_000;
/// So many times as many are a sample.
const BATCHES: u64 = 20;

/// A driver, whose function begins as NVIDIA's do.
const DRIVER: &str = "unsigned cuLaunchKernel(unsigned long kernel) { return kernel == 0; }";
/// One whose every 64th call takes longer.
const PERIODIC_DRIVER: &str = r#"
unsigned cuLaunchKernel(unsigned long kernel)
{
	static unsigned calls;
	volatile unsigned left = ++calls % 64 == 0 ? 200000 : 0;
	while (left)
		left--;
	return kernel == 0;
}
"#;
/// One whose function begins with an instruction that the kernel single-steps.
#[cfg(target_arch = "x86_64")]
const STEPPED_DRIVER: &str = r#"
__asm__(".text\n.globl cuLaunchKernel\n.type cuLaunchKernel,@function\ncuLaunchKernel:\n"
	"xor %eax, %eax\nret\n.size cuLaunchKernel, .-cuLaunchKernel\n");
"#;
/// A library before the driver's, as those that share a GPU among containers.
const INTERPOSER: &str = r#"
#include <dlfcn.h>
static unsigned (*driver)(unsigned long);
__attribute__((constructor)) static void find(void)
{
	driver = (unsigned (*)(unsigned long))dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL), "cuLaunchKernel");
}
unsigned cuLaunchKernel(unsigned long kernel)
{
	volatile unsigned result = driver(kernel);
	return result;
}
"#;
/// Calls the function of a library so many times after each line of input.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments)
{
	unsigned (*launch)(unsigned long) = (unsigned (*)(unsigned long))dlsym(dlopen(arguments[1], RTLD_NOW), "cuLaunchKernel");
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF) {
		for (long left = atol(arguments[2]); left > 0; left--)
			launch(0x5eed);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
"#;

/// A program that is killed when dropped.
struct Launcher {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Launcher {
    fn start(dir: &Path, library: &Path) -> Result<Self> {
        let mut child = Command::new(dir.join("program"))
            .args([library.as_os_str(), LAUNCHES.to_string().as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(child.stdout.take().context("piped")?).lines();
        Ok(Self { child, answers })
    }

    /// Makes it launch once everything that it uses is observed.
    fn launch(&mut self, observed: &Observed, libraries: &[&Path]) -> Result<ProcessSnapshot> {
        let is_attached = |path: &&Path| {
            let known = observed.status().libraries;
            known.iter().any(|own| own.path == *path && own.verdict == LibraryVerdict::Attached)
        };
        self.answers.next().context("it does not start")??;
        until(
            || Ok(libraries.iter().all(is_attached).then_some(())),
            || format!("not attached: {:?}", observed.status().libraries),
        )?;
        self.launch_again()?;
        observed.process(self.child.id())
    }

    fn launch_again(&mut self) -> Result<()> {
        self.child.stdin.as_mut().context("piped")?.write_all(b"\n")?;
        self.answers.next().context("it does not launch")??;
        Ok(())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_launch_through_a_library_before_the_drivers_is_one_at_every_step() -> Result<()> {
    let dir = TempDir::new()?;
    let (driver, interposer) =
        (dir.path().join("driver/libcuda.so.1"), dir.path().join("libcuda.so.1"));
    fs::create_dir(dir.path().join("driver"))?;
    compile(DRIVER, &driver, &["-shared", "-fPIC"])?;
    let path = format!("-DDRIVER=\"{}\"", driver.display());
    compile(INTERPOSER, &interposer, &["-shared", "-fPIC", &path])?;
    compile(PROGRAM, &dir.path().join("program"), &[])?;
    for step in [LaunchStep::Full, LaunchStep::Sampled { one_in: 64 }] {
        let options = Options { step: Some(step), ..Options::default() };
        let observed = Observed::start(options)?;
        let mut launcher = Launcher::start(dir.path(), &interposer)?;
        let process = launcher.launch(&observed, &[&driver, &interposer])?;
        assert_eq!(process.launches(), LAUNCHES, "{step:?}: {:?}", process.launches);
    }
    Ok(())
}

#[test]
fn launches_that_are_timed_stand_for_all_of_a_program_that_repeats_itself() -> Result<()> {
    const ONE_IN: u32 = 64;
    let dir = TempDir::new()?;
    let driver = dir.path().join("libcuda.so.1");
    compile(PERIODIC_DRIVER, &driver, &["-shared", "-fPIC"])?;
    compile(PROGRAM, &dir.path().join("program"), &[])?;
    let step = LaunchStep::Sampled { one_in: ONE_IN };
    let observed = Observed::start(Options { step: Some(step), ..Options::default() })?;
    let mut launcher = Launcher::start(dir.path(), &driver)?;
    launcher.launch(&observed, &[&driver])?;
    let process = || observed.process(launcher.child.id());
    until(|| Ok((process()?.launches.step == step).then_some(())), || "not sampled".into())?;
    let before = process()?;
    for _ in 0..BATCHES {
        launcher.launch_again()?;
    }
    let after = observed.process(launcher.child.id())?;
    let durations = after.call_durations(op("cuLaunchKernel"));
    let durations = durations.since(&before.call_durations(op("cuLaunchKernel")));
    let expected = BATCHES * LAUNCHES / u64::from(ONE_IN);
    ensure!(durations.count().abs_diff(expected) < expected / 4, "{} are timed", durations.count());
    let is_long = |slot: u16| usize::from(slot) >= slot_of(Nanos(20_000));
    let long: u64 = durations.slots.iter().filter(|own| is_long(own.0)).map(|own| own.1).sum();
    // One in 64 of them, too: 15 are expected.
    ensure!((2..=50).contains(&long), "{long} of {} are long", durations.count());
    Ok(())
}

/// Programs that measured a step to cost more than the rest of a hit: the first, or the third of five where other load slowed one down.
#[cfg(target_arch = "x86_64")]
fn observed_with_dear_steps() -> Result<Observed> {
    let (mut measured, mut dear) = (Vec::new(), 0);
    for _ in 0..5 {
        let observed = Observed::start(Options { calibrate: true, ..Options::default() })?;
        let status = observed.status();
        let (entry, step) = status.entry_cost.zip(status.step_cost).context("not measured")?;
        measured.push((entry, step));
        dear += u32::from(step > entry);
        if dear == 3 || (dear == 1 && measured.len() == 1) {
            return Ok(observed);
        }
    }
    anyhow::bail!("a step cost less than the rest of a hit in most of {measured:?}")
}

#[cfg(target_arch = "x86_64")]
#[test]
fn hits_that_the_kernel_single_steps_are_known_as_such_and_cost_more() -> Result<()> {
    let dir = TempDir::new()?;
    let driver = dir.path().join("libcuda.so.1");
    compile(STEPPED_DRIVER, &driver, &["-shared", "-fPIC"])?;
    compile(PROGRAM, &dir.path().join("program"), &[])?;
    let observed = observed_with_dear_steps()?;
    let before = observed.counter(SelfCounter::SingleStepped)?;
    let mut launcher = Launcher::start(dir.path(), &driver)?;
    let process = launcher.launch(&observed, &[&driver])?;
    assert_eq!(process.launches(), LAUNCHES);
    assert_eq!(observed.counter(SelfCounter::SingleStepped)? - before, LAUNCHES);
    Ok(())
}

#[test]
fn asynchronous_calls_over_the_budget_are_counted_with_their_bytes_and_what_waits_is_timed()
-> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let keeper = stand_ins.start("--hold --script nest=1 calls --calls 0")?;
    let options = Options { hit_cost: Some((Nanos(1_500), Nanos(800))), ..Options::default() };
    let observed = Observed::start(options)?;
    for library in ["libcudart.so.12", "libcuda.so.1"] {
        observed.wait_for(&stand_ins, library)?;
    }
    drop(keeper);
    // So little that nearly all is only counted, and calls are counted whatever that takes.
    observed.set_limits(1e-6, f64::INFINITY);
    let mix = "cuMemcpyHtoDAsync=4,cudaMemcpyAsync=1,cudaMemsetAsync=2,cudaEventQuery=2,cudaMalloc=1,cudaFree=1,\
               cudaStreamSynchronize=1,cudaLaunchKernel=4";
    let arguments =
        format!("--hold --wait --copy-bytes 7422 --copy-kind h2d calls --calls 30000 --mix {mix}");
    let mut workload = stand_ins.start(&arguments)?;
    workload.go()?;
    let truth = workload.result()?;
    let process = observed.process(workload.pid())?;
    for (name, is_sampled) in [
        ("cuMemcpyHtoDAsync", true),
        ("cudaMemsetAsync", true),
        // That may be to the host.
        ("cudaMemcpyAsync", false),
        ("cudaEventQuery", true),
        ("cudaMalloc", false),
        ("cudaFree", false),
        ("cudaStreamSynchronize", false),
    ] {
        let made = number(&truth, &format!("/calls/{name}"));
        let timed = process.call_durations(op(name)).count();
        let untimed = process.untimed_calls.iter().filter(|(own, _)| *own == op(name));
        let untimed: u64 = untimed.map(|(_, calls)| calls).sum();
        assert_eq!(timed + untimed, made, "{name}");
        ensure!(if is_sampled { timed < made / 2 } else { untimed == 0 }, "{name}: {timed}");
    }
    assert_eq!(process.launches(), number(&truth, "/calls/cudaLaunchKernel"));
    let copies = ["cuMemcpyHtoDAsync", "cudaMemcpyAsync"];
    let copies: u64 = copies.iter().map(|name| number(&truth, &format!("/calls/{name}"))).sum();
    assert_eq!(process.copied.iter().sum::<u64>(), 7_422 * copies, "{:?}", process.copied);
    ensure!(process.launches.unobserved.0 == 0, "{:?}", process.launches);
    Ok(())
}
